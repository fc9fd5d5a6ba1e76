"""Dumps of every layout, written again with other axes, number formats, padding, or broken rows.

What a layout's own writer does not do is said here, with what a reader must say of it.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dump_layouts as made
import h5py
import numpy as np
import torch
from dump_layouts import CASES, LENGTH, Case, H
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from drafttrace.tracer.capture import Accepted, Capture, Phase
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import DType, Rows
from drafttrace.tracer.trace import bfloat16, schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.writer import TraceWriter

# name of the field -> the tensor that is to be written instead
Change = Callable[[str, torch.Tensor], torch.Tensor]

KINDS = {
    torch.bfloat16: DType.BF16,
    torch.float16: DType.FP16,
    torch.float32: DType.FP32,
    torch.float64: DType.FP64,
    torch.float8_e4m3fn: DType.FP8_E4M3,
    torch.float8_e5m2: DType.FP8_E5M2,
}
TRACE_ID = "drafttrace.trace/1"
MAP = FieldMap(slots=("s2", "s4", "s5"), tokens="ids", boundaries=made.CANON)


def storage(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The stored bits: unsigned integers where numpy has no such float."""
    kind = KINDS.get(tensor.dtype)
    if kind is None or kind.storage.kind == "f":
        return tensor.contiguous().numpy()
    return tensor.contiguous().view(torch.uint8).numpy().view(kind.storage).reshape(tuple(tensor.shape))


def traced() -> dict[str, torch.Tensor]:
    """The tensors of a trace of one prefill."""
    return {f"aux/{place}": made.state(k) for place, k in enumerate(made.CANON)} | {"last": made.last_post()}


