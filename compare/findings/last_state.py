"""A: what stands in the place of the last state, and is none."""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.facts import DECLARED, VALUE, Facts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.result import FAULT, NOTE, Finding
from drafttrace.tracer.boundary import boundary_name


@finder(turn=11)
def find(facts: Facts) -> Iterator[Finding]:
    """A side's last state is a boundary below n: a note where the file says so itself, else a fault. A trace's is what its
    server gives, behind the final norm."""
    layers = facts.layers
    if layers is None or facts.reference is None:
        return
    for side, streams, capture in (
        ("left side", facts.left_streams, facts.left),
        ("reference", facts.reference_streams, facts.reference),
    ):
        last = next((s for s in streams if s.index == -1), None)
        if last is None or capture is None or last.boundary is None or last.boundary >= layers:
            continue
        # A normed state is found at the boundary that it is made from, or nowhere: one sweep need not hold both.
        if side == "left side" and capture.format.startswith("drafttrace.trace") and last.explanation is not None:
            continue
        honest = last.declared == last.boundary
        by = "by value" if last.by == VALUE else "by its own declaration"
        yield finding(
            "last-not-last",
            f"The {side}'s last entry is {boundary_name(last.boundary)} ({by}), not the state after the last layer "
            f"({boundary_name(layers)}): training targets made from it are wrong.",
            slots=(),
            confidence=0.97 if last.by == VALUE else 0.7,
            evidence={
                "side": "left" if side == "left side" else "reference",
                "boundary": boundary_name(last.boundary),
                "layers": layers,
                "declared": boundary_name(last.declared),
            },
            remedy=(
                f"If the trainer computes its targets from this entry, dump {boundary_name(layers)} too; if the targets "
                "come from elsewhere, nothing needs to change."
            ),
            severity=NOTE if honest or last.by == DECLARED else FAULT,
        )
