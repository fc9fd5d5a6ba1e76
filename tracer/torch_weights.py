"""Weights in torch's own files, ``pytorch_model*.bin``, read without executing anything in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import UnreadableFile


def load_problem(error: BaseException) -> str:
    """One line of a loader's error. torch's own would advise to run the code of a stranger's file."""
    text = str(error).strip()
    wanted = re.search(r"GLOBAL (\S+)", text)
    if "weights_only" in text or wanted:
        return f"it wants to run '{wanted[1] if wanted else 'code'}', and drafttrace runs no code from files"
    return (text.splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def load_tensors(path: Path) -> dict[str, Any]:
    """The tensors of a ``.bin`` file, memory-mapped, without executing anything in it."""
    import torch

    _refuse_no_zip(path)
    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises half a dozen types for a damaged or unsafe file
        reason = load_problem(error)
        raise UnreadableFile(
            f"{path} cannot be loaded as plain weights ({reason}); convert it to safetensors."
        ) from error
    if isinstance(value, dict) and isinstance(value.get("state_dict"), dict):
        value = value["state_dict"]
    if not isinstance(value, dict) or not all(isinstance(item, torch.Tensor) for item in value.values()):
        raise UnreadableFile(f"{path} is no flat table of tensors; convert it to safetensors.")
    return {str(name): tensor for name, tensor in value.items()}


def _refuse_no_zip(path: Path) -> None:
    """Raise UnreadableFile for a file that is no zip: torch's own words are about memory maps, whatever it is."""
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError:  # the loader says why
        return
    if begins == b"PK\x03\x04":
        return
    what = "it is empty" if not begins else f"it begins with {begins!r}, and weights of torch are a zip"
    if begins[:1] == b"\x80":
        what = "it is a bare pickle, as torch wrote before release 1.6, and no zip of tensors"
    raise UnreadableFile(f"{path} cannot be loaded as plain weights ({what}); convert it to safetensors.")


def stored_array(tensor: Any) -> npt.NDArray[np.generic]:
    """A tensor in storage form: bf16 as uint16, fp8 as uint8."""
    import torch

    plain = tensor.detach().contiguous()
    if plain.dtype is torch.bfloat16:
        array: npt.NDArray[np.generic] = plain.view(torch.int16).numpy().view(np.uint16)
        return array
    if plain.dtype in {torch.float8_e4m3fn, torch.float8_e5m2}:
        eight: npt.NDArray[np.generic] = plain.view(torch.uint8).numpy()
        return eight
    other: npt.NDArray[np.generic] = plain.numpy()
    return other
