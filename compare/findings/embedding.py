"""D: the target's embedding against the rows that the draft looked up for the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.result import Finding


@finder(turn=70)
def find(facts: Facts) -> Iterator[Finding]:
    """Rows that are not their token's. A draft with an embedding of its own agrees nowhere; that is no fault."""
    share = facts.inside.embed_equal
    if (
        share is None
        or share in (0.0, 1.0)
        or "embed" in facts.left.present
        or facts.inside.alike("embed", "embed_in")
    ):
        return
    yield finding(
        "stale-rows",
        f"The draft embeds some tokens as the target does ({share:.0%} of the rows, bit for bit) and others not: those "
        "rows belong to other tokens, or to an earlier pass.",
        confidence=0.8,
        evidence={"rows_that_agree_with_the_target": share},
        remedy=(
            "Look at the token ids that the draft's forward pass is given (their shift by one, and the last one of every "
            "request), and at what fills its buffers under graphs (--disable-cuda-graph)."
        ),
    )
