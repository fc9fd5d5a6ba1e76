"""What accept lengths say by themselves: hints, never a verdict; and what two traces that agree do not prove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from drafttrace.compare.findings.base import finding
from drafttrace.compare.plurals import plural
from drafttrace.compare.result import NOTE, Acceptance, Finding

LOOK_NEXT = (
    "Look next at the draft's weights (lm_head), its vocabulary map d2t, rope and positions: `drafttrace check --target "
    "DIR --draft DIR` reads them, `drafttrace replay` computes the accept length that this capture should have had."
)
ONLY_A_DUMP = (
    "Only what training stored can tell whether the wiring is right: drafttrace diff TRACE DUMP, with the dump that the "
    "draft was trained on; without one, drafttrace check --target DIR --draft DIR reads what the configs say."
)
OFTEN_WIRING = (
    "The usual cause of a low accept length is a server that hands the draft other hidden states than training did, and "
    "one trace looks the same either way."
)
DRAFTS_APART = "what the two drafts made of that was not compared"
_FEW = 2.0  # tokens per round: with three steps or more, a draft that reaches less is hardly worth its time
_STEPS = 3
_ROUNDS = 8  # fewer say nothing
_UPRIGHT, _FALLEN = 0.5, 0.1
"""Shares of rounds between which the curve falls from one draft token to the next, where one step is at fault."""


@dataclass(frozen=True)
class Collapse:
    """Draft token ``token`` (from 1) is hardly ever accepted, though the one before is. rounds: how many reached it."""

    token: int
    before: float
    share: float
    rounds: int


def collapse_of(acceptance: Acceptance) -> Collapse | None:
    """The first draft token at which acceptance breaks down; None where it does not, or too few rounds reach it."""
    reached = float(acceptance.rounds)
    for token, (before, share) in enumerate(zip(acceptance.curve, acceptance.curve[1:], strict=False), 2):
        reached *= before
        last = token == len(acceptance.curve)
        # Without the server's number of steps, nothing after the longest round was drafted at all.
        if last and acceptance.steps is None:
            return None
        if before >= _UPRIGHT and share <= _FALLEN and reached >= _ROUNDS:
            return Collapse(token, before, share, round(reached))
    return None


def accept_notes(acceptance: Acceptance) -> Iterator[Finding]:
    """A low accept length, or a curve that breaks down at one step, where no expected length says what is right."""
    if acceptance.expected is not None or acceptance.after_the_end or acceptance.observed is None:
        return
    collapse, steps = collapse_of(acceptance), acceptance.steps
    few = steps is not None and steps >= _STEPS and acceptance.rounds >= _ROUNDS and acceptance.observed < _FEW
    if collapse is not None:
        text = (
            f"Draft token {collapse.token - 1} is accepted in {collapse.before:.0%} of the rounds that reach it, token "
            f"{collapse.token} in {collapse.share:.0%} ({plural(collapse.rounds, 'round')}): a draft that was trained for "
            "more steps does not break down at one of them."
        )
    elif few:
        text = (
            f"The accept length of {acceptance.observed:.2f} is low for {steps} drafted tokens a round (at most "
            f"{1 + (steps or 0)}.00), over {plural(acceptance.rounds, 'round')}; no expected one is known, so that shows "
            "no fault."
        )
    else:
        return
    yield finding(
        "downstream",
        text,
        confidence=0.5 if collapse is not None else 0.3,
        evidence={
            "accept_length": acceptance.observed,
            "rounds": acceptance.rounds,
            "steps": steps,
            "accepted_by_position": list(acceptance.curve),
        },
        remedy=f"{acceptance_hint(acceptance)} To have it judged, give the accuracies that training logged (--expected "
        "0.75,0.71,0.68) or the result of drafttrace replay.",
        severity=NOTE,
        by_level=True,
    )


def both_agree(acceptance: Acceptance, consumed: str, limit: float, evidence: dict[str, object]) -> Finding:
    """Two traces of slots that match, and a low accept length: a wiring that both share would look the same."""
    expected = f" where {acceptance.expected:.2f} is expected" if acceptance.expected is not None else ""
    return finding(
        "downstream",
        f"Both sides agree, and the accept length is {acceptance.observed:.2f}{expected} (too low below {limit:.2f}). Two "
        f"traces that agree do not prove their wiring: all slots match, and {consumed} ({DRAFTS_APART}), so either both "
        "recordings are miswired alike, or the fault is downstream of fc. No training dump was compared, and only one can "
        "tell which.",
        confidence=0.5,
        evidence={**evidence, "too_low_below": limit, "between_traces": True},
        remedy=f"{ONLY_A_DUMP} If that matches, the fault is downstream: {acceptance_hint(acceptance)} {LOOK_NEXT}",
        by_level=True,
    )


def acceptance_hint(acceptance: Acceptance) -> str:
    """What the acceptance curve alone points at; a hint, not a verdict."""
    curve = acceptance.curve
    if acceptance.observed == 1:
        return (
            "Not one draft token was accepted: that points at weights that were never loaded, a wrong vocabulary map, NaN "
            "in the draft, or a draft that reads an empty cache."
        )
    if len(curve) >= 2 and curve[0] > 0.5 and min(curve[1:]) < 0.5 * curve[0]:
        place = next(i for i, share in enumerate(curve) if share < 0.5 * curve[0]) + 1
        return (
            f"The first draft token is fine ({curve[0]:.0%} accepted) and number {place} is not ({curve[place - 1]:.0%}): "
            "look at the state that the draft recycles (its norm), at the draft's positions and at its KV cache."
        )
    if curve and curve[0] <= 0.5:
        return (
            f"Already the first draft token is mostly rejected ({curve[0]:.0%} accepted): look at the draft's weights, its "
            "vocabulary map and its rope."
        )
    return (
        "Acceptance falls evenly from token to token: look at the draft's weights and at how well it was trained."
    )
