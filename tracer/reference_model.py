"""The target as transformers loads it: its decoder layers, its final norm, and one pass over tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafttrace.tracer.checkpoint import load_problem
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.target_weights import read_shape

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_KINDS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}


@dataclass(frozen=True)
class Model:
    """base: without the head. norm: the final norm, None where none is found. kind: the number format that it runs in."""

    base: Any
    layers: Any
    norm: Any
    kind: str
    device: Any


def load(target: Path, dtype: str, device_map: str | None) -> Model:
    """The model of a folder, whose own code is never run. Raises UnreadableFile where it cannot be loaded whole."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise DrafttraceError(
            f"The reference needs torch and transformers ({error.name} is missing); pip install {error.name}."
        ) from None
    transformers_logging.disable_progress_bar()  # the caller shows its own
    wanted: Any = "auto" if dtype == "auto" else getattr(torch, DTYPES[dtype])
    shown = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # what it would warn of is refused below, in one sentence
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            str(target),
            dtype=wanted,
            device_map=device_map,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises everything from KeyError to its own types
        where = "" if device_map is None else f" on --device-map {device_map}"
        raise UnreadableFile(
            f"transformers cannot load the target '{target}'{where} ({load_problem(error)}); check its files, the "
            "device, and that this transformers knows the model."
        ) from None
    finally:
        transformers_logging.set_verbosity(shown)
    _refuse_random_weights(loaded, target)
    model.eval()
    layers, norm = _anatomy(model, read_shape(target).layers, target)
    kind = _KINDS.get(str(next(model.parameters()).dtype), "fp32")
    base = getattr(model, "base_model", model)
    return Model(base, layers, norm, kind, next(base.parameters()).device)


def _refuse_random_weights(loaded: Mapping[str, Any], target: Path) -> None:
    """transformers fills weights that a checkpoint lacks with random numbers: a reference made so would be noise."""
    missing = sorted(str(name) for name in loaded.get("missing_keys", ()))
    wrong = sorted(str(item[0] if isinstance(item, tuple) else item) for item in loaded.get("mismatched_keys", ()))
    for names, what in ((missing, "lacks"), (wrong, "has the wrong shape for")):
        if names:
            raise UnreadableFile(
                f"The target '{target}' {what} {len(names)} weights that its config.json calls for, first "
                f"'{names[0]}'; fetch the checkpoint again."
            )


def _anatomy(model: Any, count: int, target: Path) -> tuple[Any, Any]:
    """The list of decoder layers, and the final norm beside it (None where there is none of a known name)."""
    import torch

    for module in model.modules():
        for child in module.children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == count:
                norms = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f")
                return child, next((getattr(module, name) for name in norms if hasattr(module, name)), None)
    raise UnreadableFile(
        f"The target '{target}' has no list of {count} decoder layers, so its boundaries cannot be found; dump its states "
        "with the trainer."
    )


def forward(model: Model, ids: Any, mask: Any) -> None:
    """One pass over token ids ``[B, L]``. Raises DrafttraceError where it fails."""
    try:
        model.base(input_ids=ids, attention_mask=mask, use_cache=False)
    except DrafttraceError:  # from a tap that writes
        raise
    except Exception as error:  # out of memory, a kernel that the device lacks, an operation on the wrong device
        raise DrafttraceError(
            f"The target cannot be run on {ids.shape[0]} x {ids.shape[1]} tokens on {model.device} "
            f"({load_problem(error)}); try a smaller --batch-size, another --dtype, or --device-map auto."
        ) from error


def width_of(model: Model) -> int:
    """The hidden size H."""
    config = model.base.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(config.hidden_size)
