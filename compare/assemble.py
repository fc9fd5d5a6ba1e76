"""The parts of a result that are copied or computed from facts: sides, slots, matrices, acceptance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.describe import groups, outlier_rows, part_rows, series, summary_stats, worst_rows
from drafttrace.compare.facts import VALUE, StreamFacts
from drafttrace.compare.judge import judge_slot, limits_of
from drafttrace.compare.locate import Distance
from drafttrace.compare.measure import duplicate_rows
from drafttrace.compare.measured import LAST, MeasuredSlot
from drafttrace.compare.result import (
    AlignmentInfo,
    BestMatch,
    FirstDifference,
    Judged,
    Matrix,
    NoiseInfo,
    SideInfo,
    Skipped,
    SlotResult,
)
from drafttrace.compare.rounding import few_kinds, walk
from drafttrace.compare.rowparts import find_parts
from drafttrace.compare.sample import Stream
from drafttrace.compare.streams import Location
from drafttrace.compare.thresholds import Noise, Thresholds
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture

NAN = float("nan")


def side_info(capture: Capture) -> SideInfo:
    """What the result says of one side."""
    sources = sorted({slot.source for slot in capture.slots if slot.boundary is not None})
    wiring = capture.wiring
    return SideInfo(
        path=capture.spec or capture.path,
        format=capture.format,
        recognised_by=capture.recognised_by,
        tokens=len(capture.tokens),
        prompt_length=capture.prompt_length,
        hidden_size=capture.hidden_size,
        dtype=str(capture.slots[0].rows.dtype) if capture.slots else None,
        slots=tuple(slot.name for slot in capture.slots),
        wiring=tuple(boundary_name(k) if k is not None else None for k in wiring)
        if any(k is not None for k in wiring)
        else None,
        wiring_source="; ".join(sources) or None,
        last=capture.last.name if capture.last is not None else None,
        last_norm=capture.last.norm.value if capture.last is not None else None,
        boundaries=tuple(boundary_name(k) for k in sorted(capture.boundaries)),
        complete=capture.complete,
        notes=tuple(capture.notes),
    )


def alignment_info(alignment: Alignment | None, left: Capture, difference: FirstDifference | None) -> AlignmentInfo:
    """How rows were paired, for the result."""
    if alignment is None:
        return AlignmentInfo(0, len(left.table), 0, 0, 0.0, ())
    return AlignmentInfo(
        rows_compared=len(alignment),
        rows_left=alignment.rows_left,
        rows_reference=alignment.rows_reference,
        token_shift=alignment.shift,
        coverage=len(alignment) / max(1, alignment.reference_limit),
        skipped=tuple(Skipped(reason, count) for reason, count in alignment.skipped.items()),
        first_difference=difference,
    )


def slot_result(
    measured: MeasuredSlot,
    location: Location | None,
    thresholds: Thresholds,
    noise: Noise | None,
    decode: Callable[[int], str] | None,
) -> SlotResult:
    """One slot's numbers, judged."""
    index, left, reference, rows, ids = (
        measured.index,
        measured.left,
        measured.reference,
        measured.measures,
        measured.ids,
    )
    ours, theirs = _facts_of(location, "left", index), _facts_of(location, "reference", index)
    floor = noise.of_slot(index) if noise is not None else None
    made = SlotResult(
        slot=index,
        left=left.name,
        reference=reference.name,
        **_places(left, reference, ours, theirs),
        rows=len(rows),
        trimmed_channels=len(measured.massive),
        duplicate_rows=duplicate_rows(left.rows, measured.pairs.left_rows, ids.token_id),
        outlier_rows=int(outlier_rows(rows, thresholds).sum()),
        worst=worst_rows(rows, ids, decode),
        groups=groups(rows, ids),
        series=series(rows, ids),
        verdict="",
        judged=Judged(NAN, NAN, NAN, ""),
        neighbour_rel_l2=_neighbour(location, theirs, ours if index == LAST else None),
        noise_rel_l2=floor[0] if floor is not None else NAN,
        noise_rel_l2_p99=floor[1] if floor is not None else NAN,
        rounding=walk(_place_of(theirs, ours), left, reference),
        kinds=few_kinds(location.sample, reference, ids.token_id) if location is not None else 0,
        best_match=_best_match(location, ours, left.name),
        **summary_stats(rows),  # type: ignore[arg-type]
    )
    found = find_parts(part_rows(rows, ids, thresholds), limits_of(made, thresholds), thresholds)
    return judge_slot(replace(made, parts=tuple(one.part for one in found)), thresholds)


