"""From facts to named causes: one module per group of findings, each a pure function of :class:`Facts`.

The modules are found by their names: every one in this folder is imported. One that names causes registers their entries
(:mod:`drafttrace.compare.vocabulary`) and marks its function with :func:`~drafttrace.compare.findings.base.finder`.
"""

from __future__ import annotations

import importlib
import pkgutil

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import FINDERS, in_order
from drafttrace.compare.findings.broken_rows import told_once
from drafttrace.compare.findings.covered import with_unexplained
from drafttrace.compare.findings.few_rows import cautious, few_rows
from drafttrace.compare.findings.level import Ending, conclusion
from drafttrace.compare.findings.own_rows import without_repeats
from drafttrace.compare.findings.part_rows import without_wholes
from drafttrace.compare.judge import counted, overall
from drafttrace.compare.result import Finding

_loaded = False


def load() -> None:
    """Import every module of this package: each registers its entries and its finder."""
    global _loaded
    if _loaded:
        return
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    _loaded = True


def diagnose(facts: Facts, compared: bool) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """All findings that hold, in the order in which they should be read; and those for which others of them stand in."""
    load()
    finders = sorted(FINDERS.values(), key=lambda one: (one.turn, one.module))
    # A row or two that any two prompts share prove nothing about slots: then only tokens and the trace itself count.
    paired = compared or facts.reference is None
    found = told_once([finding for one in finders if paired or one.unpaired for finding in one.find(facts)])
    found = without_repeats(without_wholes(found))
    covered: tuple[Finding, ...] = ()
    if compared:
        if facts.reference is not None:
            found += few_rows(facts.slots, facts.thresholds, found)
        found, covered = with_unexplained(found, facts.slots, facts.others, facts.thresholds)
        beside = tuple(state.slot for state in facts.others)
        alone = facts.reference is None
        ending = Ending(facts.acceptance, len(facts.slots), beside, alone, facts.thresholds, facts.slots)
        judged = counted(facts.slots, facts.others, len(facts.left.slots))
        found += cautious(conclusion(ending, found, overall(judged, found, compared)), facts.slots)
    return in_order(found), covered
