"""What trainers do differently from run to run, on every layout: batch axes, number formats, padding, NaN, None."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dump_layouts as made
import pytest
import torch
from dump_layouts import CASES, Case
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture

Change = Callable[[torch.Tensor], Any]
STORED = [case for case in CASES if case.id != "SG-JSON"]  # JSON has numbers, and neither formats nor NaN nor axes
IDS = [f"{index}-{case.id}" for index, case in enumerate(STORED)]
WIDE = made.LENGTH + 3  # rows of a padded layout, and the width of a state
PADDED = {"TS-DEBUG", "AM-EAGLE3", "AM-DSPARK"}
LOSSY = {"SPEC-FP8", "EAGLE12-CKPT"}


def changed(value: Any, change: Change) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: changed(item, change) for name, item in value.items()}
    return [changed(item, change) for item in value] if isinstance(value, list) else value


def rewrite(root: Path, change: Change) -> None:
    """Put every tensor of every file below a folder through ``change``."""
    for path in sorted(root.rglob("*")):
        if path.suffix == ".safetensors" and path.stem != "target_embeddings":
            with safe_open(path, "pt") as file:
                about = file.metadata()
            held = {name: change(tensor.clone()).contiguous() for name, tensor in load_file(path).items()}
            save_file(held, path, about)
        elif path.name.endswith((".pt", ".ckpt", ".gz")):
            whole = path.read_bytes()
            packed = path.suffix == ".gz"
            value = torch.load(io.BytesIO(gzip.decompress(whole) if packed else whole), weights_only=True)
            stream = io.BytesIO()
            torch.save(changed(value, change), stream)
            path.write_bytes(gzip.compress(stream.getvalue()) if packed else stream.getvalue())


def is_state(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_floating_point() and tensor.ndim >= 2 and tensor.shape[-1] % made.H == 0 and tensor.numel() > 16
    )


def row_axis(case: Case, tensor: torch.Tensor) -> int:
    """The axis of the tokens."""
    length = WIDE if case.id in PADDED else made.LENGTH
    return 1 if case.id in PADDED else list(tensor.shape).index(length)


def opened(case: Case, path: Path) -> Capture:
    several = case.id.startswith("TS-") or case.id == "SG-PASS"  # padding of a pass looks like more requests
    return open_capture(str(path), request=Request(**case.request), sample=0 if several else None)


def holds(capture: Capture, case: Case, dtype: torch.dtype = torch.bfloat16) -> None:
    """The capture is of the layout and holds the boundaries where they belong."""
    assert capture.format == case.id
    assert len(capture.slots) == len(case.slots)
    tolerance = 0.14 if case.id == "SPEC-FP8" else 0.01 if case.id in LOSSY else 0.0
    pairs = [(slot.rows, made.state(boundary)) for slot, boundary in zip(capture.slots, case.slots, strict=True)]
    if case.last is not None:
        assert capture.last is not None
        pairs.append((capture.last.rows, made.last_post() if case.last == "post" else made.state(made.LAYERS)))
    for rows, expected in pairs:
        values = torch.from_numpy(rows.floats()[: made.LENGTH].copy())
        wanted = expected if case.id == "SPEC-FP8" else expected.to(dtype)
        if case.id == "EAGLE12-CKPT":
            wanted = made.last_post(dtype=torch.float16).to(dtype)
        assert torch.allclose(values, wanted.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
)
@pytest.mark.parametrize("case", STORED, ids=IDS)
def test_every_layout_in_every_number_format(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    if case.id == "SPEC-FP8" and dtype is torch.float8_e5m2:
        pytest.skip("its scales are those of e4m3, whose range e5m2 has at half the precision")
    path = case.write(tmp_path)
    rewrite(tmp_path, lambda tensor: tensor.to(dtype) if is_state(tensor) else tensor)
    holds(opened(case, path), case, dtype)


# Where the number of axes is what tells the layout, or an axis has a meaning of its own.
AXES_TELL = {"SF-35504D45", "SF-LAST", "EAGLE12-CKPT", "BALD-PLAIN", "BALD-FUSED", "TS-DEBUG", "AM-EAGLE3", "AM-DSPARK",
             "SG-PASS", "SG-DUMPER"}  # fmt: skip


@pytest.mark.parametrize("case", STORED, ids=IDS)
def test_every_layout_with_a_batch_axis_or_none(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)

    def other_axes(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 0 or made.LENGTH not in tensor.shape:
            return tensor
        return tensor[0] if tensor.shape[0] == 1 else tensor[None]

    rewrite(tmp_path, other_axes)
    if case.id not in AXES_TELL:
        holds(opened(case, path), case)
        return
    try:
        opened(case, path)
    except DrafttraceError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("case", [case for case in STORED if case.id not in PADDED])
def test_every_layout_with_a_padded_tail(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)

    def padded(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 0 or made.LENGTH not in tensor.shape:
            return tensor
        axis = row_axis(case, tensor)
        shape = [5 if k == axis else size for k, size in enumerate(tensor.shape)]
        return torch.cat([tensor.float(), torch.zeros(shape)], axis).to(tensor.dtype)

    rewrite(tmp_path, padded)
    capture = opened(case, path)
    holds(capture, case)
    assert capture.tokens[: made.LENGTH].tolist() == made.tokens().tolist()
    assert made.LENGTH <= capture.valid_length <= made.LENGTH + 5
    if case.id.startswith("SF-"):
        assert capture.valid_length == made.LENGTH


@pytest.mark.parametrize("broken", [float("nan"), 0.0])
@pytest.mark.parametrize("case", STORED, ids=IDS)
def test_broken_rows_of_every_layout_are_counted(case: Case, broken: float, tmp_path: Path) -> None:
    path = case.write(tmp_path)

    def with_a_broken_row(tensor: torch.Tensor) -> torch.Tensor:
        if not is_state(tensor):
            return tensor
        values = tensor.float()
        values.select(row_axis(case, values), 3).fill_(broken)
        return values.to(tensor.dtype)

    rewrite(tmp_path, with_a_broken_row)
    found = inspect_capture(
        str(path), request=Request(**case.request), sample=0 if case.id.startswith("TS-") else None
    )
    assert found.format == case.id
    counts = {(state.statistics.nan_rows, state.statistics.zero_rows) for state in found.states}
    assert counts == {(0, 1) if broken == 0 else (1, 0)}


TORCH = [case for case in STORED if case.id not in {"SPEC-ARROW", "SPEC-FP8", "VLLM-HS", "DRAFTTRACE", "AM-EAGLE3",
                                                    "AM-DSPARK", "SG-DUMPER"}]  # fmt: skip


@pytest.mark.parametrize("case", [case for case in TORCH if case.write is not made.write_sf_gz])
def test_none_in_the_place_of_a_tensor_of_every_layout(case: Case, tmp_path: Path) -> None:
    """A trainer that was told not to store something writes None. No tokens are an error; no state is said."""
    path = case.write(tmp_path)
    value = torch.load(io.BytesIO(path.read_bytes()), weights_only=True)
    entry = value[0] if isinstance(value, list) else value.get("batch", value)
    for name in [name for name, item in entry.items() if isinstance(item, torch.Tensor)]:
        kept, entry[name] = entry[name], None
        torch.save(value, path)
        entry[name] = kept
        try:
            capture = opened(case, path)
        except DrafttraceError as error:
            assert "\n" not in str(error)
            continue
        assert name not in {"input_ids", "token_ids"}
        states = len(capture.slots) + (capture.last is not None)
        wanted = len(case.slots) + (case.last is not None)
        if is_state(kept) and capture.format == case.id and case.id != "SG-PASS":
            assert states < wanted
            assert capture.notes
        elif "loss_mask" in name:
            assert capture.mask is None
