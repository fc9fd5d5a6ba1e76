"""Ranks against each other, and two traces of one request under other conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compare_world import bf16, dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.ranks import RankFacts, compare_hashes
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.trace.schema import RANK_ROW

WORLD = make_world(layers=10, tokens=30)
WIRING = (2, 5, 8)


@dataclass(frozen=True)
class Hashes:
    rank: int
    rows: npt.NDArray[np.void]
    names: tuple[str, ...]
    hashes: npt.NDArray[np.uint64]


def rank(number: int, count: int = 12) -> Hashes:
    rows = np.zeros(count, RANK_ROW)
    rows["frame"], rows["position"] = np.arange(count) // 4, np.arange(count) % 5
    hashes = np.arange(1, 2 * count + 1, dtype=np.uint64).reshape(count, 2)
    return Hashes(number, rows, ("aux/0", "last"), hashes)


def test_equal_ranks_agree_whatever_the_order_of_their_rows() -> None:
    order = np.random.default_rng(0).permutation(12)
    other = rank(1)
    mixed = replace(other, rows=other.rows[order], hashes=other.hashes[order])
    assert compare_hashes([mixed, rank(0)]) == RankFacts(12)
    assert compare_hashes([rank(0)]) == RankFacts()


def test_the_first_differing_row_is_named_and_missing_ones_are_not_compared() -> None:
    other = rank(1)
    other.hashes[7, 1] += np.uint64(5)
    other.hashes[9, 1] += np.uint64(5)
    other.hashes[2, 0] = 0
    [found] = compare_hashes([rank(0), other]).divergences
    assert (found.rank, found.name, found.differing, found.frame, found.position) == (1, "last", 2, 1, 2)
    result = diff(served(WORLD, WIRING), dumped(WORLD, WIRING), ranks=[rank(0), other])
    assert result.findings[0].id == "rank-divergence" and result.exit_code == 1
    assert diff(served(WORLD, WIRING), dumped(WORLD, WIRING), ranks=[rank(0), rank(1)]).exit_code == 0


def test_rows_that_a_rank_holds_in_another_order_are_rows_by_rank_and_no_divergence() -> None:
    one, two = rank(0, 16), rank(1, 16)
    for side in (one, two):
        side.rows["frame"], side.rows["position"] = 0, np.arange(16)
    moved = replace(two, hashes=np.roll(two.hashes, 8, axis=0))
    found = compare_hashes([one, moved])
    assert {(d.moved, d.differing) for d in found.divergences} == {(16, 16)}
    assert {d.blocks.kind for d in found.divergences if d.blocks} == {"the ranks' blocks stand in another order"}
    result = diff(served(WORLD, WIRING), dumped(WORLD, WIRING), ranks=[one, moved])
    assert [f.id for f in result.findings if f.severity == "fault"] == ["rows-by-rank"]


def test_branches_of_a_tree_at_one_position_are_told_apart() -> None:
    one, two = rank(0, 4), rank(1, 4)
    for side in (one, two):
        side.rows["position"] = 3
        side.rows["frame"] = 0
    assert compare_hashes([one, two]) == RankFacts(4)


def test_a_sum_that_was_never_added_up_is_found() -> None:
    whole = served(WORLD, WIRING, sweep=())
    part = np.random.default_rng(2).standard_normal(whole.slots[1].rows.shape).astype(np.float32) * 20
    mine = _with_slot(whole, whole.slots[1].rows.floats() - part)
    other = _with_slot(whole, part)
    other = replace(
        other, slots=tuple(replace(s, rows=bf16(s.rows.floats() * (i == 1))) for i, s in enumerate(other.slots))
    )
    found = diff(mine, dumped(WORLD, WIRING), rank_traces=[other])
    assert found.findings[0].id == "partial-sum" and found.findings[0].slots == (1,)


def test_a_part_that_resembles_a_transformed_state_is_a_partial_sum_first() -> None:
    """Two ranks with half each: every part is the state times a number, and their sum is the state."""
    left = served(WORLD, WIRING)
    half = WORLD.streams[5][left.table.position] * 0.5
    mine, other = (replace(_with_slot(left, half), path=path) for path in ("r0.h5", "r1.h5"))
    alone = diff(mine, dumped(WORLD, WIRING))
    assert alone.findings[0].id == "scale"
    faults = [
        f.id for f in diff(mine, dumped(WORLD, WIRING), rank_traces=[other]).findings if f.severity == "fault"
    ]
    assert faults[0] == "partial-sum" and "scale" not in faults


def test_rows_of_a_part_sum_that_resemble_something_are_a_partial_sum_first() -> None:
    """A mixture of experts: some rows are all on one rank. "Residual-missing: 27 of 58 rows" came first."""
    left = served(WORLD, WIRING)
    here = np.where(np.random.default_rng(1).random(len(left.table)) < 0.7, 1.0, 0.5)[:, None]
    state = WORLD.streams[5][left.table.position]
    mine, other = (
        replace(_with_slot(left, state * share), path=path)
        for share, path in ((here, "r0.h5"), (1 - here, "r1.h5"))
    )
    found = diff(mine, dumped(WORLD, WIRING), rank_traces=[other]).findings
    assert next(f.id for f in found if f.severity == "fault") == "partial-sum"
    assert not any("part" in f.evidence for f in found)


def test_a_part_that_lacks_little_of_a_deep_state_is_a_partial_sum_too() -> None:
    """Live, B31 lacked 5 % of itself: "27 of 58 rows of slot 2 are only a part of B31" came first."""
    left = served(WORLD, WIRING)
    state = WORLD.streams[5][left.table.position]
    lost = np.random.default_rng(2).permuted(state, axis=1) * 0.045
    mine, other = (
        replace(_with_slot(left, rows), path=path) for rows, path in ((state - lost, "r0.h5"), (lost, "r1.h5"))
    )
    found = diff(mine, dumped(WORLD, WIRING), rank_traces=[other]).findings
    assert [(f.id, f.slots) for f in found if f.severity == "fault"] == [("partial-sum", (1,))]


def _with_slot(left: Capture, values: npt.NDArray[Any]) -> Capture:
    slots = list(left.slots)
    slots[1] = replace(slots[1], rows=bf16(values))
    return replace(left, slots=tuple(slots))


_BOTH = {"cuda_graph_backend_decode": "full", "cuda_graph_backend_prefill": "breakable"}


@pytest.mark.parametrize(
    ("block", "wanted"),
    [
        ({"request": {"cached_prefix": 16}}, "cold-warm"),
        ({"server_args": {"disable_cuda_graph": True}}, "graph-eager"),
        ({"server_args": {"disable_decode_cuda_graph": True}}, "graph-eager"),
        ({"server_args": {"cuda_graph_backend_prefill": "disabled"}}, "graph-eager"),
        ({"server_args": {"cuda_graph_config": {"decode": {"backend": "disabled"}}}}, "graph-eager"),
        # The backend that is named counts more than the switch, and another backend is a graph all the same.
        ({"server_args": {"disable_cuda_graph": True, **_BOTH}}, "decay"),
        ({"server_args": {"cuda_graph_backend_decode": "breakable"}}, "decay"),
        ({}, "decay"),
    ],
)
def test_two_runs_that_differ_are_told_by_what_was_different(block: dict[str, Any], wanted: str) -> None:
    left = served(WORLD, WIRING)
    noise = np.random.default_rng(3).standard_normal(left.slots[1].rows.shape)
    size = np.linalg.norm(left.slots[1].rows.floats(), axis=1, keepdims=True) / 8
    other = _with_slot(served(WORLD, WIRING), left.slots[1].rows.floats() + 0.3 * noise * size)
    found = diff(left, replace(other, about={**other.about, **block}))
    assert found.findings[0].id == wanted, [(f.id, f.summary) for f in found.findings]
    assert diff(left, replace(served(WORLD, WIRING), about={**left.about, **block})).exit_code == 0


def test_a_server_on_a_cpu_replays_no_graphs() -> None:
    """SGLang keeps its graph arguments on a CPU, too: the runs there differ by something else."""
    left = served(WORLD, WIRING)
    about = {**left.about, "server_args": {"device": "cpu", "disable_cuda_graph": False}}
    noise = 0.04 * np.random.default_rng(3).standard_normal(left.slots[1].rows.shape)
    size = np.linalg.norm(left.slots[1].rows.floats(), axis=1, keepdims=True)
    other = replace(_with_slot(left, left.slots[1].rows.floats() + noise * size), about=about)
    eager = {**about, "server_args": {"device": "cpu", "disable_cuda_graph": True}}
    found = diff(replace(left, about=eager), other)
    assert found.findings[0].id == "decay", [(f.id, f.summary) for f in found.findings]
