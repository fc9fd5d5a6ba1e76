"""What the values of a capture say about themselves, given only the target's embedding, final norm and head.

Four questions: which state is the embedding; does the last state stand before or after the final norm; is it the
last state at all; do the rows belong to the tokens they are stored with. Nobody's word is taken for any of them.
"""

from __future__ import annotations

import numpy as np

from drafttrace.tracer.assumed_checks import assumed_checks
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.checked_states import Check, CheckedState, number
from drafttrace.tracer.last_state_checks import last_state_checks
from drafttrace.tracer.position_rows import position_rows
from drafttrace.tracer.slot_norm_checks import slot_norm_checks
from drafttrace.tracer.target_weights import TargetWeights

__all__ = ["Check", "check_stored_shift", "check_values"]


def check_values(capture: Capture, target: TargetWeights) -> list[Check]:
    """Every check that the capture allows. Raises UnreadableFile for a damaged checkpoint."""
    from drafttrace.tracer.embedding_checks import embedding_checks, stored_embedding_checks  # with a target only

    states = [
        CheckedState(slot.name, slot.rows, slot.boundary, False, position_rows(capture, slot.name))
        for slot in capture.slots
    ]
    if capture.last is not None:
        last = capture.last
        states.append(CheckedState(last.name, last.rows, last.boundary, True, position_rows(capture, "last")))
    fitting = [state for state in states if state.rows.width == target.shape.hidden_size]
    checks: list[Check] = []
    if len(fitting) < len(states):
        odd = next(state for state in states if state not in fitting)
        checks.append(
            Check(
                "hidden-size",
                odd.name,
                "refuted",
                f"{odd.name} is {odd.rows.width} wide, the target's hidden size is {target.shape.hidden_size}: another "
                "target, or several slots side by side.",
                {"width": odd.rows.width, "hidden_size": target.shape.hidden_size},
            )
        )
    checks.extend(_logits(capture, target))
    checks.extend(_declared_last(capture, target.shape.layers))
    ids = _row_tokens(capture)
    checks.extend(_vocabulary(capture, ids, target))
    checks.extend(stored_embedding_checks(capture, ids, target))
    checks.extend(embedding_checks(fitting, ids, target))
    checks.extend(_no_embedding(fitting, checks, ids, target))
    checks.extend(slot_norm_checks(fitting, target))
    checks.extend(assumed_checks(capture, checks))
    checks.extend(last_state_checks(capture, fitting, ids, target))
    return checks


def _no_embedding(
    states: list[CheckedState], checks: list[Check], tokens: Ints, target: TargetWeights
) -> list[Check]:
    """That the embedding was looked for and is not there."""
    slots = [state for state in states if not state.is_last]
    if not slots or not target.inside(tokens).any() or any(check.id == "embedding" for check in checks):
        return []
    summary = (
        f"None of the {len(slots)} slots is B0, the embedding."
        if len(slots) > 1
        else (f"{slots[0].name} is not B0, the embedding.")
    )
    return [Check("embedding", "slots", "consistent", summary, {"slots": len(slots)})]


def _logits(capture: Capture, target: TargetWeights) -> list[Check]:
    """Logits that a dump holds, against the target's vocabulary."""
    width, vocabulary = capture.about.get("logits_width"), target.shape.vocab_size
    if not width or width == vocabulary:
        return []
    summary = (
        f"The dump's logits are {width} wide, the target's vocabulary has {vocabulary} tokens: another target."
    )
    return [Check("logits-width", "logits", "refuted", summary, {"width": width, "vocab_size": vocabulary})]


def check_stored_shift(capture: Capture) -> list[Check]:
    """For caches that store the target's distribution beside ids shifted left (NeMo Automodel): are both shifted?

    Needs no target: the most likely token of row t must be the stored id t + 1 more often than any other.
    """
    agreement = capture.about.get("next_token_agreement")
    if not isinstance(agreement, dict) or len(agreement) < 2:
        return []
    ranked = sorted(agreement, key=lambda offset: agreement[offset], reverse=True)
    best, second = ranked[0], ranked[1]
    evidence = {"agreement_by_offset": {offset: number(value) for offset, value in agreement.items()}}
    if agreement[best] - agreement[second] < 0.1:
        summary = (
            "target_probs agree with the stored ids at no offset more than at others, so a shift cannot be told."
        )
        return [Check("token-shift", "target_probs", "undecided", summary, evidence)]
    if best == "1":
        summary = (
            "target_probs of row t predict the stored id t+1: ids and probabilities are both shifted, as declared."
        )
        return [Check("token-shift", "target_probs", "confirmed", summary, evidence)]
    summary = (
        f"target_probs of row t predict the stored id t{int(best):+d} instead of t+1: ids or probabilities are not "
        "shifted as declared."
    )
    return [Check("token-shift", "target_probs", "refuted", summary, evidence)]


def _row_tokens(capture: Capture) -> Ints:
    """``[T]`` tokens by position, padding cut off; pseudonyms are as good as unknown."""
    tokens = capture.tokens[: capture.valid_length]
    return np.full_like(tokens, -1) if capture.redacted else tokens


def _declared_last(capture: Capture, layers: int) -> list[Check]:
    """The file's own word for the last state, against the number of layers of the target."""
    last = capture.last
    if last is None or last.boundary is None or last.boundary == layers:
        return []
    summary = (
        f"{last.name} is declared {boundary_name(last.boundary)}, and the last boundary of the target is "
        f"{boundary_name(layers)}: the 'last state' that training read is an inner layer."
    )
    return [Check("last-boundary", last.name, "refuted", summary, {"declared": last.boundary, "layers": layers})]


def _vocabulary(capture: Capture, tokens: Ints, target: TargetWeights) -> list[Check]:
    """Tokens that the target does not have: nothing can be scored at them, and it is the wrong target."""
    outside = tokens[(tokens >= 0) & ~target.inside(tokens)]
    if not len(outside):
        return []
    summary = (
        f"{len(outside)} of {len(tokens)} tokens are outside the target's vocabulary, first {int(outside[0])}: the dump is "
        "of another target, or of tokens that its embedding does not hold."
    )
    return [Check("vocabulary", "tokens", "refuted", summary, {"outside": len(outside), "tokens": len(tokens)})]
