"""From row measures to the numbers of one slot in the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.measure import Bools, Doubles, RowMeasures, median, stats
from drafttrace.compare.outliers import ordinary, outliers
from drafttrace.compare.result import Group, Series, WorstRow
from drafttrace.compare.rowparts import DRAFT_GUESSED, TARGET_CHOSE, PartRows, odd_rows, plain_rows
from drafttrace.compare.thresholds import Thresholds
from drafttrace.tracer.capture import Accepted, Capture, Ints, Phase

MAX_SERIES = 2000
WORST = 12
BANDS = 8
ROUND_BANDS = 16


@dataclass(frozen=True)
class RowIds:
    """Who the compared rows are, one entry per pair.

    drafted: whether the row's token was guessed by the draft and accepted (in a verify pass all rows but the first).
    """

    position: Ints
    token_id: Ints
    phase: Ints
    round: Ints
    drafted: Bools

    @staticmethod
    def of(left: Capture, alignment: Alignment) -> RowIds:
        """The identities of an alignment's pairs, from the left side's row table."""
        rows = alignment.left_rows
        known = left.table.token_id[rows]
        positions = np.clip(alignment.positions, 0, max(0, len(left.tokens) - 1))
        tokens = left.tokens[positions] if len(left.tokens) else known
        return RowIds(
            position=alignment.positions,
            token_id=np.where(known >= 0, known, tokens),
            phase=left.table.phase[rows],
            round=left.table.round[rows],
            drafted=drafted_rows(left)[rows],
        )

    def at(self, keep: Bools) -> RowIds:
        """The identities of some of the rows."""
        return RowIds(*(getattr(self, f.name)[keep] for f in fields(self)))


def drafted_rows(left: Capture) -> Bools:
    """The rows of verify passes whose token the draft had guessed right; the first one of a pass the target chose."""
    table = left.table
    verified = (table.phase == Phase.VERIFY) & (table.accepted == Accepted.ACCEPTED)
    drafted = np.zeros(len(table), np.bool_)
    first = np.full(int(table.frame.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, table.frame[verified], table.position[verified])
    drafted[verified] = table.position[verified] > first[table.frame[verified]]
    return drafted


def phase_name(value: int) -> str:
    """``draft_extend_verify`` for Phase.DRAFT_EXTEND_VERIFY."""
    try:
        return Phase(value).name.lower()
    except ValueError:
        return f"phase {value}"


def ordinary_rows(rows: RowMeasures) -> Bools:
    """Rows that medians and verdicts are made from: finite, and not massive on either side."""
    return ordinary(*_norms(rows))


def outlier_rows(rows: RowMeasures, thresholds: Thresholds) -> Bools:
    """Rows that hold something else although the slot as a whole does not."""
    return outliers(rows.cosine, rows.cosine_trimmed, rows.rel_l2, *_norms(rows), thresholds)


def _norms(rows: RowMeasures) -> tuple[Doubles, Doubles]:
    """The norms of both sides, NaN for rows with a channel that is not finite."""
    return np.where(rows.nan_left, np.nan, rows.norm_left), np.where(
        rows.nan_reference, np.nan, rows.norm_reference
    )


def part_rows(rows: RowMeasures, ids: RowIds, thresholds: Thresholds) -> PartRows:
    """The rows as they are looked through for parts that differ."""
    norms = _norms(rows)
    return PartRows(
        position=ids.position,
        phase=ids.phase,
        names={int(phase): phase_name(int(phase)) for phase in np.unique(ids.phase)},
        rel_l2=rows.rel_l2,
        plain=plain_rows(*norms, rows.rel_l2),
        odd=odd_rows(rows.cosine, rows.cosine_trimmed, rows.rel_l2, *norms, thresholds),
        weight=np.ones(len(rows)),
        drafted=ids.drafted,
    )


def worst_rows(rows: RowMeasures, ids: RowIds, decode: Callable[[int], str] | None) -> tuple[WorstRow, ...]:
    """The rows with the largest relative L2, broken ones first."""
    badness = np.where(np.isfinite(rows.rel_l2), rows.rel_l2, np.inf)
    order = np.argsort(-badness, kind="stable")[:WORST]
    return tuple(
        WorstRow(
            position=int(ids.position[i]),
            token_id=int(ids.token_id[i]),
            token=decode(int(ids.token_id[i])) if decode is not None and ids.token_id[i] >= 0 else None,
            phase=phase_name(int(ids.phase[i])),
            round=int(ids.round[i]),
            cosine=float(rows.cosine[i]),
            rel_l2=float(rows.rel_l2[i]),
            cosine_trimmed=float(rows.cosine_trimmed[i]),
            norm_ratio=float(rows.norm_ratio[i]),
        )
        for i in order
        if badness[i] > 0
    )


def groups(rows: RowMeasures, ids: RowIds) -> tuple[Group, ...]:
    """The rows by phase, by accepted or not, by band of positions and by round."""
    return tuple(_group(name, rows, keep) for name, keep in _group_masks(ids) if keep.any())


def _group_masks(ids: RowIds) -> Iterator[tuple[str, Bools]]:
    for phase in np.unique(ids.phase):
        yield f"phase {phase_name(int(phase))}", ids.phase == phase
    verified = ids.phase == Phase.VERIFY
    yield DRAFT_GUESSED, verified & ids.drafted
    yield TARGET_CHOSE, verified & ~ids.drafted
    if len(ids.position):
        top = int(ids.position.max()) + 1
        width = max(1, -(-top // BANDS))
        for start in range(0, top, width):
            name = f"positions {start}-{min(top, start + width) - 1}"
            yield name, (ids.position >= start) & (ids.position < start + width)
    yield from _round_masks(ids)


def _round_masks(ids: RowIds) -> Iterator[tuple[str, Bools]]:
    """Every round by itself where there are few, else runs of rounds."""
    if not (ids.round >= 0).any():
        return
    count = int(ids.round.max()) + 1
    width = -(-count // ROUND_BANDS)
    for start in range(0, count, width):
        stop = min(count, start + width) - 1
        name = f"round {start}" if start == stop else f"rounds {start}-{stop}"
        yield name, (ids.round >= start) & (ids.round <= stop)


def _group(name: str, rows: RowMeasures, keep: Bools) -> Group:
    rel_l2 = rows.rel_l2[keep]
    return Group(
        name,
        len(rel_l2),
        median(rows.cosine[keep]),
        median(rel_l2),
        median(rows.norm_ratio[keep]),
        median(rows.cosine_trimmed[keep]),
        stats(rel_l2).p99,
    )


def series(rows: RowMeasures, ids: RowIds) -> Series:
    """Values by row, thinned evenly; the rows that could hold something else are kept, as many as there are plots for."""
    count = len(rows)
    keep = np.arange(count)
    if count > MAX_SERIES:
        badness = np.where(np.isfinite(rows.rel_l2), rows.rel_l2, np.inf)
        even = np.linspace(0, count - 1, MAX_SERIES // 2).round().astype(np.int64)
        keep = np.unique(np.concatenate([even, np.argsort(-badness, kind="stable")[: MAX_SERIES // 2]]))

    def floats(values: Doubles) -> tuple[float, ...]:
        return tuple([float(f"{value:.6g}") for value in values[keep].tolist()])

    norms, phases = _norms(rows), ids.phase[keep].tolist()
    names = {phase: phase_name(phase) for phase in set(phases)}
    return Series(
        position=tuple(ids.position[keep].tolist()),
        token_id=tuple(ids.token_id[keep].tolist()),
        phase=tuple([names[phase] for phase in phases]),
        round=tuple(ids.round[keep].tolist()),
        cosine=floats(rows.cosine),
        cosine_trimmed=floats(rows.cosine_trimmed),
        rel_l2=floats(rows.rel_l2),
        norm_left=floats(norms[0]),
        norm_reference=floats(norms[1]),
    )


def summary_stats(rows: RowMeasures) -> dict[str, object]:
    """The fields of :class:`SlotResult` that are statistics, over all finite rows (percentiles over ordinary ones)."""
    keep = ordinary_rows(rows)
    ulp = stats(rows.ulp[keep])
    return {
        "cosine": stats(rows.cosine[keep]),
        "cosine_trimmed": stats(rows.cosine_trimmed[keep]),
        "norm_left": stats(rows.norm_left),
        "norm_reference": stats(rows.norm_reference),
        "norm_ratio": stats(rows.norm_ratio[keep]),
        "rel_l2": stats(rows.rel_l2[keep]),
        "max_abs": float(np.nanmax(rows.max_abs, initial=0.0)) if np.isfinite(rows.max_abs).any() else float("nan"),
        "ulp_p50": ulp.p50,
        "ulp_p99": ulp.p99,
        "massive_rows": int((~keep).sum() - (rows.nan_left | rows.nan_reference).sum()),
        "nan_rows": int((rows.nan_left | rows.nan_reference).sum()),
        "zero_rows": int((rows.zero_left | rows.zero_reference).sum()),
        "constant_rows": int(
            ((rows.flat_left & ~rows.nan_left) | (rows.flat_reference & ~rows.nan_reference)).sum()
        ),
    }
