"""Slots that are right up to a position and wrong from there on: a window, other rope parameters, or neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compare_world import World, bf16, dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture

WIRING = (2, 8, 13)
WORLD = make_world(layers=16, tokens=64)


def faults(found: Result) -> list[str]:
    return [f.id for f in found.findings if f.severity == FAULT]


def off_by(world: World, course: npt.NDArray[Any]) -> Capture:
    """A dump whose rows are off in a way of their own, each by its part of ``course`` (relative L2)."""
    rng = np.random.default_rng(7)
    slots = []
    for k in WIRING:
        rows = world.streams[k]
        size = np.linalg.norm(rows, axis=1, keepdims=True) / np.sqrt(rows.shape[1])
        slots.append((rows + course[:, None] * size * rng.standard_normal(rows.shape)).astype(np.float32))
    made = dumped(world, WIRING, slots=slots)
    assert made.last is not None  # what attention does otherwise flows on to the end
    size = np.linalg.norm(world.last, axis=1, keepdims=True) / np.sqrt(world.last.shape[1])
    last = world.last + course[:, None] * size * rng.standard_normal(world.last.shape)
    return replace(made, last=replace(made.last, rows=bf16(last)))


STEP = np.where(np.arange(len(WORLD.tokens)) < 24, 0, 0.45)


@pytest.mark.parametrize("sweep", [None, ()])
def test_a_window_of_the_target_is_named_with_its_length(sweep: tuple[int, ...] | None) -> None:
    found = diff(served(WORLD, WIRING, sweep=sweep), off_by(WORLD, STEP))
    named = [f for f in found.findings if f.id == "window-mismatch"]
    assert len(named) == 1 and "boundary-offset" not in faults(found), [(f.id, f.summary) for f in found.findings]
    assert named[0].evidence["onset"] == 24 and "24 tokens" in named[0].summary
    assert sweep is not None or faults(found) == ["window-mismatch"]


def test_a_window_that_a_config_has_is_surer() -> None:
    reference = off_by(WORLD, STEP)
    alone = diff(served(WORLD, WIRING), reference).findings[0]
    left = served(WORLD, WIRING)
    left = replace(left, about={**left.about, "target_config": {"sliding_window": 24}})
    said = diff(left, reference).findings[0]
    assert said.confidence > alone.confidence and said.evidence["sliding_window"] == [24, None]


def test_rows_that_go_off_with_their_position_are_a_rope_mismatch() -> None:
    course = np.linspace(0, 0.6, len(WORLD.tokens))
    found = diff(served(WORLD, WIRING), off_by(WORLD, course))
    assert faults(found)[0] == "rope-mismatch", [(f.id, f.summary) for f in found.findings]


@pytest.mark.parametrize("name", ["everywhere", "from row 1 on", "one half", "the answer"])
def test_other_courses_are_no_window_and_no_rope(name: str) -> None:
    count = len(WORLD.tokens)
    course = np.full(count, 0.45)
    prompt = count
    if name == "from row 1 on":  # as a massive first row hides a wrong boundary
        course[0] = 0
    elif name == "one half":
        course[np.random.default_rng(1).permutation(count)[: count // 2]] = 0
    elif name == "the answer":  # another kind of pass begins there
        course[:40], prompt = 0, 40
    found = diff(served(WORLD, WIRING, prompt=prompt), off_by(WORLD, course))
    assert faults(found) and not {"window-mismatch", "rope-mismatch"} & set(faults(found)), faults(found)


def test_what_looks_back_at_a_picture_is_no_window() -> None:
    """Rows behind a picture that only one side saw are a little off, too: that was told as a window of 16 tokens."""
    ids = WORLD.tokens.copy()
    ids[16:24] = 900
    world = replace(WORLD, tokens=ids)
    course = np.where(np.arange(len(ids)) < 16, 0, 0.2)
    course[16:24] = 1.5
    found = diff(served(world, WIRING), off_by(world, course))
    assert faults(found)[0] == "modality-span" and "window-mismatch" not in faults(found), faults(found)


@pytest.mark.parametrize("wiring, slot", [((0, 8, 13), 0), (WIRING, 0), (WIRING, 1), (WIRING, 2)])
def test_what_the_embedding_or_no_deeper_state_shares_is_no_window(wiring: tuple[int, ...], slot: int) -> None:
    """Noisy rows of B0, which looks at no other token, or of one slot below states that match, were a window."""
    whole = dumped(WORLD, wiring)
    rows = whole.slots[slot].rows.floats()
    size = np.linalg.norm(rows, axis=1, keepdims=True) / np.sqrt(rows.shape[1])
    noisy = rows + STEP[:, None] * size * np.random.default_rng(7).standard_normal(rows.shape)
    slots = [replace(s, rows=bf16(noisy)) if i == slot else s for i, s in enumerate(whole.slots)]
    found = diff(served(WORLD, wiring), replace(whole, slots=tuple(slots)))
    assert faults(found) == ["unexplained"] and found.exit_code == 1, [(f.id, f.summary) for f in found.findings]
