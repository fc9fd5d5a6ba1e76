"""Rows of one capture that can be no state at all: not finite, zero everywhere, or the same row for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.kernels.blocks import hash_rows
from drafttrace.compare.measure import BLOCK_BYTES, Bools
from drafttrace.compare.row_checks import RowChecks, check_rows
from drafttrace.compare.taps import LAST, TARGET, Tap, feeds, taps
from drafttrace.tracer.capture import Capture, Ints, Phase

NOT_FINITE, ZERO, CONSTANT = "nan-inf", "zero-rows", "constant-rows"
KINDS = (NOT_FINITE, ZERO, CONSTANT)
"""What is looked for, by the id of its finding."""
_MOST = 50
_FEWEST = 4  # rows, of which more than half have to be alike
_FEWEST_TOKENS = 3
_NARROW = 8  # channels below which one value in all of them, or the same few, can be chance


@dataclass(frozen=True)
class RowPlace:
    """Where a row stands. round, step: -1 where there is none."""

    position: int
    phase: Phase
    round: int
    step: int
    frame: int


@dataclass(frozen=True)
class BrokenTap:
    """Rows of one kind in one tap: how many of ``rows``, the positions of the first fifty, and the first one computed."""

    tap: Tap
    kind: str
    rows: int
    count: int
    at: tuple[int, ...]
    begins: RowPlace

    @property
    def slot(self) -> int | None:
        """The slot that it is a state of; see :class:`Tap`."""
        return self.tap.slot

    def before(self, other: BrokenTap) -> bool:
        """Whether it was computed first."""
        mine, theirs = self.begins.frame, other.begins.frame
        return (mine, self.tap.level) <= (theirs, other.tap.level)


@dataclass(frozen=True)
class Measured:
    """What is known of a side's rows from comparing it. rows: those that were compared. sound: the slots (EMBED and LAST
    too) in which none of these is broken, so that they need not be read again."""

    rows: Ints
    sound: frozenset[int] = frozenset()


def find_broken(capture: Capture, measured: Measured | None = None) -> tuple[BrokenTap, ...]:
    """Every tap with such rows, those that were computed first coming first.

    measured: where it was compared. Then zeros of a dump count where they were: writers pad with them.
    """
    found = []
    for tap in taps(capture):
        if len(tap.index) == 0:
            continue
        if measured is not None and tap.model == TARGET and tap.slot in measured.sound:
            checks = _not_measured(tap, measured.rows)
        else:
            checks = check_rows(tap.rows, tap.index, tap.columns)
        bad = {NOT_FINITE: _not_finite(tap, checks), ZERO: checks.zero}
        if measured is not None and not capture.format.startswith("drafttrace.trace"):
            bad[ZERO] = bad[ZERO] & np.isin(tap.index, measured.rows)
        if tap.by_token and bad[ZERO].any() and _zero_vector(capture, tap, checks.zero, measured is not None):
            del bad[ZERO]
        if not tap.recycled:  # what a draft step takes up is looked at beside what was left behind
            bad[CONSTANT] = _constant(tap, checks)
        found += [_broken(tap, kind, mask) for kind, mask in bad.items() if mask.any()]
    return tuple(sorted(found, key=lambda one: (one.begins.frame, one.tap.level)))


def first_causes(broken: Sequence[BrokenTap], kind: str) -> tuple[BrokenTap, ...]:
    """Those of one kind that do not follow from another: nothing that they are computed from was broken before."""
    same = [one for one in broken if one.kind == kind]
    everywhere = kind == NOT_FINITE
    return tuple(
        one
        for one in same
        if not any(
            other is not one and feeds(other.tap, one.tap, everywhere) and other.before(one) for other in same
        )
    )


def _not_measured(tap: Tap, measured: Ints) -> RowChecks:
    """The checks of a tap of which the rows ``measured`` are known to be sound: those are not read again."""
    rest = ~np.isin(tap.index, measured)
    read = check_rows(tap.rows, tap.index[rest])
    masks = np.zeros((3, len(tap.index)), np.bool_)
    masks[:, rest] = (read.not_finite, read.zero, read.flat)
    return RowChecks(masks[0], masks[1], masks[2], hash_rows(tap.rows, tap.index, BLOCK_BYTES))


def _broken(tap: Tap, kind: str, mask: Bools) -> BrokenTap:
    rows, table = tap.index[mask], tap.table
    first = int(rows[np.argmin(table.frame[rows])])
    place = RowPlace(
        *(int(table.position[first]), Phase(int(table.phase[first]))),
        *(int(column[first]) for column in (table.round, table.step, table.frame)),
    )
    at = tuple(int(p) for p in table.position[rows][:_MOST])
    return BrokenTap(tap, kind, len(tap.index), len(rows), at, place)


def _not_finite(tap: Tap, checks: RowChecks) -> Bools:
    """A logit of minus infinity is a token that may not be said, unless it is the best one."""
    if tap.name != "topk_logits" or not checks.not_finite.any():
        return checks.not_finite
    mask = checks.not_finite.copy()
    there = np.flatnonzero(mask)
    values = tap.rows.take(tap.index[there])
    values[:, 1:][np.isneginf(values[:, 1:])] = 0
    mask[there] = ~np.isfinite(values).all(1)
    return mask


def _zero_vector(capture: Capture, tap: Tap, mask: Bools, beside: bool) -> bool:
    """Whether the zeros of an embedding are the vector of one token, as padding's is; in a slot, as the embedding says."""
    rows = tap.index[mask]
    tokens = tap.table.token_id[tap.index]
    same = tokens == tap.table.token_id[rows[0]]
    if 2 * len(rows) > len(tokens) or not np.array_equal(same, mask):
        return False
    if tap.slot is None or tap.slot < 0:
        return True
    if capture.embed is None:
        return beside  # where one side alone has them, that is told of the compared slots
    held = capture.embed.rows
    return len(held) > int(rows.max()) and not held.take(rows).any()


def _constant(tap: Tap, checks: RowChecks) -> Bools:
    """The rows that are one and the same for different tokens, where most are, of all or of one kind of pass; and rows of
    one value, likewise. What repeats in some of a slot's rows is looked for elsewhere."""
    every = np.ones(len(checks), np.bool_)
    found = _alike(tap, checks, every)
    if found.any() or (tap.model == TARGET and tap.slot is not None and tap.slot >= LAST):
        return found
    phases, steps = tap.table.phase[tap.index], tap.table.step[tap.index]
    for phase in np.unique(phases):
        here = phases == phase
        same = _alike(tap, checks, here)
        if not same.any() and phase == Phase.DRAFT_DECODE and not tap.by_token:
            for step in np.unique(steps[here]):
                same |= _alike(tap, checks, here & (steps == step))
        found |= same
    return found


def _alike(tap: Tap, checks: RowChecks, scope: Bools) -> Bools:
    """The rows of ``scope`` that are alike, where most of it are."""
    states = scope & ~(checks.not_finite | checks.zero)
    none = np.zeros(len(checks), np.bool_)
    width = len(range(*tap.columns.indices(tap.rows.width)))
    tokens = tap.table.token_id[tap.index]
    if states.sum() < _FEWEST or width < _NARROW:
        return none
    flat = checks.flat & states
    if 2 * flat.sum() > states.sum():
        return np.asarray(flat, np.bool_)
    keys, counts = np.unique(checks.keys[states], return_counts=True)
    alike: Bools = states & (checks.keys == keys[np.argmax(counts)])
    named = tokens[alike]
    if 2 * alike.sum() <= states.sum() or len(np.unique(named[named >= 0])) < _FEWEST_TOKENS:
        return none
    return alike
