"""A draft that reads the slots of a file in another order than they stand there: a finding wherever it is proven."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from audit_folders import target_tensors
from replay_world import World, make_world

from drafttrace.compare.replay.result import ReplayResult
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.capture import Capture, Slot

TRUTH = (0, 3, 31)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A pair whose config is right."""
    return make_world(tmp_path_factory.mktemp("world"), TRUTH)


def searched(world: World, capture: Capture) -> ReplayResult:
    return replay(
        capture, world.draft, world.target, search_wirings=True, steps=1, switches=False, sglang_version="0.5.23"
    )


def swapped(capture: Capture, one: int, two: int) -> Capture:
    """The rows of two slots exchanged, their names and boundaries left where they are."""
    slots = list(capture.slots)
    slots[one] = dataclasses.replace(capture.slots[one], rows=capture.slots[two].rows)
    slots[two] = dataclasses.replace(capture.slots[two], rows=capture.slots[one].rows)
    return dataclasses.replace(capture, slots=tuple(slots))


def test_swap01_of_a_file_that_does_not_name_its_slots_is_a_finding(world: World) -> None:
    """The search ranked [slot1, slot0, slot2] first with 100 % and nothing was said: exit code 0."""
    result = searched(world, swapped(world.capture(TRUTH, declared=False), 0, 1))
    assert result.search is not None and result.search.winner == "[slot1, slot0, slot2]"
    (found,) = result.faults
    assert found.id == "slot-permutation" and found.slots == (0, 1) and result.exit_code == 1
    assert found.evidence["margin"] > 0.2 and "100.0%" in found.summary
    assert (
        "[B3, B0, B31]" in found.remedy and "--wiring B3,B0,B31" in found.remedy and "--slots-are" in found.remedy
    )


def test_swap01_of_a_file_whose_names_are_right_by_their_place_is_a_finding(world: World) -> None:
    """Rows under the wrong names: what is served is found among them, and the order differs."""
    result = searched(world, swapped(world.capture(TRUTH), 0, 1))
    (found,) = result.faults
    assert found.id == "slot-permutation" and found.slots == (0, 1) and found.evidence["margin"] > 0.2
    assert "[B3, B0, B31]" in found.summary


def test_swap01_with_the_embedding_known_by_value_is_a_finding(tmp_path: Path) -> None:
    """Slot 0 is declared B0 and slot 1 is B0 by value: slot 0 then has no name, and nothing was compared with it."""
    table = target_tensors()["model.embed_tokens.weight"].float().numpy()
    world = make_world(tmp_path, TRUTH, rows=160, first=table)
    result = searched(world, swapped(world.capture(TRUTH), 0, 1))
    assert result.search is not None and result.search.winner == "[B0, slot0, B31]"
    (found,) = result.faults
    assert found.id == "slot-permutation" and found.slots == (0, 1)
    assert "hands over [B0, B3, B31] with this config" in found.remedy
    assert found.remedy.startswith("With slot0 as [B3], which the file lists and no other slot is: ")


def test_an_order_that_chance_explains_is_no_finding(world: World) -> None:
    """Sixteen rows, half of them of the other order: the search has a winner all the same."""
    capture = swapped(world.capture(TRUTH, declared=False), 0, 1)
    mask = np.zeros(len(capture.tokens), np.int64)
    mask[4:9] = 1
    result = searched(world, dataclasses.replace(capture, mask=mask))
    assert not [f for f in result.findings if f.id in ("slot-permutation", "wrong-boundary")]


def test_a_file_in_the_order_that_the_draft_reads_has_no_such_finding(world: World) -> None:
    assert searched(world, world.capture(TRUTH, declared=False)).exit_code == 0


def test_a_file_that_says_its_own_order_is_a_hint_where_the_server_has_the_right_one(world: World) -> None:
    """Nothing is wrong with what is served; whoever trains on that file should know."""
    rows = {k: world.rows(k) for k in TRUTH}
    slots = tuple(Slot(f"s{i}", rows[k], k, "test") for i, k in enumerate((3, 0, 31)))
    result = searched(world, dataclasses.replace(world.capture(TRUTH), slots=slots))
    (found,) = [f for f in result.findings if f.id == "slot-permutation"]
    assert found.severity == "note" and result.exit_code == 0 and "hands over [B0, B3, B31]" in found.remedy
