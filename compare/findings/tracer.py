"""M: the tracer's own state - taps that never fired, rows that were dropped, a trace that ended early."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding, quoted
from drafttrace.compare.plurals import plural
from drafttrace.compare.result import FAULT, NOTE, Finding
from drafttrace.compare.vocabulary import Entry, register
from drafttrace.tracer.capture import Capture, Probe

_MOST_NAMES = 8

register(
    Entry(
        id="probe-silent",
        kind="tracer",
        rank=440,
        listed=10,
        what="A tap of the recorder never fired.",
        signature="The trace's table of probes.",
        remedy="Run drafttrace doctor: it says which hook does not fit the installed SGLang.",
    ),
    Entry(
        id="rows-dropped",
        kind="tracer",
        rank=490,
        listed=20,
        what="The recorder dropped rows because a budget was used up.",
        signature="The trace counts them.",
        remedy="Record fewer tokens or boundaries, or raise the budgets of drafttrace serve.",
    ),
    Entry(
        id="trace-incomplete",
        kind="tracer",
        rank=500,
        listed=30,
        what="The trace ends before the request did.",
        signature="Its complete attribute is false; it says why.",
        remedy="Record again; the server's log says more.",
    ),
)


@finder(turn=110, unpaired=True)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings about probes and completeness, on either side."""
    fc_silent = facts.inside.fc_ran is False
    for side, capture in (("left", facts.left), ("reference", facts.reference)):
        if capture is None:
            continue
        silent = [p for p in capture.probes if p.expected > 0 and p.fired == 0]
        if side == "left" and fc_silent:
            silent = [p for p in silent if "fc" not in p.name]
        if silent:
            names = ", ".join(p.name for p in silent)
            yield finding(
                "probe-silent",
                f"The {side} trace has taps that never fired: {names}. Nothing is known about what they would have seen.",
                confidence=0.99,
                evidence={p.name: {"expected": p.expected, "fired": p.fired} for p in silent},
                remedy="Run drafttrace doctor: it says which hook does not fit the installed SGLang.",
                severity=FAULT if side == "left" else NOTE,
            )
        some = [p for p in capture.probes if 0 < p.fired < p.expected]
        if some:
            yield _half_silent(side, some)
        dropped = [p for p in capture.probes if p.dropped > 0]
        if dropped:
            yield finding(
                "rows-dropped",
                f"The {side} trace dropped {plural(max(p.dropped for p in dropped), 'row')}: "
                f"{_reason(capture) or 'its budget or its queue was full'}.",
                confidence=0.99,
                evidence={p.name: {"rows": p.rows, "dropped": p.dropped} for p in dropped},
                remedy="Record fewer tokens or taps, or raise the budget of drafttrace serve.",
                severity=NOTE,
            )
        if not capture.complete:
            yield finding(
                "trace-incomplete",
                f"The {side} trace is incomplete: {_reason(capture) or 'recording ended before the request did'}. What it "
                "holds was compared.",
                confidence=0.99,
                evidence={"notes": list(capture.notes[:5])},
                remedy="Record again; if it happens again, the server's log says why (search for drafttrace).",
                severity=NOTE,
            )


def _half_silent(side: str, probes: Sequence[Probe]) -> Finding:
    """Taps that missed some passes: what those computed is in no row, so that nothing is said of it."""
    first = max(probes, key=lambda p: (p.expected - p.fired) / p.expected)
    names = ", ".join(p.name for p in probes[:_MOST_NAMES])
    more = f" and {len(probes) - _MOST_NAMES} more" if len(probes) > _MOST_NAMES else ""
    return finding(
        "probe-silent",
        f"The {side} trace has taps that fired in some passes only: {names}{more} ({first.name}: {first.fired} of "
        f"{first.expected}). Nothing is known about the others.",
        confidence=0.99,
        evidence={p.name: {"expected": p.expected, "fired": p.fired, "rows": p.rows} for p in probes},
        remedy="Run drafttrace doctor: it says which hook does not fit the installed SGLang. Passes that run as CUDA "
        "graphs and others that do not are what most often differs: compare with --disable-cuda-graph.",
        severity=NOTE,
    )


def _reason(trace: Capture) -> str:
    """Why the recorder says that a trace is incomplete, between quotes; empty where it says nothing."""
    request = trace.about.get("request")
    reason = request.get("incomplete_reason") if isinstance(request, Mapping) else None
    return quoted(reason, 200) if isinstance(reason, str) and reason else ""
