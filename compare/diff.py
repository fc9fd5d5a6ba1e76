"""Two captures in, a result with a named cause out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from drafttrace import __version__
from drafttrace.compare import assemble
from drafttrace.compare.acceptance import Expected, acceptance_of
from drafttrace.compare.align import Alignment, plan
from drafttrace.compare.broken import Measured, find_broken
from drafttrace.compare.copies import look_for_copies, row_maps
from drafttrace.compare.facts import CopyFacts, Facts, PartFacts, RowFacts, SingleFacts, layers_of
from drafttrace.compare.findings import diagnose
from drafttrace.compare.findings.noise import worth_a_look
from drafttrace.compare.findings.tokens import first_difference
from drafttrace.compare.grids import Grid, find_grids
from drafttrace.compare.hypotheses import PER_CHANNEL, Doubles
from drafttrace.compare.inside import InsideFacts, look_inside
from drafttrace.compare.judge import MISMATCH, counted, overall, summary_of
from drafttrace.compare.masks import find_mask_shifts
from drafttrace.compare.measured import MeasuredSlot, measured_others, measured_slots
from drafttrace.compare.oddrows import row_facts
from drafttrace.compare.partfits import fit_parts, whole_slots
from drafttrace.compare.ranks import RankFacts, RankRows, compare_hashes, find_partial_sum
from drafttrace.compare.result import EXIT_CODES, FAULT, Result, SlotResult
from drafttrace.compare.right_repeats import Compared
from drafttrace.compare.rope_facts import RopeTrial
from drafttrace.compare.same_token import find_same_token
from drafttrace.compare.sample import MIN_ROWS
from drafttrace.compare.single_rows import fit_singles
from drafttrace.compare.small_fits import with_small_fits
from drafttrace.compare.streams import Location, Sides, Wirings, find_shift, locate_all, wirings
from drafttrace.compare.thresholds import DEFAULT, Noise, Thresholds
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.chat_marks import ChatMarks
from drafttrace.tracer.errors import NothingToCompare

Decode = Callable[[int], str]
NormWeights = Callable[[], Mapping[str, Doubles]]
TryRope = Callable[[], RopeTrial | None]
Vocabulary = Callable[[], Collection[int] | None]
NO_WIRINGS = Wirings((), (), None, None, None)
NO_RANKS = RankFacts()


# Misread bytes hold any numbers: what overflows is told by what comes out, not by a warning.
@np.errstate(all="ignore")
def diff(
    left: Capture,
    reference: Capture | None,
    *,
    thresholds: Thresholds = DEFAULT,
    noise: Noise | None = None,
    decode: Decode | None = None,
    ranks: Sequence[RankRows] = (),
    rank_traces: Sequence[Capture] = (),
    others: Sequence[Capture] = (),
    expected: Expected | None = None,
    marks: ChatMarks | None = None,
    norms: NormWeights = dict,
    rope: TryRope = lambda: None,
    vocabulary: Vocabulary = lambda: None,
) -> Result:
    """Compare a capture with a reference; without one, check the capture against itself.

    decode turns a token id into text for the reports. noise is a recorded self-comparison (see
    :mod:`drafttrace.compare.noise_pair`). ranks: the row hashes that the left trace keeps of every rank. rank_traces:
    traces that the other ranks recorded of the same request (``serve --all-ranks``), to find sums that were never added up.
    others: traces of other requests to the same server, to find rows that belong to them. expected: the accept length
    that the draft should reach. marks: the ids of the target's chat template, to see whether a loss mask is moved.
    norms: reads the norm weights of the served models, called where a gain per channel has to be explained. rope: replays
    the draft with the target's rope base, called where all slots match. vocabulary: reads the target ids that the served
    draft can say, None where they are not known; rounds that it could not win are no evidence against it.
    Raises NothingToCompare where the two cannot belong together: another hidden size, or a side without any state.
    """
    between = compare_hashes(ranks)
    judging = _Judging(thresholds, noise, decode, expected, marks, norms, rope, vocabulary)
    if reference is None:
        return _finish(_Work(left, None, None, look_for_copies(left, None, others), ranks=between), judging)
    _check(left, reference)
    sides = Sides.of(left, reference)
    alignment = _aligned(left, reference, sides, judging.marks)
    if len(alignment) == 0:
        copies = look_for_copies(left, None, others)
        return _finish(_Work(left, reference, alignment, copies, ranks=between), judging)
    location = locate_all(alignment, sides, thresholds)
    measured = tuple(measured_slots(left, sides, alignment, location))
    slots = tuple(_judged(measured, location, judging))
    location = with_small_fits(location, slots, sides, alignment, left.table.token_id, judging.floor)
    odd = tuple(row_facts(slot, thresholds) for slot in measured)
    parts, singles = _looked_into(measured, slots, location, sides, thresholds)
    maps = row_maps(left, measured, slots, location.cross, thresholds.match, parts)
    same = find_same_token(measured, slots, left, reference)
    del measured  # some 60 bytes a row and slot, before the last state's come
    beside = tuple(measured_others(left, reference, sides, alignment, location))
    further = tuple(_judged(beside, location, judging))
    odd_beside = tuple(row_facts(slot, thresholds) for slot in beside)
    del beside
    compared = Compared(left, reference, alignment, (*slots, *further))
    partial = find_partial_sum(left, rank_traces, reference, location.sample)
    work = _Work(
        left=left,
        reference=reference,
        alignment=alignment,
        copies=look_for_copies(left, reference, others, maps, odd, same, compared),
        location=location,
        slots=slots,
        others=further,
        odd=odd,
        odd_beside=odd_beside,
        parts=parts,
        singles=singles,
        grids=_grids(sides, slots, location),
        wirings=wirings(location, layers_of(left, reference)),
        ranks=replace(between, partial=partial),
    )
    return _finish(work, judging)


def _looked_into(
    measured: Sequence[MeasuredSlot],
    slots: Sequence[SlotResult],
    location: Location,
    sides: Sides,
    thresholds: Thresholds,
) -> tuple[tuple[PartFacts, ...], tuple[SingleFacts, ...]]:
    """The parts of every slot that differ, and its single rows. What a slot is as a whole is read once for both."""
    parts: list[PartFacts] = []
    singles: list[SingleFacts] = []
    for slot, judged in zip(measured, slots, strict=True):
        alike = judged.rel_l2.p50 <= judged.judged.noise_limit
        alike = alike and not any(
            fact.explanation is not None and fact.index == judged.slot
            for fact in (*location.left, *location.reference)
        )
        wholes = () if alike else tuple(whole_slots(slot, location, sides, thresholds))
        mine = fit_parts(slot, judged, wholes, location, sides, thresholds)
        singles += fit_singles(slot, judged, mine, wholes, location, sides, thresholds)
        parts += mine
    return tuple(parts), tuple(singles)


@dataclass(frozen=True)
class _Judging:
    thresholds: Thresholds
    noise: Noise | None
    decode: Decode | None
    expected: Expected | None
    marks: ChatMarks | None
    norms: NormWeights
    rope: TryRope
    vocabulary: Vocabulary

    def floor(self, slot: int) -> float:
        """Up to which relative L2 the slot differs as the recorded noise floor says that two healthy ones do; else 0."""
        noise = self.noise.of_slot(slot) if self.noise is not None else None
        return DEFAULT.noise_match * noise[0] if noise is not None and noise[0] == noise[0] else 0.0


@dataclass(frozen=True)
class _Work:
    left: Capture
    reference: Capture | None
    alignment: Alignment | None
    copies: CopyFacts
    location: Location | None = None
    slots: tuple[SlotResult, ...] = ()
    others: tuple[SlotResult, ...] = ()
    odd: tuple[RowFacts, ...] = ()
    odd_beside: tuple[RowFacts, ...] = ()
    parts: tuple[PartFacts, ...] = ()
    singles: tuple[SingleFacts, ...] = ()
    grids: tuple[Grid, ...] = ()
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
            "give the dump of the served target, or the width of its slots with --hidden-size."
        )
    for number, (ours, theirs) in enumerate(zip(left.slots, reference.slots, strict=False)):
        if ours.rows.width != theirs.rows.width:
            raise NothingToCompare(
                f"Slot {number} is {ours.rows.width} wide in '{left.path}' and {theirs.rows.width} in '{reference.path}'; "
                "make the file with the narrower rows again: a slot is one state of the target, as wide as its others."
            )


def _aligned(left: Capture, reference: Capture, sides: Sides, marks: ChatMarks | None = None) -> Alignment:
    """Pairs by ids, moved as the values ask. Ids that are moved while the values are not mean other prompts."""
    opens = marks.opens if marks is not None else frozenset()
    alignment = plan(left, reference, opens=opens)
    shift = find_shift(alignment, sides) if len(alignment) >= MIN_ROWS else 0
    if shift:
        return alignment.moved(shift)
    if not alignment.offset:
        return alignment
    plain = plan(left, reference, offsets=False, opens=opens)
    return replace(plain, offset=alignment.offset, matched=alignment.matched)


def measure_slots(left: Capture, reference: Capture) -> tuple[MeasuredSlot, ...]:
    """Every slot's measures, of the rows that :func:`diff` pairs.

    Raises NothingToCompare where :func:`diff` does, and where no row of one side belongs to one of the other.
    """
    _check(left, reference)
    sides = Sides.of(left, reference)
    alignment = _aligned(left, reference, sides)
    if len(alignment) == 0:
        raise NothingToCompare(
            f"No row of '{left.path}' belongs to one of '{reference.path}'; record the dump's own tokens, as 'drafttrace "
            "record --from-dump' does."
        )
    if not (left.slots and reference.slots):
        bare = left if not left.slots else reference
        raise NothingToCompare(
            f"'{bare.path}' has no slots to measure; give a trace or dump that has some, or name them (layer_ids)."
        )
    return tuple(measured_slots(left, sides, alignment, locate_all(alignment, sides, DEFAULT)))


def _judged(slots: Iterable[MeasuredSlot], location: Location, judging: _Judging) -> Iterator[SlotResult]:
    for slot in slots:
        yield assemble.slot_result(slot, location, judging.thresholds, judging.noise, judging.decode)


def _grids(sides: Sides, slots: Sequence[SlotResult], location: Location) -> tuple[Grid, ...]:
    """The number formats of the slots that differ as a coarse one makes them differ."""
    wanted = {slot.slot for slot in slots if worth_a_look(slot.rel_l2.p50)}
    places = [
        f for f in (*location.left, *location.reference) if f.located is not None and f.located.by_value.found
    ]
    wanted |= {f.index for f in places if f.located is not None and worth_a_look(f.located.by_value.distance)}
    streams = [s for s in (*sides.left_slots, *sides.reference_slots) if s.slot in wanted]
    return tuple(find_grids(location.sample, streams))


def _finish(work: _Work, judging: _Judging) -> Result:
    left, reference, location = work.left, work.reference, work.location
    inside = look_inside(left, _measured(work, "left") if reference is not None else None)
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
        norm_weights=_norm_weights(left, location, judging.norms),
        rows=work.odd,
        other_rows=work.odd_beside,
        copies=work.copies,
        masks=find_mask_shifts(left, reference, judging.marks, judging.decode),
        inside=inside,
        ranks=work.ranks,
        acceptance=acceptance_of(left, reference, judging.expected, inside.fc_state, judging.vocabulary()),
        rope=judging.rope() if work.slots and all(s.verdict != MISMATCH for s in work.slots) else None,
        decode=judging.decode,
        parts=work.parts,
        singles=work.singles,
        grids=work.grids,
        broken_reference=find_broken(reference, _measured(work, "reference")) if reference is not None else (),
    )
    compared = _was_compared(work, facts)
    findings, covered = diagnose(facts, compared)
    # What contradicts itself was looked into, though no draft's rows are there to check.
    compared = compared or (reference is None and any(f.severity == FAULT for f in findings))
    verdict = overall(counted(work.slots, work.others, len(left.slots)), findings, compared)
    sides = (assemble.side_info(left), assemble.side_info(reference) if reference is not None else None)
    pairing = assemble.alignment_info(work.alignment, left, first_difference(facts))
    return Result(
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        summary=summary_of(verdict, findings, work.slots, sides, pairing),
        left=sides[0],
        reference=sides[1],
        alignment=pairing,
        slots=work.slots,
        others=work.others,
        matrix=assemble.cross_matrix(facts.cross),
        sweep=assemble.sweep_matrix(location),
        findings=findings,
        covered=covered,
        acceptance=facts.acceptance,
        noise=assemble.noise_info(judging.noise),
        thresholds=judging.thresholds,
        environment=assemble.environment_of(left),
        configs=assemble.configs_of(left, reference),
        tool_version=__version__,
    )


def _measured(work: _Work, side: str) -> Measured:
    """The rows of one side that were compared, and the slots in which none of them is broken."""
    alignment, capture = work.alignment, work.left if side == "left" else work.reference
    if alignment is None or capture is None:
        return Measured(np.empty(0, np.int64))
    results = {slot.slot: slot for slot in (*work.slots, *work.others)}
    # A boundary of the sweep may stand in for the last state.
    held = {*(s.name for s in capture.slots), "embed", capture.last.name if capture.last is not None else ""}
    sound = frozenset(
        odd.slot
        for odd in (*work.odd, *work.odd_beside)
        if not getattr(odd, f"zero_{side}")
        and not getattr(odd, f"nan_{side}")
        and not results[odd.slot].constant_rows
        and getattr(results[odd.slot], side) in held
    )
    return Measured(alignment.left_rows if side == "left" else alignment.reference_rows, sound)


def _norm_weights(left: Capture, location: Location | None, read: NormWeights) -> Mapping[str, Doubles]:
    """The models' norm weights where some state differs by a gain per channel, else nothing is read.

    That the last state is B(n) through a norm is no difference.
    """
    if location is None:
        return {}
    last = left.last.name if left.last is not None else None
    fits = [
        s.explanation.fit
        for s in (*location.left, *location.reference)
        if s.explanation is not None and (s.index >= 0 or s.explanation.target == last)
    ]
    differing = {name for fit in fits for name in (fit.name, fit.then.name if fit.then is not None else "")}
    return read() if differing & PER_CHANNEL else {}


def _was_compared(work: _Work, facts: Facts) -> bool:
    """Whether there is anything to judge. A few tokens that any two prompts share (a BOS, a header) are nothing."""
    if work.reference is None:
        return _was_looked_into(work.left, facts.inside)
    alignment = work.alignment
    if alignment is None or len(alignment) == 0:
        return False
    diverges = alignment.difference is not None and not alignment.natural and alignment.shift == 0
    if (diverges or alignment.unknown) and len(alignment) <= MIN_ROWS:
        return False
    return bool(work.slots or work.others) or facts.inside.fc_ran is False


def _was_looked_into(left: Capture, inside: InsideFacts) -> bool:
    """Whether one trace alone holds anything that could be checked: rows of a draft, or what is wrong without any."""
    checked = len(left.table) > 0 and left.draft is not None and len(left.draft.table) > 0
    silent = any(probe.expected > 0 and probe.fired == 0 for probe in left.probes)
    return checked or silent or bool(inside.broken) or inside.fc_ran is False