def write_trace(root: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """A whole trace, as the recorder writes it, of one prefill without speculation."""
    held = traced() if tensors is None else tensors
    layout = TraceLayout(tuple(TensorSpec(name, t.shape[1], KINDS[t.dtype]) for name, t in held.items()))
    ids = made.tokens().numpy()
    rows = schema.records(
        schema.TARGET_ROW, LENGTH, position=np.arange(LENGTH), token_id=ids, phase=Phase.PREFILL,
        accepted=Accepted.ACCEPTED, live_rows=LENGTH, padded_rows=LENGTH,
    )  # fmt: skip
    wiring = {"boundaries": list(made.CANON), "ids": list(made.CANON), "source": "test", "n": made.LAYERS}
    path = root / "trace.h5"
    with TraceWriter(path, layout, request_id="x", about={"wiring": wiring}, overwrite=True) as writer:
        writer.append_target(rows, {name: storage(tensor) for name, tensor in held.items()})
        writer.finish(complete=True, tokens=ids, prompt_length=LENGTH)
    return path


def write_h5(root: Path) -> Path:
    """A file of no known layout, in genuine bf16."""
    held = {f"s{k}": made.state(k) for k in made.CANON} | {"ids": made.tokens()}
    save_h5(root / "any.h5", held)
    return root / "any.h5"


def save_h5(path: Path, held: dict[str, torch.Tensor]) -> None:
    with h5py.File(path, "w") as file:
        for name, tensor in held.items():
            array = storage(tensor)
            if tensor.dtype is torch.bfloat16:
                kind = bfloat16.hdf5_type(DType.BF16)
                space = h5py.h5s.create_simple(array.shape)
                h5py.h5d.create(file.id, name.encode(), kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, array, kind)
            else:
                file[name] = array


TRACE = Case(TRACE_ID, write_trace, made.CANON, "post", "post", declared=made.CANON, has_mask=False)
MAPPED = [
    Case("MAPPED", made.write_npz, made.CANON, None, declared=made.CANON, has_mask=False),
    Case("MAPPED", write_h5, made.CANON, None, declared=made.CANON, has_mask=False),
]
ALL = [*CASES, TRACE, *MAPPED]
IDS = [f"{index}-{case.id}-{case.write.__name__.removeprefix('write_')}" for index, case in enumerate(ALL)]


def opened(case: Case, path: Path, sample: int | None = None) -> Capture:
    """Sample 0 where the file holds several."""
    several = case.id in {"TS-DEBUG", "TS-EVAL"}
    mapping = MAP if case.id == "MAPPED" else None
    return open_capture(
        str(path), request=Request(**case.request), sample=0 if several else sample, mapping=mapping
    )


# --- what the layouts' own writers do ------------------------------------------------------------------------

# These are padded as they are written: rows of a padded sample, on axis 1 of everything.
PADDED = {"TS-DEBUG", "AM-EAGLE3", "AM-DSPARK"}
WIDE = LENGTH + 3

# Axes that the layout's own writer never makes: another layout that means the same (=ID), or the words of the refusal.
ODD_AXES = {
    ("SF-35504D45", "unbatched"): r"--hidden-size is 16, and 'hidden_state' of .* is 48 wide",
    ("SF-LAST", "unbatched"): "=EAGLE12-CKPT",
    ("EAGLE12-CKPT", "batched"): "=BALD-PLAIN",
    ("BALD-PLAIN", "unbatched"): "=EAGLE12-CKPT",
    ("BALD-FUSED", "batched"): "'hidden_state', .* is no dump format",
    ("TS-DEBUG", "batched"): r"'input_ids' of .* has the shape \[2, 16\] where 1 axes are expected",
    ("AM-EAGLE3", "batched"): r"'input_ids' of .* has the shape \[1, 1, 16\], not \[n, S\]",
    ("AM-EAGLE3", "unbatched"): r"'input_ids' of .* has the shape \[16\], not \[n, S\]",
    ("AM-DSPARK", "batched"): r"'input_ids' of .* has the shape \[1, 1, 16\], not \[n, S\]",
    ("AM-DSPARK", "unbatched"): r"'input_ids' of .* has the shape \[16\], not \[n, S\]",
    ("SG-PASS", "batched"): r"no residual stream of one row for each of its 13 tokens, but B0 \[1, 13, 16\]",
    ("SG-DUMPER", "batched"): r"no residual stream of one row for each of its 13 tokens, but B0 \[1, 13, 16\]",
    ("SG-JSON", "batched"): r"hidden_states of .* are no rows of one width",
    (TRACE_ID, "batched"): r"has the shape \(1, 13, 16\), not \[rows, 16\]",
}


# --- writing again -------------------------------------------------------------------------------------------


def rewrite(root: Path, change: Change) -> None:
    """Put every tensor of every file below a folder through ``change``."""
    for path in sorted(root.rglob("*")):
        if path.suffix == ".safetensors" and path.stem != "target_embeddings":
            with safe_open(path, "pt") as file:
                about = file.metadata()
            held = {name: change(name, tensor.clone()).contiguous() for name, tensor in load_file(path).items()}
            save_file(held, path, about)
        elif path.name.endswith((".pt", ".ckpt", ".gz")):
            whole = path.read_bytes()
            packed = path.suffix == ".gz"
            value = torch.load(io.BytesIO(gzip.decompress(whole) if packed else whole), weights_only=True)
            stream = io.BytesIO()
            torch.save(_changed("", value, change), stream)
            path.write_bytes(gzip.compress(stream.getvalue()) if packed else stream.getvalue())
        elif path.name == "answer.json":
            _rewrite_answer(path, change)
        elif path.suffix == ".npz":
            arrays = {name: torch.from_numpy(array) for name, array in np.load(path).items()}
            np.savez(path, **{name: change(name, tensor).numpy() for name, tensor in arrays.items()})
        elif path.name == "any.h5":
            held = {f"s{k}": made.state(k) for k in made.CANON} | {"ids": made.tokens()}
            save_h5(path, {name: change(name, tensor) for name, tensor in held.items()})
        elif path.name == "trace.h5":
            _rewrite_trace(path, change)


def _changed(name: str, value: Any, change: Change) -> Any:
    if isinstance(value, torch.Tensor):
        return change(name, value)
    if isinstance(value, dict):
        return {key: _changed(str(key), item, change) for key, item in value.items()}
    return [_changed(name, item, change) for item in value] if isinstance(value, list) else value


def _rewrite_answer(path: Path, change: Change) -> None:
    """The prefill as one block of rows, then row by row, as SGLang answers."""
    answer = json.loads(path.read_text())
    prompt = len(answer["input_ids"])
    ids = change("ids", torch.tensor([*answer["input_ids"], *answer["output_ids"]]))
    states = change("hidden_states", made.last_post().float()).double()
    if states.ndim == 2:
        answer["input_ids"], answer["output_ids"] = ids[:prompt].tolist(), ids[prompt:].tolist()
        blocks = [states[:prompt].tolist(), *states[prompt:].tolist()]
    else:
        blocks = [states[:, :prompt].tolist(), *states[0, prompt:].tolist()]
    answer["meta_info"]["hidden_states"] = blocks
    path.write_text(json.dumps(answer))


def _rewrite_trace(path: Path, change: Change) -> None:
    held = {name: change(name, tensor) for name, tensor in traced().items()}
    if all(tensor.ndim == 2 for tensor in held.values()):
        write_trace(path.parent, held)
        return
    with h5py.File(path, "r+") as file:
        for name, tensor in held.items():
            about = dict(file[f"target/{name}"].attrs)
            del file[f"target/{name}"]
            kind = bfloat16.hdf5_type(DType.BF16)
            space = h5py.h5s.create_simple(tuple(tensor.shape))
            place = h5py.h5d.create(file["target"].id, name.encode(), kind, space)
            place.write(h5py.h5s.ALL, h5py.h5s.ALL, storage(tensor), kind)
            h5py.Dataset(place).attrs.update(about)


# --- changes -------------------------------------------------------------------------------------------------


def is_state(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds hidden states."""
    return tensor.is_floating_point() and tensor.ndim >= 2 and tensor.shape[-1] % H == 0 and tensor.numel() > 16


def row_axis(case: Case, tensor: torch.Tensor) -> int | None:
    """The axis of the tokens; None where there is none."""
    if case.id in PADDED:
        return 1 if tensor.ndim >= 2 and tensor.shape[1] == WIDE else None
    return list(tensor.shape).index(LENGTH) if LENGTH in tensor.shape else None


def axes(case: Case, form: str) -> Change:
    """Every tensor of rows with a batch axis in front, or without."""

    def change(_name: str, tensor: torch.Tensor) -> torch.Tensor:
        axis = row_axis(case, tensor)
        if axis is None:
            return tensor
        if case.id in PADDED:
            return tensor[None] if form == "batched" else tensor[0]
        if form == "batched":
            return tensor if tensor.shape[0] == 1 else tensor[None]
        return tensor[0] if tensor.shape[0] == 1 else tensor

    return change


@dataclass(frozen=True)
class Padding:
    """count rows behind the sample; states of ``filler``."""

    case: Case
    filler: float
    count: int = 5

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        axis = row_axis(self.case, tensor)
        if axis is None:
            return tensor
        fill = self.filler if is_state(tensor) else 0
        if self.case.padding == "attention" and name == "input_ids":
            fill = 7  # any id will do where the attention mask tells
        wide = tensor.double()
        if self.case.id in PADDED:
            wide = wide.narrow(axis, 0, LENGTH)
        shape = [self.count if k == axis else size for k, size in enumerate(wide.shape)]
        return torch.cat([wide, torch.full(shape, fill, dtype=torch.float64)], axis).to(tensor.dtype)


# --- what a capture holds ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Everything of a capture that must not depend on how it was stored, as bytes, of the sample's rows."""

    tokens: list[int]
    slots: list[tuple[str, bytes]]
    last: tuple[str, bytes] | None
    mask: list[int] | None
    mask_offset: int
    wiring: tuple[int | None, ...]


def held(capture: Capture) -> Held:
    """Read now: the file may be written again afterwards."""
    last, mask = capture.last, capture.mask
    return Held(
        capture.tokens[:LENGTH].tolist(),
        [stored(slot.rows) for slot in capture.slots],
        None if last is None else stored(last.rows),
        None if mask is None else mask[:LENGTH].tolist(),
        capture.mask_offset,
        capture.wiring,
    )


def stored(rows: Rows) -> tuple[str, bytes]:
    """Number format and bits of the sample's rows, with their scales."""
    raw, scale = rows.raw(0, LENGTH), rows.scale(0, LENGTH)
    assert raw.shape == (LENGTH, H)
    bits = np.ascontiguousarray(raw).tobytes()
    return rows.dtype.value, bits if scale is None else bits + np.ascontiguousarray(scale).tobytes()
