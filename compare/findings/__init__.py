"""From facts to named causes: one module per group of findings, each a pure function of :class:`Facts`."""

from __future__ import annotations

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings import (
    conditions,
    copies,
    embedding,
    inside,
    positions,
    rope,
    rows,
    tokens,
    tracer,
    values,
    wiring,
)
from drafttrace.compare.findings.base import Finder, in_order
from drafttrace.compare.findings.level import Ending, conclusion, find_unexplained
from drafttrace.compare.judge import overall
from drafttrace.compare.result import Finding

FINDERS: tuple[Finder, ...] = (
    wiring.find,
    values.find,
    rows.find,
    copies.find,
    tokens.find,
    inside.find,
    embedding.find,
    positions.find,
    rope.find,
    conditions.find,
    tracer.find,
)


def diagnose(facts: Facts, compared: bool) -> tuple[Finding, ...]:
    """All findings that hold, in the order in which they should be read."""
    # A row or two that any two prompts share prove nothing about slots: then only tokens and the trace itself count.
    finders = (
        FINDERS if compared or facts.reference is None else (tokens.find, copies.find, inside.find, tracer.find)
    )
    found = [finding for find in finders for finding in find(facts)]
    if compared:
        found += find_unexplained(facts.slots, facts.others, found, facts.thresholds)
        ending = Ending(facts.acceptance, len(facts.slots), facts.reference is None, facts.thresholds)
        found += conclusion(ending, found, overall(facts.slots, found, compared))
    return in_order(found)
