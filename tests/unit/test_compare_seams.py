"""Draft-decode positions behind an extend, in shapes that servers record: one broken seam is a fault, these are none."""

from __future__ import annotations

import numpy as np
import pytest

from drafttrace.compare.inside import _seams
from drafttrace.tracer.capture import Accepted, Phase, RowTable

PREFILL, VERIFY, DECODE = Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY, Phase.DRAFT_DECODE
Row = tuple[int, Phase, int, int, int, Accepted]


def extend(positions: range, phase: Phase, number: int, frame: int, rejected: int = 0) -> list[Row]:
    kept = len(positions) - rejected
    return [
        (p, phase, number, -1, frame, Accepted.ACCEPTED if i < kept else Accepted.REJECTED)
        for i, p in enumerate(positions)
    ]


def decode(first: int, steps: int, number: int, frame: int, width: int = 1) -> list[Row]:
    return [(first + s, DECODE, number, s, frame + s, Accepted.UNKNOWN) for s in range(steps) for _ in range(width)]


def table(rows: list[Row]) -> RowTable:
    position, phase, number, step, frame, accepted = np.array(rows, np.int64).T
    return RowTable(position, position % 5, phase, number, accepted, step, frame)


SHAPES: dict[str, list[Row]] = {
    "a chain": [*extend(range(20), PREFILL, 0, 1), *decode(20, 3, 0, 2)],
    "a tree": [*extend(range(20), PREFILL, 0, 1), *decode(20, 3, 0, 2, width=4)],
    "chunks": [
        *extend(range(8), PREFILL, 0, 1),
        *extend(range(8, 16), PREFILL, 0, 2),
        *extend(range(16, 20), PREFILL, 0, 3),
        *decode(20, 3, 0, 4),
    ],
    "a cached prefix": [*extend(range(16, 20), PREFILL, 0, 1), *decode(20, 3, 0, 2)],
    "rejected rows": [
        *extend(range(20), PREFILL, 0, 1),
        *decode(20, 3, 0, 2),
        *extend(range(20, 24), VERIFY, 1, 6, rejected=2),
        *decode(22, 3, 1, 7),
    ],
    "retracted, and computed again": [
        *extend(range(20), PREFILL, 0, 1),
        *decode(20, 3, 0, 2),
        *extend(range(22), PREFILL, 0, 6),
        *decode(22, 3, 0, 7),
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_healthy_shape_has_no_broken_seam(shape: str) -> None:
    seams = _seams(table(SHAPES[shape]))
    assert seams and not any(seam.broken for seam in seams), seams


@pytest.mark.parametrize("shape", SHAPES)
def test_in_every_shape_a_step_too_far_is_broken(shape: str) -> None:
    rows = [(p + 1, *rest) if rest[0] is DECODE else (p, *rest) for p, *rest in SHAPES[shape]]
    assert all(seam.broken for seam in _seams(table(rows)))  # type: ignore[arg-type]
