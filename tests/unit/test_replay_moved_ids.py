"""A capture whose ids stand off its states: found as a token shift, and every other fault found behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replay_world import World, make_world

from drafttrace.compare.replay.moved_ids import moved
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.row_places import missing_rows
from drafttrace.tracer.rows import ArrayRows, DType

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "pairs/tiny-kimi"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), (2, 16, 29))


def rolled(capture: Capture, places: int) -> Capture:
    mask = None if capture.mask is None else np.roll(capture.mask, places)
    return replace(capture, tokens=np.roll(capture.tokens, places), mask=mask)


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("places", [-2, -1, 1, 2])
def test_ids_off_their_states_are_a_token_shift(world: World, places: int, search: bool) -> None:
    """NO FAULT FOUND at 20 % of 75 %: the switch moved the embedding's token only, and not the one to predict."""
    capture = rolled(world.capture((2, 16, 29)), places)
    result = replay(capture, world.draft, world.target, search_wirings=search)
    (found,) = result.faults
    assert found.id == "token-shift" and found.evidence["places"] == places
    assert f"numpy.roll(ids, {-places})" in found.remedy and result.exit_code == 1
    assert result.best is not None and result.best.score is not None and result.best.score.top1 > 0.95


def test_a_wiring_fault_behind_moved_ids_is_found(world: World) -> None:
    """The findings of the capture as it should be were lost with the shift."""
    capture = rolled(world.capture((3, 16, 30), sweep=(2, 16, 29)), 1)
    straight = replay(world.capture((3, 16, 30), sweep=(2, 16, 29)), world.draft, world.target)
    result = replay(capture, world.draft, world.target)
    assert [f.id for f in result.faults] == ["token-shift", *(f.id for f in straight.faults)]


def test_slots_alone_that_were_moved_are_told_as_such() -> None:
    """Ids, mask and last state fit each other, and the slots stand a row late."""
    captures = [open_capture(f"{KIMI}/dump#{i}") for i in range(4)]
    late = []
    for capture in captures:
        slots = [np.roll(slot.rows.take(np.arange(len(slot.rows))), 1, axis=0) for slot in capture.slots]
        rows = [ArrayRows(values, DType.FP32) for values in slots]
        late.append(
            replace(capture, slots=tuple(replace(s, rows=r) for s, r in zip(capture.slots, rows, strict=True)))
        )
    result = replay(late, KIMI / "draft", KIMI / "target", steps=1)
    found = result.faults[0]
    assert found.id == "token-shift" and found.evidence["places"] == -1
    straight = replay(captures, KIMI / "draft", KIMI / "target", steps=1)
    assert {f.id for f in result.faults} == {"token-shift", *(f.id for f in straight.faults)}


def test_ids_of_the_trained_dump_that_were_moved_hide_no_other_fault() -> None:
    """ "Too few rows to say whether the draft works" at 674 rows, and slot-shift and boundary-offset were gone."""
    captures = [rolled(open_capture(f"{KIMI}/dump#{i}"), 1) for i in range(4)]
    result = replay(captures, KIMI / "draft", KIMI / "target", steps=1)
    assert [f.id for f in result.faults] == ["token-shift", "slot-shift", "boundary-offset"]
    assert result.best is not None and result.best.wiring == "[B0, B3, B31]"  # B0 by value, of the moved ids


def test_a_draft_that_works_with_nothing_is_not_called_shifted(world: World) -> None:
    random = np.random.default_rng(5)
    tokens = random.permutation(world.tokens)
    result = replay(replace(world.capture((2, 16, 29)), tokens=tokens), world.draft, world.target)
    assert not any(f.id == "token-shift" for f in result.findings)


@pytest.mark.parametrize("places", [-2, -1, 0, 1, 2])
def test_moved_keeps_tokens_and_mask_together(world: World, places: int) -> None:
    mask = np.arange(len(world.tokens)) % 2
    capture = replace(world.capture((2,)), mask=mask, valid_length=100, prompt_length=10)
    found = moved(capture, places)
    row = np.arange(4, 90)
    assert found.mask is not None and (found.tokens[row] == world.tokens[row + places]).all()
    assert (found.mask[row] == mask[row + places]).all()
    assert found.valid_length == 100 - places and found.prompt_length == 10 - places


@pytest.mark.parametrize("places", [-2, -3])
def test_a_moved_dump_is_none_with_rows_that_a_cache_held(places: int) -> None:
    """Ids rolled by -2 were not found: two tokens more than rows were refused as another fault of a dump."""
    dump = open_capture(str(KIMI / "dump/data_0.pt"))
    found = moved(dump, places)
    assert missing_rows(dump) == missing_rows(found) == 0
    assert len(found.tokens) <= len(dump.table) + 1
