"""Faults that touch some of the rows: one phase of a served request, a run of positions, every Nth row, a share of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from compare_faults import Floats
from compare_world import bf16, rms
from dump_lab import Bench

from drafttrace.tracer.capture import Capture, Phase

Which = Callable[[int], np.ndarray]
Change = Callable[[Floats], Floats]
SLOT = 1


def run(start: int, stop: int) -> Which:
    """The rows at these positions."""
    return lambda count: (np.arange(count) >= start) & (np.arange(count) < stop)


def each(step: int, first: int) -> Which:
    """Every ``step``-th row."""
    return lambda count: (np.arange(count) % step == first) & (np.arange(count) > 0)


def share(part: float) -> Which:
    """So large a part of the rows, here and there."""
    return lambda count: (np.random.default_rng(3).random(count) < part) & (np.arange(count) > 0)


def noisy(level: float) -> Change:
    """Independent noise of ``level`` times a row's own size."""

    def change(rows: Floats) -> Floats:
        size = np.linalg.norm(rows, axis=1, keepdims=True) / rows.shape[1] ** 0.5
        return rows + level * size * np.random.default_rng(7).standard_normal(rows.shape)

    return change


def changed(capture: Capture, rows: np.ndarray, change: Change, slot: int = SLOT) -> Capture:
    """A capture with some rows (a mask) of one slot changed."""
    values = capture.slots[slot].rows.floats().copy()
    values[rows] = change(values[rows])
    slots = list(capture.slots)
    slots[slot] = replace(slots[slot], rows=bf16(values))
    return replace(capture, slots=tuple(slots))


def in_dump(which: Which, change: Change) -> Callable[[Bench], Capture]:
    """Some rows of the dump changed."""
    return lambda bench: changed(bench.dump, which(len(bench.dump.table)), change)


def moved_in_dump(which: Which, by: int) -> Callable[[Bench], Capture]:
    """Some rows of the dump from a boundary ``by`` later."""

    def make(bench: Bench) -> Capture:
        rows = which(len(bench.dump.table))
        other = bench.boundary(bench.wiring[SLOT] + by)
        return changed(bench.dump, rows, lambda _: other[rows])

    return make


def shifted_in_dump(which: Which, by: int) -> Callable[[Bench], Capture]:
    """Some rows of the dump hold the state ``by`` tokens before their own."""

    def make(bench: Bench) -> Capture:
        rows = which(len(bench.dump.table))
        held = np.roll(bench.dump.slots[SLOT].rows.floats(), by, axis=0)
        return changed(bench.dump, rows, lambda _: held[rows])

    return make


PARTS: dict[str, tuple[str, Callable[[Bench], Capture]]] = {
    "rows 5-24 times four": ("scale", in_dump(run(5, 25), lambda x: x * 4)),
    "rows 30-54 times 1.3": ("scale", in_dump(run(30, 55), lambda x: x * 1.3)),
    "rows 30-54 negated": ("scale", in_dump(run(30, 55), lambda x: -x)),
    "rows 5-24 normed": ("norm-missing", in_dump(run(5, 25), rms)),
    "rows 5-24 one boundary late": ("boundary-offset", moved_in_dump(run(5, 25), 1)),
    "rows 30-54 one boundary early": ("boundary-offset", moved_in_dump(run(30, 55), -1)),
    "rows from 40 on four boundaries late": ("wrong-boundary", moved_in_dump(run(40, 10_000), 4)),
    "every 4th row one boundary late": ("boundary-offset", moved_in_dump(each(4, 3), 1)),
    "every 8th row times two": ("scale", in_dump(each(8, 5), lambda x: x * 2)),
    "every 3rd row times two": ("scale", in_dump(each(3, 1), lambda x: x * 2)),
    "20 % of the rows noisy": ("unexplained", in_dump(share(0.2), noisy(0.3))),
    "45 % of the rows noisy": ("unexplained", in_dump(share(0.45), noisy(0.3))),
    "20 % of the rows times 1.3": ("scale", in_dump(share(0.2), lambda x: x * 1.3)),
    "45 % of the rows one boundary late": ("boundary-offset", moved_in_dump(share(0.45), 1)),
    "rows 30-54 clipped": ("unexplained", in_dump(run(30, 55), lambda x: np.clip(x, -2, 2))),
    "rows 30-54 of the token before": ("token-shift", shifted_in_dump(run(30, 55), 1)),
    "rows 30-54 zero": ("zero-rows", in_dump(run(30, 55), lambda x: x * 0)),
}


def verify_rows(trace: Capture) -> np.ndarray:
    """The rows of a trace that its verify passes made."""
    rows: np.ndarray = trace.table.phase == Phase.VERIFY
    return rows


def in_verify(change: Change) -> Callable[[Capture, int], Capture]:
    """The verify rows of a trace changed; fc has read the same, so that nothing inside the trace tells it."""

    def make(trace: Capture, boundary: int) -> Capture:
        return changed(replace(trace, draft=None), verify_rows(trace), change)

    return make


def moved_in_verify(by: int) -> Callable[[Capture, int], Capture]:
    """The verify rows of a trace from a boundary ``by`` later, those that its sweep holds."""

    def make(trace: Capture, boundary: int) -> Capture:
        other = trace.boundaries[boundary + by].floats()
        rows = verify_rows(trace) & (np.arange(len(trace.table)) < len(other))
        return changed(replace(trace, draft=None), rows, lambda _: other[np.flatnonzero(rows)])

    return make


VERIFY: dict[str, tuple[str, Callable[[Capture, int], Capture]]] = {
    "verify rows times four": ("scale", in_verify(lambda x: x * 4)),
    "verify rows times 1.3": ("scale", in_verify(lambda x: x * 1.3)),
    "verify rows negated": ("scale", in_verify(lambda x: -x)),
    "verify rows normed": ("norm-extra", in_verify(rms)),
    "verify rows one boundary late": ("boundary-offset", moved_in_verify(1)),
    "verify rows one boundary early": ("boundary-offset", moved_in_verify(-1)),
    "verify rows four boundaries late": ("wrong-boundary", moved_in_verify(4)),
    "verify rows noisy": ("unexplained", in_verify(noisy(0.3))),
    "verify rows clipped": ("unexplained", in_verify(lambda x: np.clip(x, -2, 2))),
    "verify rows zero": ("zero-rows", in_verify(lambda x: x * 0)),
}
