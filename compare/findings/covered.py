"""What a trace's own layer sweep shows of a slot, beside what the comparison says of it by its limits: told once.

Where a limit tells of the slot, that is told, for it can be judged again by others; what the sweep shows is kept, and comes
back when the limit no longer tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from drafttrace.compare.findings.level import find_unexplained
from drafttrace.compare.findings.own_wiring import OWN_SWEEP
from drafttrace.compare.result import Finding, SlotResult
from drafttrace.compare.thresholds import Thresholds


def with_unexplained(
    found: Sequence[Finding], slots: Sequence[SlotResult], others: Sequence[SlotResult], thresholds: Thresholds
) -> tuple[list[Finding], tuple[Finding, ...]]:
    """The findings with what differs without a cause; and those of the trace's own sweep for which that stands in."""
    own = [f for f in found if f.id == "unexplained" and f.evidence.get("against") == OWN_SWEEP]
    further = list(find_unexplained(slots, others, [f for f in found if f not in own], thresholds))
    told = {slot for f in further for slot in f.slots}
    covered = tuple(f for f in own if told & set(f.slots))
    return [f for f in found if f not in covered] + further, covered
