"""Parts of a slot's rows that differ while the others do not: a phase, runs of positions, every Nth row, or a share.

A median over all rows says nothing of a fault that touches less than half of them. The rows beyond a limit are looked
at together: whether they are one phase's, lie side by side, or stand at even distances; else how large a part they are.
Needs no tensors, so that a saved result can be looked through again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.measure import Bools, Doubles, massive_rows
from drafttrace.compare.outliers import outliers
from drafttrace.compare.result import RowPart, Series
from drafttrace.compare.thresholds import Limits, Thresholds
from drafttrace.tracer.capture import Ints

NOISE, MATCH, SLIGHT, ODD = "noise", "match", "slight", "odd"
TARGET_CHOSE, DRAFT_GUESSED = "tokens that the target chose", "accepted draft tokens"  # as the groups are called
_FEWEST = 4  # rows that a fit can be made and judged on
_FEW = 3  # rows of a phase that is wrong as a whole
_PAIR = 2  # one row alone is told in a note, see few_beyond
_RUN, _DENSE = (
    6,
    0.85,
)  # rows of a run at least, and the share of the rows between its ends that are beyond the limit
_MOST_RUNS = 3
_IN, _OUT = 0.6, 0.1  # shares of rows beyond the limit: inside a phase that is wrong, and in all others
_MOST_STEP = 64
_SLIGHT, _SAME = 3.0, 0.01  # times the median, and relative L2: what is worth a fit though it is below every limit
_APART = 2.0  # times the median of the others
_PLAIN = 0.1  # share of the rows that have to be right where most are wrong
_DIGITS = 5


@dataclass(frozen=True)
class PartRows:
    """The rows of one slot, all arrays ``[n]``. phase: a number per phase, named by ``names``. plain: rows that count,
    see :func:`plain_rows`. odd: rows that hold something else. weight: how many rows one stands for.
    drafted: rows of a verify pass whose token the draft had guessed.
    """

    position: Ints
    phase: Ints
    names: dict[int, str]
    rel_l2: Doubles
    plain: Bools
    odd: Bools
    weight: Doubles
    drafted: Bools


@dataclass(frozen=True)
class FoundPart:
    """A part and its rows, a mask ``[n]``."""

    part: RowPart
    rows: Bools


def find_parts(rows: PartRows, limits: Limits, thresholds: Thresholds) -> tuple[FoundPart, ...]:
    """The parts of a slot that differ while the others do not; empty where none does, or all do.

    The rows beyond the noise limit are tried first, then those beyond the limit for equal, those that hold something
    else, and those that are far beyond the median though below every limit. ``level`` of a part says which they were.
    """
    plain = rows.rel_l2[rows.plain]
    if len(plain) < 2 * _FEWEST:
        return ()
    slight = max(_SLIGHT * float(np.median(plain)), _SAME)
    lowest = min(slight, limits.match)
    if int((plain > lowest).sum() + rows.odd.sum()) < _PAIR:
        return ()
    beyond = [(NOISE, limits.noise), (MATCH, limits.match), (ODD, thresholds.row), (SLIGHT, slight)]
    for level, limit in beyond[: 1 if limits.narrow else None]:
        if level == SLIGHT and slight >= limits.match:
            continue
        far = rows.odd if level == ODD else rows.plain & (rows.rel_l2 > limit)
        found = tuple(_parts(rows, far, level, limit, limits, thresholds))
        if found:
            return found
    return ()


def _parts(
    rows: PartRows, far: Bools, level: str, limit: float, limits: Limits, thresholds: Thresholds
) -> Iterator[FoundPart]:
    count, every = float(rows.weight[far].sum()), float(rows.weight[rows.plain].sum())
    if int(far.sum()) < (_PAIR if level == NOISE else _FEWEST):
        return
    most = count > 0.5 * every
    others = rows.plain & ~far & (rows.rel_l2 <= (limits.match if most else np.inf))
    if float(rows.weight[others].sum()) < max(_FEWEST, _PLAIN * every) or (most and level != NOISE):
        return
    usual = float(np.median(rows.rel_l2[others]))
    if float(np.median(rows.rel_l2[far])) < _APART * usual or usual > limits.noise:
        return  # the upper end of an even noise, or a slot the others of which are no better

    def made(kind: str, here: Bools, scope: Bools, phase: str = "", step: int = 1) -> FoundPart:
        positions = rows.position[here]
        part = RowPart(
            kind=kind,
            level=level,
            phase=phase,
            first=int(positions.min()),
            last=int(positions.max()),
            step=step,
            rows=round(float(rows.weight[here].sum())),
            of=round(float(rows.weight[scope].sum())),
            compared=round(every),
            rel_l2=_short(np.median(rows.rel_l2[here])),
            others_rel_l2=_short(usual),
            limit=_short(limit),
            share_limit=thresholds.part if kind == "spread" else _DENSE if kind == "run" else _IN,
        )
        return FoundPart(part, here)

    phases = _phases(rows, far, rows.phase, rows.names) or _phases(rows, far, *_by_choice(rows))
    if phases:
        yield from (made("phase", far & scope, scope & rows.plain, name) for name, scope in phases)
        return
    runs = _runs(rows, far)
    if runs:
        yield from (made("run", far & scope, scope & rows.plain) for scope in runs)
        return
    step = _step(rows, far)
    if step is not None and not most:
        yield made("every", far, step[1] & rows.plain, step=step[0])
    elif most or limits.narrow or _told_alone(far, rows.odd):
        return
    elif level == ODD or count >= thresholds.part * every:
        yield made("spread", far, rows.plain)


def _told_alone(far: Bools, odd: Bools) -> bool:
    """Too few to be fitted, and all of them rows that hold something else: each of these is told by itself."""
    return int(far.sum()) < _FEWEST and bool(odd[far].all())


def few_beyond(rows: PartRows, limits: Limits) -> Ints:
    """Positions of the rows beyond the noise limit that hold nothing else: where they make no part, they are noted. Of
    rows that repeat each other nobody knows whether one of them holds something else."""
    counted = rows.plain if limits.narrow else rows.plain & ~rows.odd
    positions: Ints = np.sort(rows.position[counted & (rows.rel_l2 > limits.noise)])
    return positions


def _by_choice(rows: PartRows) -> tuple[Ints, dict[int, str]]:
    """The phases once more, with the verify rows apart by who chose their token."""
    numbers = {name: number for number, name in rows.names.items()}
    verify = numbers.get("verify")
    if verify is None:
        return rows.phase, {}
    apart = max(rows.names) + 1
    names = {**rows.names, verify: TARGET_CHOSE, apart: DRAFT_GUESSED}
    return np.where((rows.phase == verify) & rows.drafted, apart, rows.phase), names


def _phases(rows: PartRows, far: Bools, phase: Ints, names: dict[int, str]) -> list[tuple[str, Bools]]:
    """The phases nearly all rows of which are beyond the limit, where hardly any others are."""
    found, inside = [], np.zeros(len(far), np.bool_)
    for number, name in names.items():
        scope = phase == number
        here = scope & rows.plain
        if here.sum() >= _FEW and _share(rows, far, here) >= _IN:
            found.append((name, scope))
            inside |= scope
    outside = rows.plain & ~inside
    return found if found and outside.sum() >= _FEWEST and _share(rows, far, outside) <= _OUT else []


def _share(rows: PartRows, far: Bools, here: Bools) -> float:
    return float(rows.weight[far & here].sum() / max(1e-9, float(rows.weight[here].sum())))


def _runs(rows: PartRows, far: Bools) -> list[Bools]:
    """Runs of rows side by side that hold most of the rows beyond the limit, the longest first."""
    order = np.argsort(rows.position, kind="stable")
    order = order[rows.plain[order] | far[order]]
    places = np.flatnonzero(far[order])
    groups = np.split(places, np.flatnonzero(np.diff(places) > 2) + 1)
    long = [g for g in groups if len(g) >= _RUN and len(g) >= _DENSE * (g[-1] - g[0] + 1)]
    long = sorted(long, key=len, reverse=True)[:_MOST_RUNS]
    if not long or sum(map(len, long)) < _IN * len(places):
        return []
    found = []
    for group in long:
        scope = np.zeros(len(far), np.bool_)
        scope[order[group[0] : group[-1] + 1]] = True
        found.append(scope)
    return found


def _step(rows: PartRows, far: Bools) -> tuple[int, Bools] | None:
    """(N, rows at that place) where the rows beyond the limit are every Nth one; None where they are not."""
    positions = rows.position[far]
    if len(positions) < _FEWEST:
        return None
    step = int(np.gcd.reduce(np.diff(np.sort(positions)))) if len(positions) > 1 else 1
    if not 2 <= step <= _MOST_STEP:
        return None
    first, last = positions.min(), positions.max()
    scope = (rows.position % step == first % step) & (rows.position >= first) & (rows.position <= last)
    return (step, scope) if far[scope & rows.plain].mean() >= _DENSE else None


def _short(value: float | np.floating) -> float:
    """Rounded, so that a saved result's rows, which are rounded too, give the same."""
    return float(f"{float(value):.{_DIGITS}g}")


