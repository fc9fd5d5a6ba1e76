"""From numbers to verdicts. Needs no tensors, so a saved result can be judged again with other thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from drafttrace.compare.result import EXIT_CODES, FAULT, Finding, Judged, Result, SlotResult
from drafttrace.compare.thresholds import Limits, Thresholds, slot_limits

MATCH, NOISE, MISMATCH, INCOMPARABLE = "match", "noise", "mismatch", "incomparable"


def limits_of(slot: SlotResult, thresholds: Thresholds) -> Limits:
    """The limits for one slot from the numbers that its result keeps."""
    floor = (slot.noise_rel_l2, slot.noise_rel_l2_p99) if np.isfinite(slot.noise_rel_l2) else None
    neighbour = slot.neighbour_rel_l2 if np.isfinite(slot.neighbour_rel_l2) else None
    return slot_limits(thresholds, floor, neighbour, slot.rounding)


def judge_slot(slot: SlotResult, thresholds: Thresholds) -> SlotResult:
    """The slot with its verdict and what it was judged against.

    Only distances count here; which boundary a slot is, or which rows are odd, is said by findings.
    """
    limits = limits_of(slot, thresholds)
    rel = slot.rel_l2.p50
    if not np.isfinite(rel) or rel > limits.noise:
        verdict = MISMATCH
    elif rel > limits.match:
        verdict = NOISE
    else:
        verdict = MATCH
    if slot.outlier_rows and verdict != MISMATCH:
        verdict = NOISE
    return replace(slot, verdict=verdict, judged=Judged(rel, limits.match, limits.noise, limits.against))


def overall(slots: Sequence[SlotResult], findings: Sequence[Finding], compared: bool) -> str:
    """The verdict of the whole comparison. A fault is a mismatch, whatever the levels say."""
    if not compared:
        return INCOMPARABLE
    if any(f.severity == FAULT for f in findings):
        return MISMATCH
    verdicts = {slot.verdict for slot in slots}
    if any(f.id == "quantization-noise" for f in findings):
        verdicts.add(NOISE)
    if MISMATCH in verdicts:
        return MISMATCH
    return NOISE if NOISE in verdicts else MATCH


def rejudge(result: Result, thresholds: Thresholds) -> Result:
    """A saved result under other thresholds. Findings that rest on distances alone come and go with them."""
    from drafttrace.compare.findings.level import unexplained_of

    slots = tuple(judge_slot(slot, thresholds) for slot in result.slots)
    bad = {slot.slot for slot in slots if slot.verdict == MISMATCH}
    kept = [f for f in result.findings if not f.judged_by_level or set(f.slots) & bad]
    named = {i for f in kept if f.severity == FAULT for i in f.slots}
    extra = [unexplained_of(slot) for slot in slots if slot.slot in bad - named]
    if any(f.severity == FAULT for f in (*kept, *extra)):
        kept = [f for f in kept if f.id != "none"]
    findings = (*kept, *extra)
    compared = result.verdict != INCOMPARABLE
    verdict = overall(slots, findings, compared)
    return replace(
        result,
        slots=slots,
        findings=findings,
        thresholds=thresholds,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        summary=summary_of(verdict, findings),
    )


def summary_of(verdict: str, findings: Sequence[Finding]) -> str:
    """One or two sentences: the first fault, or that nothing is wrong."""
    faults = [f for f in findings if f.severity == FAULT]
    tokens = [f for f in faults if f.id in {"no-overlap", "template-divergence"}]
    if verdict == INCOMPARABLE and tokens:
        return tokens[0].summary
    if faults:
        return " ".join(f.summary for f in faults[:2])
    first = next((f.summary for f in findings if f.id in {"none", "downstream", "no-overlap"}), "")
    if first:
        return first
    words = {
        MATCH: "Everything that was compared matches.",
        NOISE: "The differences are noise: unstructured, and smaller than the distance to a neighbouring boundary.",
        MISMATCH: "The hidden states differ.",
        INCOMPARABLE: "Nothing could be compared.",
    }
    return words[verdict]
