"""The committed traces with one of their tensors changed, as the tests of a defect need them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from compare_world import bf16

import drafttrace
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture, DraftRows, Phase

TRACES = Path(__file__).resolve().parents[2] / "traces"
PAIRS = {
    "kimi": ("tiny-kimi/fixed.h5", "tiny-kimi/dump/data_0.pt"),
    "llama": ("tiny-llama/healthy.h5", "tiny-llama/dump/hidden_states/hs_0.safetensors"),
}
Floats = npt.NDArray[np.float32]
Change = Callable[[Floats], npt.NDArray[np.floating]]


@cache
def trace(pair: str) -> Capture:
    return drafttrace.open(TRACES / PAIRS[pair][0])


@cache
def dump(pair: str) -> Capture:
    return drafttrace.open(TRACES / PAIRS[pair][1])


def draft_of(capture: Capture) -> DraftRows:
    assert capture.draft is not None
    return capture.draft


def in_phase(capture: Capture, *phases: Phase) -> npt.NDArray[np.bool_]:
    """Which rows of the draft were computed in these passes."""
    return np.isin(draft_of(capture).table.phase, phases)


def with_slot(capture: Capture, slot: int, change: Change) -> Capture:
    slots = list(capture.slots)
    slots[slot] = replace(slots[slot], rows=bf16(change(slots[slot].rows.floats().copy())))
    return replace(capture, slots=tuple(slots))


def with_draft(
    capture: Capture,
    name: str,
    change: Change,
    where: npt.NDArray[np.bool_] | None = None,
    columns: slice = slice(None),
) -> Capture:
    """One tensor of the draft, changed in some rows and columns."""
    draft = draft_of(capture)
    values = draft.tensors[name].floats().copy()
    rows = np.ones(len(values), np.bool_) if where is None else where
    part = values[rows]
    part[:, columns] = change(part[:, columns].copy())
    values[rows] = part
    return replace(capture, draft=replace(draft, tensors={**draft.tensors, name: bf16(values)}))


def with_boundaries(capture: Capture, change: Change, first: int, last: int) -> Capture:
    """Boundaries first..last of the sweep, changed."""
    held = {k: bf16(change(v.floats().copy())) if first <= k <= last else v for k, v in capture.boundaries.items()}
    return replace(capture, boundaries=held)


def columns_of(capture: Capture, slot: int) -> slice:
    """A slot's columns of fc's input."""
    width = capture.slots[0].rows.width
    return slice(slot * width, (slot + 1) * width)


def faults(result: Result) -> list[str]:
    return [f.id for f in result.findings if f.severity == FAULT]
