"""From numbers to verdicts. Needs no tensors, so a saved result can be judged again with other thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from drafttrace.compare.plurals import plural
from drafttrace.compare.result import (
    EXIT_CODES,
    FAULT,
    AlignmentInfo,
    Finding,
    Judged,
    Result,
    SideInfo,
    SlotResult,
)
from drafttrace.compare.thresholds import Limits, Thresholds, slot_limits
from drafttrace.tracer.errors import DrafttraceError

MATCH, NOISE, MISMATCH, INCOMPARABLE = "match", "noise", "mismatch", "incomparable"


def limits_of(slot: SlotResult, thresholds: Thresholds) -> Limits:
    """The limits for one slot from the numbers that its result keeps."""
    floor = (slot.noise_rel_l2, slot.noise_rel_l2_p99) if np.isfinite(slot.noise_rel_l2) else None
    neighbour = slot.neighbour_rel_l2 if np.isfinite(slot.neighbour_rel_l2) else None
    return slot_limits(thresholds, floor, neighbour, slot.rounding, slot.kinds > 0)


def judge_slot(slot: SlotResult, thresholds: Thresholds) -> SlotResult:
    """The slot with its verdict and what it was judged against.

    Only distances count here: the median over all rows, and that of the rows which differ while the others do not
    (``parts``). Which boundary a slot is, or which rows are odd, is said by findings.
    """
    limits = limits_of(slot, thresholds)
    rel = slot.rel_l2.p50
    if slot.rows == 0:
        verdict = INCOMPARABLE
    elif not np.isfinite(rel) or rel > limits.noise:
        verdict = MISMATCH
    elif rel > limits.match:
        verdict = NOISE
    else:
        verdict = MATCH
    levels = {part.level for part in slot.parts}
    if "noise" in levels and verdict in {MATCH, NOISE}:
        verdict = MISMATCH
    elif ("match" in levels or slot.outlier_rows) and verdict == MATCH:
        verdict = NOISE
    return replace(slot, verdict=verdict, judged=Judged(rel, limits.match, limits.noise, limits.against))


def counted(slots: Sequence[SlotResult], others: Sequence[SlotResult], left_slots: int) -> tuple[SlotResult, ...]:
    """The states whose levels make the verdict: the slots; where the left side has none, what was compared besides."""
    return tuple(slots) if slots or left_slots else tuple(others)


def overall(slots: Sequence[SlotResult], findings: Sequence[Finding], compared: bool) -> str:
    """The verdict of the whole comparison. A fault is a mismatch, whatever the levels say."""
    if not compared:
        return INCOMPARABLE
    if any(f.severity == FAULT for f in findings):
        return MISMATCH
    if any(f.id == "unsaid-wiring" for f in findings):
        return INCOMPARABLE  # slots were held against others that nobody says training used
    verdicts = {slot.verdict for slot in slots}
    if any(f.id == "quantization-noise" for f in findings):
        verdicts.add(NOISE)
    if MISMATCH in verdicts:
        return MISMATCH
    if INCOMPARABLE in verdicts:
        return INCOMPARABLE  # a slot that nothing is known of is no match
    return NOISE if NOISE in verdicts else MATCH


def rejudge(result: Result, thresholds: Thresholds) -> Result:
    """A saved result under other thresholds. Findings that rest on levels alone come and go with them.

    Raises DrafttraceError for a threshold that decides while the tensors are read, and where the result keeps too few
    rows to say which of them are odd by another rule.
    """
    from drafttrace.compare.findings.base import in_order
    from drafttrace.compare.findings.covered import with_unexplained
    from drafttrace.compare.findings.few_rows import cautious, few_rows
    from drafttrace.compare.findings.level import Ending, conclusion

    _check(result, thresholds)
    slots = tuple(
        judge_slot(_parted(_recounted(slot, result.thresholds, thresholds), thresholds), thresholds)
        for slot in result.slots
    )
    others = tuple(judge_slot(_parted(slot, thresholds), thresholds) for slot in result.others)
    bad = {slot.slot for slot in slots if slot.verdict == MISMATCH}
    found = [f for f in (*result.findings, *result.covered) if not _made_again(f)]
    found = [f for f in found if not f.judged_by_level or (set(f.slots) & bad and f.id != "quantization-noise")]
    compared = result.verdict != INCOMPARABLE or any(slot.rows for slot in slots)
    judged = counted(slots, others, len(result.left.slots))
    covered: tuple[Finding, ...] = ()
    if compared:
        found += few_rows(slots, thresholds, found)
        found, covered = with_unexplained(found, slots, others, thresholds)
        beside = tuple(state.slot for state in others)
        ending = Ending(result.acceptance, len(slots), beside, result.reference is None, thresholds, slots)
        found += cautious(conclusion(ending, found, overall(judged, found, compared)), slots)
    findings = in_order(found)
    verdict = overall(judged, findings, compared)
    return replace(
        result,
        slots=slots,
        others=others,
        findings=findings,
        covered=covered,
        thresholds=thresholds,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        summary=summary_of(verdict, findings, slots, (result.left, result.reference), result.alignment),
    )


def _made_again(finding: Finding) -> bool:
    """Whether judging makes a finding anew from the numbers that a result keeps.

    Rows without a known cause that were found in the tensors themselves (a trace's own sweep, an embedding, what is left
    beside a fit) are not made again: those stay as they are.
    """
    if finding.id == "unexplained":
        return finding.judged_by_level or FEW_ROWS in finding.evidence
    return finding.id in _CONCLUSIONS


FEW_ROWS = "few_rows"
"""The key of evidence by which a note on too few rows is known."""
_CONCLUSIONS = frozenset({"none", "downstream", "vocab-coverage"})
_WITH_TENSORS = {"located": "which boundary a slot is", "scale": "whether a fitted factor is a fault"}
_OF_ROWS = ("row", "row_cosine", "row_hidden", "row_far")


def _check(result: Result, thresholds: Thresholds) -> None:
    for name, what in _WITH_TENSORS.items():
        if getattr(thresholds, name) != getattr(result.thresholds, name):
            raise DrafttraceError(
                f"The threshold '{name}' decides {what} while the tensors are read, and the result does not keep them; run "
                f"drafttrace diff again with --threshold {name}={getattr(thresholds, name):g}."
            )


def _recounted(slot: SlotResult, before: Thresholds, thresholds: Thresholds) -> SlotResult:
    """The slot with its odd rows counted by other limits."""
    from drafttrace.compare.outliers import outlier_positions

    if all(getattr(before, name) == getattr(thresholds, name) for name in _OF_ROWS):
        return slot
    found = outlier_positions(slot.series, thresholds) if slot.series.cosine_trimmed else None
    kept = len(slot.series.position)
    if found is None or (kept < slot.rows and len(found) >= kept // 2):
        raise DrafttraceError(
            f"The result keeps {kept} of {slot.rows} rows of slot {slot.slot}, too few to count odd ones by other limits; "
            "run drafttrace diff again with these thresholds."
        )
    return replace(slot, outlier_rows=len(found))


def _parted(slot: SlotResult, thresholds: Thresholds) -> SlotResult:
    """The slot with the parts that the rows it keeps show under these limits."""
    from drafttrace.compare.describe import MAX_SERIES
    from drafttrace.compare.rowparts import find_parts, of_series

    rows = of_series(slot.series, slot.rows, MAX_SERIES // 2, thresholds)
    found = find_parts(rows, limits_of(slot, thresholds), thresholds)
    return replace(slot, parts=tuple(one.part for one in found))


def summary_of(
    verdict: str,
    findings: Sequence[Finding],
    slots: Sequence[SlotResult],
    sides: tuple[SideInfo, SideInfo | None],
    alignment: AlignmentInfo,
) -> str:
    """One or two sentences: the first fault, or that nothing is wrong. sides: left and reference, if there is one."""
    faults = [f for f in findings if f.severity == FAULT]
    tokens = [f for f in faults if f.id in {"no-overlap", "template-divergence"}]
    if verdict == INCOMPARABLE and tokens:
        return tokens[0].summary
    if faults:
        return " ".join(f.summary for f in faults[:2])
    empty = [slot.slot for slot in slots if slot.rows == 0]
    if verdict == INCOMPARABLE and empty and len(empty) == len(slots):
        return "Nothing could be compared: no slot has a row on both sides; record again with all taps on."
    if verdict == INCOMPARABLE and empty:
        names = " and ".join(f"slot {number}" for number in empty)
        verb = "has" if len(empty) == 1 else "have"
        return f"The other slots match, but {names} {verb} no row on both sides: record again with all taps on."
    told = ("unsaid-wiring", "none", "downstream", "no-overlap")
    noisy = [f.summary for f in findings if f.id == "quantization-noise" and verdict in {NOISE, MISMATCH}]
    first = next(iter(noisy), "") or next((f.summary for f in findings if f.id in told), "")
    if first:
        few = [f.summary for f in findings if FEW_ROWS in f.evidence]
        return " ".join([first, *few[:2]])
    if verdict == INCOMPARABLE:
        left, reference = sides
        return (
            _nothing_inside(left, alignment) if reference is None else _nothing_between(left, reference, alignment)
        )
    words = {
        MATCH: "Everything that was compared matches.",
        NOISE: "The differences are noise: unstructured, and smaller than the distance to a neighbouring boundary.",
        MISMATCH: "The hidden states differ.",
    }
    return words[verdict]


def _nothing_between(left: SideInfo, reference: SideInfo, alignment: AlignmentInfo) -> str:
    """Why two sides have nothing that could be compared, and what to give."""
    if left.slots and reference.slots:
        return (
            f"Nothing could be compared: no more than {alignment.rows_compared} rows of the two sides are known to belong "
            f"together; record the dump's own tokens: drafttrace record --from-dump {reference.path}."
        )
    return (
        f"Nothing could be compared: '{left.path}' holds {_held(left)}, '{reference.path}' {_held(reference)}, and nothing "
        "of that is the same thing on both sides; name the slots with --layer-ids or --slots, or give a trace and a dump "
        "that have some."
    )


def _held(side: SideInfo) -> str:
    """The states of a side in words."""
    held = [plural(len(side.slots), "slot") if side.slots else "no slots"]
    if side.last is not None:
        norm = {"pre": " before the final norm", "post": " after the final norm"}.get(side.last_norm or "", "")
        held.append(f"a last state{norm}")
    if side.boundaries:
        held.append(f"the boundaries {', '.join(side.boundaries)}")
    return " and ".join(held)


def _nothing_inside(left: SideInfo, alignment: AlignmentInfo) -> str:
    """Why one side alone tells nothing, and what to give."""
    if left.format.startswith("drafttrace.trace") and alignment.rows_left == 0:
        return f"'{left.path}' holds no rows, so there is nothing to check; record the request again."
    if left.format.startswith("drafttrace.trace"):
        return (
            f"'{left.path}' holds no rows of a draft to check against those of its target; give what training stored: "
            f"drafttrace diff {left.path} DUMP."
        )
    return (
        f"'{left.path}' is a dump and no trace, and nothing in it can be checked without a REFERENCE; compare it with the "
        f"trace of the same tokens: drafttrace diff TRACE {left.path}."
    )