def _places(
    left: Stream, reference: Stream, ours: StreamFacts | None, theirs: StreamFacts | None
) -> dict[str, Any]:
    """Which boundary each side is, and by what. A boundary of a sweep is one by itself."""
    places: dict[str, Any] = {}
    for side, stream, facts in (("left", left, ours), ("reference", reference, theirs)):
        swept = stream.kind == "sweep"
        places[f"{side}_boundary"] = boundary_name(stream.boundary) if swept else _shown(facts)
        places[f"{side}_by"] = VALUE if swept else facts.by if facts is not None else None
    return places


def _facts_of(location: Location | None, side: str, index: int) -> StreamFacts | None:
    if location is None:
        return None
    streams = location.left if side == "left" else location.reference
    return next((s for s in streams if s.index == index), None)


def _shown(facts: StreamFacts | None) -> str | None:
    return (
        boundary_name(facts.boundary)
        if facts is not None and facts.boundary is not None and facts.boundary >= 0
        else None
    )


def _neighbour(location: Location | None, *facts: StreamFacts | None) -> float:
    """How far the nearest boundary next to the first known one is. A normed last state stands for the boundary below it."""
    known = _place_of(*facts)
    return location.neighbours.get(known, NAN) if location is not None and known is not None else NAN


def _place_of(*facts: StreamFacts | None) -> int | None:
    """The first boundary that is known."""
    return next((f.boundary for f in facts if f is not None and f.boundary is not None), None)


def _best_match(location: Location | None, ours: StreamFacts | None, name: str) -> BestMatch | None:
    """The reference state nearest to a left slot; where a sweep located the slot, its boundary and margin there."""
    if location is None:
        return None
    line = {n: d for n, d in location.cross.get(name, {}).items() if np.isfinite(d.rel_l2)}
    if not line:
        return None
    ranked = sorted(line.items(), key=lambda one: one[1].rel_l2)
    best, distance = ranked[0]
    margin = ranked[1][1].rel_l2 / distance.rel_l2 if len(ranked) > 1 and distance.rel_l2 > 0 else 1e6
    place = ours.located.by_value if ours is not None and ours.located is not None else None
    if place is not None and place.found:
        return BestMatch(best, boundary_name(place.boundary), distance.rel_l2, min(place.margin, 1e6), "value")
    return BestMatch(
        best, _shown(ours), distance.rel_l2, min(margin, 1e6), ours.by or "value" if ours is not None else "value"
    )


def cross_matrix(cross: Mapping[str, Mapping[str, Distance]]) -> Matrix | None:
    """The slot by slot matrix."""
    if not cross:
        return None
    rows = tuple(cross)
    columns = tuple(next(iter(cross.values())))
    return Matrix(
        rows,
        columns,
        tuple(tuple(cross[r][c].rel_l2 for c in columns) for r in rows),
        tuple(tuple(cross[r][c].cosine for c in columns) for r in rows),
    )


def sweep_matrix(location: Location | None) -> Matrix | None:
    """Every slot of both sides against every boundary of the sweep."""
    if location is None or location.atlas is None:
        return None
    streams = [s for s in (*location.left, *location.reference) if s.located is not None]
    boundaries = sorted({k for s in streams if s.located for k in s.located.rel_l2})
    if not streams:
        return None

    def line(values: Mapping[int, float]) -> tuple[float, ...]:
        return tuple(values.get(k, NAN) for k in boundaries)

    return Matrix(
        tuple(f"{s.side} {s.name}" for s in streams),
        tuple(boundary_name(k) for k in boundaries),
        tuple(line(s.located.rel_l2) for s in streams if s.located),
        tuple(line(s.located.cosine) for s in streams if s.located),
    )


def noise_info(noise: Noise | None) -> NoiseInfo:
    """Where the limits come from."""
    if noise is None:
        return NoiseInfo("not recorded: neighbouring boundaries and the number format", (), ())
    return NoiseInfo(noise.source, noise.rel_l2, noise.rel_l2_p99)


def environment_of(left: Capture) -> dict[str, Any]:
    """The trace's environment block."""
    block = left.about.get("environment")
    return dict(block) if isinstance(block, Mapping) else {}


def configs_of(left: Capture, reference: Capture | None) -> dict[str, Any]:
    """The blocks that a bug report needs: wiring, draft config, request, and what the reference says of itself."""
    found: dict[str, Any] = {}
    for name in ("wiring", "draft_config", "request", "server_args"):
        if isinstance(left.about.get(name), Mapping):
            found[name] = left.about[name]
    if reference is not None and reference.about:
        found["reference"] = {k: v for k, v in reference.about.items() if k not in {"environment", "server_args"}}
    return found