def of_series(series: Series, compared: int, kept_worst: int, thresholds: Thresholds) -> PartRows:
    """The rows that a result keeps. compared: how many there were. kept_worst: how many of the worst were kept where not
    all of them are; the others were thinned evenly, so that each stands for several."""
    position, rel_l2, left, reference, cosine, trimmed = (
        np.array(getattr(series, name), np.float64)
        for name in ("position", "rel_l2", "norm_left", "norm_reference", "cosine", "cosine_trimmed")
    )
    names = sorted(set(series.phase))
    numbers = {name: number for number, name in enumerate(names)}
    weight = np.ones(len(position))
    if compared > len(position) > kept_worst:
        badness = np.where(np.isfinite(rel_l2), rel_l2, np.inf)
        below = badness < np.sort(badness)[-kept_worst]
        weight[below] = (compared - int((~below).sum())) / max(1, int(below.sum()))
    return PartRows(
        position=position.astype(np.int64),
        phase=np.array([numbers[name] for name in series.phase], np.int64),
        names=dict(enumerate(names)),
        rel_l2=rel_l2,
        plain=plain_rows(left, reference, rel_l2),
        odd=odd_rows(cosine, trimmed if len(trimmed) else cosine, rel_l2, left, reference, thresholds),
        weight=weight,
        drafted=_drafted(position, series),
    )


