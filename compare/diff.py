"""Two captures in, a result with a named cause out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from drafttrace import __version__
from drafttrace.compare import assemble
from drafttrace.compare.align import Alignment, plan
from drafttrace.compare.describe import RowIds
from drafttrace.compare.facts import Facts, RowFacts
from drafttrace.compare.findings import diagnose
from drafttrace.compare.findings.tokens import first_difference
from drafttrace.compare.inside import look_inside
from drafttrace.compare.judge import overall, summary_of
from drafttrace.compare.measure import RowMeasures, massive_channels, measure_rows
from drafttrace.compare.oddrows import row_facts
from drafttrace.compare.ranks import RankFacts, RankRows, compare_hashes, find_partial_sum
from drafttrace.compare.result import EXIT_CODES, Result, SlotResult
from drafttrace.compare.sample import MIN_ROWS, Stream
from drafttrace.compare.streams import Location, Sides, Wirings, find_shift, locate_all, wirings
from drafttrace.compare.thresholds import DEFAULT, Noise, Thresholds
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.errors import NothingToCompare

Decode = Callable[[int], str]
NO_WIRINGS = Wirings((), (), None, None, None)
NO_RANKS = RankFacts()


def diff(
    left: Capture,
    reference: Capture | None,
    *,
    thresholds: Thresholds = DEFAULT,
    noise: Noise | None = None,
    decode: Decode | None = None,
    ranks: Sequence[RankRows] = (),
    rank_traces: Sequence[Capture] = (),
) -> Result:
    """Compare a capture with a reference; without one, check the capture against itself.

    decode turns a token id into text for the reports. noise is a recorded self-comparison (see
    :func:`measure_noise`). ranks: the row hashes that the left trace keeps of every rank. rank_traces: traces that
    the other ranks recorded of the same request (``serve --all-ranks``), to find sums that were never added up.
    Raises NothingToCompare where the two cannot belong together: another hidden size, or a side without any state.
    """
    compared, divergences = compare_hashes(ranks)
    between = RankFacts(compared, divergences)
    judging = _Judging(thresholds, noise, decode)
    if reference is None:
        return _finish(_Work(left, None, None, ranks=between), judging)
    _check(left, reference)
    sides = Sides.of(left, reference)
    alignment = _aligned(left, reference, sides)
    if len(alignment) == 0:
        return _finish(_Work(left, reference, alignment, ranks=between), judging)
    location = locate_all(alignment, sides, thresholds)
    slots, odd = _measure_slots(left, sides, alignment, location, judging)
    others = _measure_others(left, sides, alignment, location, judging)
    partial = find_partial_sum(left, rank_traces, reference, location.sample)
    between = replace(between, partial=partial)
    work = _Work(left, reference, alignment, location, slots, others, odd, wirings(location), between)
    return _finish(work, judging)


def measure_noise(one: Capture, two: Capture) -> Noise:
    """The noise floor from two recordings of the same thing: relative L2 per slot, median and 99th percentile."""
    result = diff(one, two)
    if result.alignment.rows_compared == 0:
        raise NothingToCompare(
            f"The two noise recordings '{one.path}' and '{two.path}' share no rows; record the same prompt twice."
        )
    return Noise(
        f"{one.path} against {two.path}",
        tuple(slot.rel_l2.p50 for slot in result.slots),
        tuple(slot.rel_l2.p99 for slot in result.slots),
    )


@dataclass(frozen=True)
class _Judging:
    thresholds: Thresholds
    noise: Noise | None
    decode: Decode | None


@dataclass(frozen=True)
class _Work:
    left: Capture
    reference: Capture | None
    alignment: Alignment | None
    location: Location | None = None
    slots: tuple[SlotResult, ...] = ()
    others: tuple[SlotResult, ...] = ()
    odd: tuple[RowFacts, ...] = ()
    wirings: Wirings = NO_WIRINGS
    ranks: RankFacts = NO_RANKS


def _check(left: Capture, reference: Capture) -> None:
    for side, capture in (("left", left), ("reference", reference)):
        if capture.hidden_size is None:
            raise NothingToCompare(
                f"The {side} file '{capture.path}' holds no hidden states of the target; record it with its taps on."
            )
    if left.hidden_size != reference.hidden_size:
        raise NothingToCompare(
            f"The hidden sizes differ: {left.hidden_size} in '{left.path}', {reference.hidden_size} in '{reference.path}'; "
            "the two come from different targets, or the reference was split into the wrong number of slots."
        )


def _aligned(left: Capture, reference: Capture, sides: Sides) -> Alignment:
    """Pairs by ids, moved as the values ask. Ids that are moved while the values are not mean other prompts."""
    alignment = plan(left, reference)
    shift = find_shift(alignment, sides) if len(alignment) >= MIN_ROWS else 0
    if shift:
        return alignment.moved(shift)
    if not alignment.offset:
        return alignment
    plain = plan(left, reference, offsets=False)
    return replace(plain, offset=alignment.offset, matched=alignment.matched)


@dataclass(frozen=True)
class MeasuredSlot:
    """One slot of the left side against the slot of the reference in the same place, every paired row measured.

    massive: the channels that ``measures.cosine_trimmed`` leaves out.
    """

    index: int
    left: Stream
    reference: Stream
    massive: Ints
    measures: RowMeasures


def measure_slots(left: Capture, reference: Capture) -> tuple[RowIds, tuple[MeasuredSlot, ...]]:
    """Who the paired rows are, and every slot's measures of them, paired as :func:`diff` pairs them.

    Raises NothingToCompare where :func:`diff` does, and where no row of one side belongs to one of the other.
    """
    _check(left, reference)
    sides = Sides.of(left, reference)
    alignment = _aligned(left, reference, sides)
    if len(alignment) == 0:
        raise NothingToCompare(
            f"No row of '{left.path}' belongs to one of '{reference.path}'; they were made from other tokens."
        )
    location = locate_all(alignment, sides, DEFAULT)
    return RowIds.of(left, alignment), tuple(_measured(sides, alignment, location))


def _measured(sides: Sides, alignment: Alignment, location: Location) -> Iterator[MeasuredSlot]:
    for index, (mine, theirs) in enumerate(zip(sides.left_slots, sides.reference_slots, strict=False)):
        massive = massive_channels(location.sample.read(theirs)) if len(location.sample) else np.empty(0, np.int64)
        measures = measure_rows(mine.rows, alignment.left_rows, theirs.rows, alignment.reference_rows, massive)
        yield MeasuredSlot(index, mine, theirs, massive, measures)


def _measure_slots(
    left: Capture,
    sides: Sides,
    alignment: Alignment,
    location: Location,
    judging: _Judging,
) -> tuple[tuple[SlotResult, ...], tuple[RowFacts, ...]]:
    ids = RowIds.of(left, alignment)
    results, odd = [], []
    for slot in _measured(sides, alignment, location):
        made = assemble.slot_result(
            slot.index,
            slot.left,
            slot.reference,
            slot.measures,
            ids,
            alignment,
            location,
            judging.thresholds,
            judging.noise,
            judging.decode,
        )
        results.append(replace(made, trimmed_channels=len(slot.massive)))
        facts = row_facts(
            slot.index, left, alignment.left_rows, alignment.positions, slot.measures, judging.thresholds
        )
        odd.append(facts)
    return tuple(results), tuple(odd)


def _measure_others(
    left: Capture,
    sides: Sides,
    alignment: Alignment,
    location: Location,
    judging: _Judging,
) -> tuple[SlotResult, ...]:
    """Embedding and last state, where both sides have them."""
    made = []
    for kind, index in (("embed", -2), ("last", -1)):
        mine, theirs = _of_kind(sides.left_others, kind), _of_kind(sides.reference_others, kind)
        if mine is None or theirs is None or mine.rows.width != theirs.rows.width:
            continue
        keep = mine.has(alignment.left_rows) & theirs.has(alignment.reference_rows)
        pairs = replace(
            alignment,
            left_rows=alignment.left_rows[keep],
            reference_rows=alignment.reference_rows[keep],
            positions=alignment.positions[keep],
        )
        if len(pairs) == 0:
            continue
        measures = measure_rows(mine.rows, pairs.left_rows, theirs.rows, pairs.reference_rows)
        ids = RowIds.of(left, pairs)
        made.append(
            assemble.slot_result(
                index, mine, theirs, measures, ids, pairs, location, judging.thresholds, None, judging.decode
            )
        )
    return tuple(made)


def _of_kind(streams: tuple[Stream, ...], kind: str) -> Stream | None:
    return next((s for s in streams if s.kind == kind), None)


def _finish(work: _Work, judging: _Judging) -> Result:
    left, reference, location = work.left, work.reference, work.location
    facts = Facts(
        left=left,
        reference=reference,
        alignment=work.alignment,
        thresholds=judging.thresholds,
        noise=judging.noise,
        slots=work.slots,
        others=work.others,
        left_streams=location.left if location is not None else (),
        reference_streams=location.reference if location is not None else (),
        reading=work.wirings.reading,
        reading_by=work.wirings.by,
        left_wiring=work.wirings.left,
        reference_wiring=work.wirings.reference,
        tail=work.wirings.tail,
        atlas=location.atlas if location is not None else None,
        cross=location.cross if location is not None else {},
        norm_weight=location.norm_weight if location is not None else None,
        rows=work.odd,
        inside=look_inside(left),
        ranks=work.ranks,
        acceptance=assemble.acceptance_of(left, reference),
        decode=judging.decode,
    )
    compared = _was_compared(work, facts)
    findings = diagnose(facts, compared)
    lasts = tuple(s for s in work.others if s.slot == -1) if not (left.slots or work.slots) else ()
    verdict = overall(work.slots or lasts, findings, compared)
    return Result(
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        summary=summary_of(verdict, findings),
        left=assemble.side_info(left),
        reference=assemble.side_info(reference) if reference is not None else None,
        alignment=assemble.alignment_info(work.alignment, left, first_difference(facts)),
        slots=work.slots,
        others=work.others,
        matrix=assemble.cross_matrix(facts.cross),
        sweep=assemble.sweep_matrix(location),
        findings=findings,
        acceptance=facts.acceptance,
        noise=assemble.noise_info(judging.noise),
        thresholds=judging.thresholds,
        environment=assemble.environment_of(left),
        configs=assemble.configs_of(left, reference),
        tool_version=__version__,
    )


def _was_compared(work: _Work, facts: Facts) -> bool:
    """Whether there is anything to judge. A few tokens that any two prompts share (a BOS, a header) are nothing."""
    if work.reference is None:
        return _has_something(work.left)
    alignment = work.alignment
    if alignment is None or len(alignment) == 0:
        return False
    diverges = alignment.difference is not None and not alignment.natural and alignment.shift == 0
    if diverges and len(alignment) <= MIN_ROWS:
        return False
    return bool(work.slots or work.others) or facts.inside.fc_ran is False


def _has_something(left: Capture) -> bool:
    """Whether one trace alone holds anything that can be checked."""
    return len(left.table) > 0 and (left.draft is not None or bool(left.probes))
