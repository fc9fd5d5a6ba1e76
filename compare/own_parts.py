"""Each slot of a trace against the boundary that it declares, out of the layer sweep of the same passes, row by row.

What SGLang hands over as a slot is that boundary: the two are equal bit for bit, or but for a rounding. Where they are
not, the sweep says what the slot's rows are, though no reference is at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from drafttrace.compare.describe import RowIds, drafted_rows, part_rows
from drafttrace.compare.explain import stream_facts
from drafttrace.compare.facts import StreamFacts
from drafttrace.compare.kernels.blocks import hash_rows
from drafttrace.compare.locate import locate, neighbour_distances
from drafttrace.compare.measure import BLOCK_BYTES, Bools, measure_rows
from drafttrace.compare.result import RowPart
from drafttrace.compare.rowparts import NOISE, find_parts
from drafttrace.compare.sample import MAX_ROWS, MAX_VALUES, Sample, Stream, slot_streams, spread, sweep_streams
from drafttrace.compare.small_fits import small_fit
from drafttrace.compare.thresholds import Limits, Thresholds
from drafttrace.compare.undone import undo
from drafttrace.tracer.capture import Accepted, Capture, Ints
from drafttrace.tracer.rows import Floats

ROUNDING = 0.01
"""The relative L2 of a row that rounding alone does not leave (one more rounding to bf16 leaves 0.003)."""
_FEWEST = 4
_ALL = 0.9
_BEYOND = 0.1  # relative L2 of a row that is more than what a fit of all rows leaves


@dataclass(frozen=True)
class OwnPart:
    """Rows of a slot that are not the boundary that it declares. part: which ones, None for all of them.

    rows, of: how many differ, of how many that were compared. rel_l2, others: medians over them and over the rest.
    found: what they are, by the sweep. moved: (position, position of the sweep's row that it holds, bit for bit), where
    most of them are such. positions: ``[rows]``. limit: what a row was judged by; above
    ROUNDING where what all rows went through was taken out first.
    """

    slot: int
    said: int
    part: RowPart | None
    rows: int
    of: int
    rel_l2: float
    others: float
    found: StreamFacts
    positions: tuple[int, ...]
    moved: tuple[tuple[int, int], ...] = ()
    limit: float = ROUNDING


def own_parts(
    trace: Capture, thresholds: Thresholds, known: Mapping[int, frozenset[int]], skipped: frozenset[int | None]
) -> tuple[OwnPart, ...]:
    """The rows that differ, slot by slot; empty for anything but a trace, and where the sweep has no rows.

    known: by slot, rows that are told otherwise. skipped: slots that are told otherwise as a whole.
    """
    if not trace.format.startswith("drafttrace.trace"):
        return ()
    kept = np.flatnonzero((trace.table.accepted != Accepted.REJECTED) & trace.in_text(len(trace.table)))
    # The embedding's tap is no B0: pictures and a scale come after it.
    sweep = [s for s in sweep_streams("left", trace) if s.kind == "sweep"]
    found: list[OwnPart] = []
    for stream in slot_streams("left", trace):
        home = next((s for s in sweep if s.boundary == stream.boundary and s.rows.width == stream.rows.width), None)
        if home is None or stream.slot in skipped:
            continue
        index = kept[stream.has(kept) & home.has(kept)]
        told = np.isin(index, sorted(known.get(stream.slot, ())))
        if len(index) >= _FEWEST:
            found += _parts(trace, stream, home, sweep, index, told, thresholds)
    return tuple(found)


def _parts(
    trace: Capture,
    stream: Stream,
    home: Stream,
    sweep: Sequence[Stream],
    index: Ints,
    told: Bools,
    thresholds: Thresholds,
    limit: float = ROUNDING,
) -> Iterator[OwnPart]:
    """The rows ``index`` of one slot that differ by more than ``limit``, by what they have in common; then those that
    differ beside what all of them went through."""
    rows = measure_rows(stream.rows, index, home.rows, index)
    states = (rows.norm_left > 0) & (rows.norm_reference > 0) & np.isfinite(rows.rel_l2)
    far = states & (rows.rel_l2 > limit) & ~told
    if not far.any():
        return
    table = trace.table
    positions = table.position[index]
    told_by = table.token_id[index], table.phase[index], table.round[index]
    ids = RowIds(positions, *told_by, drafted_rows(trace)[index])
    # The two are the same tensor: a massive row counts like any other, and a row that is told otherwise does not.
    looked_at = replace(part_rows(rows, ids, thresholds), plain=states & ~told)
    others = states & ~far & ~told
    usual = float(np.median(rows.rel_l2[others])) if others.any() else float("nan")

    def made(here: Bools, part: RowPart | None) -> OwnPart:
        chosen = np.flatnonzero(here)
        return OwnPart(
            stream.slot,
            int(stream.boundary or 0),
            part,
            len(chosen),
            int((states & ~told).sum()),
            float(np.median(rows.rel_l2[here])),
            usual,
            _explained(stream, home, sweep, index[chosen], positions[chosen], thresholds),
            tuple(int(p) for p in positions[chosen]),
            _moved(stream, home, index, chosen, positions),
            limit,
        )

    if far.sum() >= _ALL * (states & ~told).sum():
        whole = made(far, None)
        yield whole
        explained = whole.found.explanation
        if explained is None or explained.fit.then is not None or explained.boundary != home.boundary:
            return
        chosen = spread(index[far], MAX_ROWS)
        undone = undo(explained.fit, Sample(chosen, chosen, table.position[chosen]), stream, home)
        if undone is not None and limit == ROUNDING:
            further = tuple(undone.of_origin(one) for one in sweep)
            back = further[[one is home for one in sweep].index(True)]
            least = max(_BEYOND, 4 * explained.fit.residual)
            yield from _parts(trace, undone.of_slot(stream), back, further, index, told, thresholds, least)
        return
    left = far.copy()
    for found in find_parts(looked_at, Limits(limit, limit, "the trace's own sweep"), thresholds):
        here = found.rows & left
        if here.any():
            yield made(here, found.part)
        left &= ~found.rows
    if left.any():
        yield made(left, _spread(positions[left], rows.rel_l2[left], int((states & ~told).sum()), usual, limit))


def _spread(positions: Ints, rel_l2: Floats, of: int, usual: float, limit: float) -> RowPart:
    """Rows that nothing but their difference holds together."""
    first, last = int(positions.min()), int(positions.max())
    return RowPart(
        "spread", NOISE, "", first, last, 1, len(positions), of, of, float(np.median(rel_l2)), usual, limit, 0.0
    )


def _moved(stream: Stream, home: Stream, index: Ints, chosen: Ints, positions: Ints) -> tuple[tuple[int, int], ...]:
    """The rows ``chosen`` that are the declared boundary's of other positions, where most are. Stored bytes are compared:
    in another number format they mean other values."""
    if stream.rows.dtype != home.rows.dtype:
        return ()
    theirs = hash_rows(home.rows, index, BLOCK_BYTES)
    places = {int(key): int(position) for key, position in zip(theirs[::-1], positions[::-1], strict=True)}
    ours = hash_rows(stream.rows, index[chosen], BLOCK_BYTES)
    pairs = [
        (int(p), places[int(key)]) for p, key in zip(positions[chosen], ours, strict=True) if int(key) in places
    ]
    return tuple(pairs) if 2 * len(pairs) > len(chosen) else ()


def _explained(
    stream: Stream, home: Stream, sweep: Sequence[Stream], index: Ints, positions: Ints, thresholds: Thresholds
) -> StreamFacts:
    """What these rows are: a boundary of the sweep, or a function of one."""
    most = min(MAX_ROWS, max(32, MAX_VALUES // max(1, stream.rows.width)))
    chosen = spread(np.arange(len(index)), most)
    sample = Sample(index[chosen], index[chosen], positions[chosen])
    atlas = tuple(s for s in sweep if s.rows.width == stream.rows.width and s.has(sample.left).all())
    near = neighbour_distances(sample, atlas) if len(atlas) > 1 else {}
    place = locate(sample, (stream,), atlas, thresholds.located, near)[0] if len(atlas) > 1 else None
    [found] = stream_facts((stream,), (place,), sample, atlas if place is not None else (), (home,), thresholds)
    if found.explanation is None and found.boundary in {None, stream.boundary}:
        small = small_fit(sample.read(stream), sample.read(home), home.name, stream.boundary, ROUNDING)
        found = found if small is None else replace(found, explanation=small)
    return found