def _drafted(position: Doubles, series: Series) -> Bools:
    """All rows of a verify pass but its first."""
    verify = np.array([phase == "verify" for phase in series.phase], np.bool_)
    rounds = np.array(series.round, np.int64)
    first: dict[int, float] = {}
    for here, number in zip(position[verify].tolist(), rounds[verify].tolist(), strict=True):
        first[number] = min(here, first.get(number, here))
    starts = np.array([first.get(number, -1.0) for number in rounds.tolist()])
    drafted: Bools = verify & (position > starts)
    return drafted


def plain_rows(norm_left: Doubles, norm_reference: Doubles, rel_l2: Doubles) -> Bools:
    """Rows that a part is made of: no broken or zero ones, and none that is massive on both sides (on one side only, it
    is a row that differs)."""
    keep: Bools = (norm_left > 0) & (norm_reference > 0) & np.isfinite(rel_l2)
    keep &= ~(massive_rows(norm_left) & massive_rows(norm_reference))
    return keep


def odd_rows(
    cosine: Doubles,
    trimmed: Doubles,
    rel_l2: Doubles,
    norm_left: Doubles,
    norm_reference: Doubles,
    thresholds: Thresholds,
) -> Bools:
    """Rows that hold something else, without those that are zero or broken: these are named as such."""
    odd = outliers(cosine, trimmed, rel_l2, norm_left, norm_reference, thresholds)
    kept: Bools = odd & (norm_left > 0) & (norm_reference > 0) & np.isfinite(rel_l2)
    return kept


def sure(parts: Sequence[RowPart]) -> tuple[RowPart, ...]:
    """The parts that are beyond the noise limit: a slot that has one is a mismatch."""
    return tuple(part for part in parts if part.level == NOISE)
