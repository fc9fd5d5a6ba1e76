"""What is left when every cause was tried: unexplained, downstream of fc, or nothing wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finding, name_slots
from drafttrace.compare.result import FAULT, NOTE, Acceptance, Finding, SlotResult
from drafttrace.tracer.capture import Capture

_CURVE = (
    "Look next at the draft's weights (lm_head), its vocabulary map d2t, rope and positions: `drafttrace check --target "
    "DIR --draft DIR` reads them, `drafttrace replay` computes the accept length that this capture should have had."
)


_MIN_ROUNDS = 5  # a shorter request says nothing about its draft


def unexplained_of(slot: SlotResult) -> Finding:
    """A slot that differs beyond every limit without a known cause."""
    return finding(
        "unexplained",
        f"Slot {slot.slot} differs (median relative L2 {slot.rel_l2.p50:.3g}, limit {slot.judged.noise_limit:.3g}), and "
        "none of the known causes fits.",
        slots=(slot.slot,),
        confidence=0.5,
        evidence={"rel_l2_p50": slot.rel_l2.p50, "limit": slot.judged.noise_limit, "against": slot.judged.against},
        remedy="Record with a layer sweep (drafttrace serve --sweep) and look at the worst rows in the HTML report.",
        by_level=True,
    )


def find_unexplained(facts: Facts, found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Mismatching slots and odd rows that no other finding speaks about."""
    faults = [f for f in found if f.severity == FAULT]
    if any(f.id in {"token-shift", "no-overlap"} for f in faults):
        return ()
    named = {slot for f in faults for slot in f.slots} | {
        s for f in found if f.id == "quantization-noise" for s in f.slots
    }
    extra = [unexplained_of(s) for s in facts.slots if s.verdict == "mismatch" and s.slot not in named]
    rows = [r for r in facts.rows if r.outliers and r.slot not in named]
    spoken = {e.slots[0] for e in extra}
    odd = [r for r in rows if r.slot not in spoken]
    if odd:
        most = max(odd, key=lambda r: len(r.outliers))
        extra.append(
            finding(
                "unexplained",
                f"{len(most.outliers)} row{'s' if len(most.outliers) > 1 else ''} hold something else than the reference "
                f"(first: position {min(most.outliers)}) in {name_slots([r.slot for r in odd])}, while the others match.",
                slots=[r.slot for r in odd],
                confidence=0.5,
                evidence={str(r.slot): sorted(r.outliers)[:50] for r in odd},
                remedy="Look at these rows in the HTML report: same round, same batch, or tokens of one kind?",
            )
        )
    return tuple(extra)


def conclusion(facts: Facts, found: Sequence[Finding], verdict_without: str) -> tuple[Finding, ...]:
    """``downstream`` or ``none`` where no fault was found and something was compared."""
    if verdict_without not in {"match", "noise"} or any(f.id == "quantization-noise" for f in found):
        return ()
    state = facts.inside.fc_state
    consumed = {
        "equal": "fc received the target's states bit for bit",
        "normed": "fc received the target's states through the norm that its config asks for",
    }.get(state, "what fc received was not recorded")
    low = _too_low(facts, facts.acceptance)
    if facts.reference is None:
        return (_alone(facts, consumed, low),)
    if low and state in {"equal", "normed", "unknown"}:
        return (_downstream(facts, consumed),)
    return (
        finding(
            "none",
            f"Nothing is wrong: all slots match, and {consumed}{_observed(facts.acceptance)}{_unfit(facts.left)}.",
            slots=range(len(facts.slots)),
            confidence=0.95,
            evidence=_evidence(facts),
            remedy="If the accept length is too low all the same, the fault is downstream of fc. " + _CURVE,
            severity=NOTE,
        ),
    )


def _evidence(facts: Facts) -> dict[str, object]:
    acceptance = facts.acceptance
    return {
        "fc_in": facts.inside.fc_state,
        "accept_length": acceptance.observed,
        "expected": acceptance.expected,
        "accepted_by_position": list(acceptance.curve),
    }


def _downstream(facts: Facts, consumed: str) -> Finding:
    acceptance = facts.acceptance
    return finding(
        "downstream",
        f"The hidden states are right; the fault is downstream of fc: {consumed}, yet the accept length is "
        f"{acceptance.observed:.2f}{_expected(acceptance)}.",
        confidence=0.8 if facts.inside.fc_state != "unknown" else 0.5,
        evidence=_evidence(facts),
        remedy=f"{_hint(acceptance)} {_CURVE}",
    )


def _alone(facts: Facts, consumed: str, low: bool) -> Finding:
    """One trace that agrees with itself: that says nothing about what training fed."""
    doubt = "; that is low, and only the training dump can say whether these are the states that it was trained on"
    return finding(
        "none",
        f"The trace agrees with itself: {consumed}{_observed(facts.acceptance)}{_unfit(facts.left)}{doubt if low else ''}.",
        confidence=0.95,
        evidence=_evidence(facts),
        remedy="Compare with the training dump: drafttrace diff TRACE DUMP.",
        severity=NOTE,
    )


def _hint(acceptance: Acceptance) -> str:
    """What the acceptance curve alone points at; a hint, not a verdict."""
    curve = acceptance.curve
    if acceptance.observed == 1:
        return (
            "Not one draft token was accepted: that points at weights that were never loaded, the vocabulary map, or a "
            "draft that reads an empty cache."
        )
    if len(curve) >= 2 and curve[0] > 0.5 and curve[1] < 0.5 * curve[0]:
        return "The first draft token is fine and later ones are not: look at the recycled norm and at positions."
    return "Already the first draft token is mostly rejected: look at the draft's weights and rope."


def _too_low(facts: Facts, acceptance: Acceptance) -> bool:
    if acceptance.observed is None or acceptance.rounds < _MIN_ROUNDS or after_the_end(facts.left):
        return False
    if acceptance.expected is not None:
        return acceptance.observed < 1 + 0.6 * (acceptance.expected - 1)
    return acceptance.observed < facts.thresholds.accept


def after_the_end(trace: Capture) -> bool:
    """Whether the prompt was a finished text: nothing was trained on what follows, so its accept length says nothing."""
    config = trace.about.get("target_config")
    inner = config.get("text_config") if isinstance(config, Mapping) else None
    stops = next(
        (c["eos_token_id"] for c in (config, inner) if isinstance(c, Mapping) and "eos_token_id" in c), None
    )
    length = trace.prompt_length or 0
    if stops is None or not 0 < length <= len(trace.tokens):
        return False
    return int(trace.tokens[length - 1]) in (stops if isinstance(stops, list) else [stops])


def _unfit(trace: Capture) -> str:
    return " (after a finished text, where it says nothing)" if after_the_end(trace) else ""


def _expected(acceptance: Acceptance) -> str:
    return f" where {acceptance.expected:.2f} is expected" if acceptance.expected is not None else ""


def _observed(acceptance: Acceptance) -> str:
    if acceptance.observed is None or not np.isfinite(acceptance.observed):
        return ""
    return f"; observed accept length {acceptance.observed:.2f}" + (
        f", expected {acceptance.expected:.2f}" if acceptance.expected is not None else ", no expected one is known"
    )
