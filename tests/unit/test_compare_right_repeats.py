"""Equal rows of different tokens that the model itself gives, and copies that look like them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_world import World, dumped, make_world, served
from edited_captures import with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.repeats import find_repeats
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.rows import Floats

WIRING = (0, 5, 8)


def two_of_one_vector(seed: int = 4, level: float = 0.0) -> World:
    """The first two tokens differ, and share a vector: all of their states are one, but for rounding on the other side."""
    world = make_world(layers=10, tokens=40, seed=seed)
    rng = np.random.default_rng(1)
    for stream in world.streams:
        stream[1] = stream[0] * (1 + level * rng.standard_normal(stream.shape[1]))
    return world


def faults(found: Result) -> list[tuple[str, tuple[int, ...]]]:
    return [(f.id, f.slots) for f in found.findings if f.severity == FAULT]


def blind(capture: Capture) -> Capture:
    return replace(capture, boundaries={}, embed=None)


def copied(x: Floats) -> Floats:
    x[30] = x[20]
    return x


LEFT = served(two_of_one_vector(), WIRING)
DUMP = dumped(two_of_one_vector(level=1e-4).noisy(0.003), WIRING)


@pytest.mark.parametrize("embeddings", [True, False])
def test_tokens_of_one_embedding_at_the_start_are_no_stale_rows(embeddings: bool) -> None:
    """ "position 1 is a copy of position 0", 0.97, of rows that do not differ from the other side's: two tokens with one
    embedding, whose rows bf16 makes equal."""
    left = LEFT if embeddings else blind(LEFT)
    assert {r.slot for r in find_repeats(left)} >= {1, 2}
    for found in (diff(left, DUMP), diff(DUMP, left)):
        assert faults(found) == [] and found.exit_code == 0, found.summary
    if embeddings:
        assert "stale-rows" not in {f.id for f in diff(left, None).findings}


@pytest.mark.parametrize("side", ["left", "reference"])
def test_a_copy_beside_such_tokens_is_told_alone(side: str) -> None:
    left, dump = (with_slot(LEFT, 1, copied), DUMP) if side == "left" else (LEFT, with_slot(DUMP, 1, copied))
    for ours in (left, blind(left)):
        found = diff(ours, dump)
        assert faults(found) == [("stale-rows", (1,))], found.summary
        assert found.findings[0].evidence == {"1": {"30": [20, -1]}}


def test_a_copy_of_such_a_row_is_told() -> None:
    def start(x: Floats) -> Floats:
        x[30] = x[0]
        return x

    found = diff(with_slot(LEFT, 2, start), DUMP)
    assert faults(found) == [("stale-rows", (2,))] and found.findings[0].evidence == {"2": {"30": [0, -1]}}


def test_the_same_copy_on_both_sides_is_one_where_the_embeddings_differ() -> None:
    found = diff(with_slot(LEFT, 1, copied), with_slot(dumped(two_of_one_vector(), WIRING), 1, copied))
    assert {f[0] for f in faults(found)} == {"stale-rows"}


def test_a_slot_of_one_row_is_told_though_the_other_side_has_it_too() -> None:
    def flat(x: Floats) -> Floats:
        x[:] = x[7]
        return x

    assert ("constant-rows", (1,)) in faults(diff(with_slot(LEFT, 1, flat), with_slot(DUMP, 1, flat)))
