"""How a finding is made, and in which order findings are told. The closed vocabulary is ``compare/vocabulary.py``.

To add a cause: give it a line there and a place in ORDER, write a function from :class:`Facts` to findings in one of
the modules beside this one (or a new one), list it in ``FINDERS`` of this package, and add a test that puts the fault in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from drafttrace.compare.facts import Facts
from drafttrace.compare.result import FAULT, Finding
from drafttrace.compare.vocabulary import CLASS_OF
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.printable import printable

Finder = Callable[[Facts], Iterable[Finding]]

# The order in which causes are told when several hold: those that explain most come first.
ORDER = (
    "none",
    "no-overlap",
    "default-wiring",
    "slot-count",
    "fc-not-called",
    "token-shift",
    "slot-shift",
    "slot-permutation",
    "boundary-offset",
    "wrong-boundary",
    "dtype-reinterpretation",
    "rotation",
    "residual-missing",
    "norm-missing",
    "norm-extra",
    "norm-gain",
    "scale",
    "nan-inf",
    "constant-rows",
    "partial-sum",
    "rows-by-rank",
    "rank-divergence",
    "cross-request",
    "padding-leak",
    "stale-rows",
    "cold-warm",
    "decay",
    "graph-eager",
    "zero-rows",
    "modality-span",
    "weights-missing",
    "weights-replaced",
    "weights-unused",
    "vocab-map-missing",
    "vocab-map-offset",
    "vocab-map-range",
    "vocab-coverage",
    "position-seam",
    "rope-mismatch",
    "window-mismatch",
    "template-divergence",
    "mask-shift",
    "last-not-last",
    "probe-silent",
    "unexplained",
    "downstream",
    "quantization-noise",
    "prefix-gap",
    "rows-dropped",
    "trace-incomplete",
)
_PLACE = {name: place for place, name in enumerate(ORDER)}


def finding(
    name: str,
    summary: str,
    *,
    slots: Iterable[int] = (),
    confidence: float = 0.95,
    evidence: Mapping[str, Any] | None = None,
    remedy: str = "",
    severity: str = FAULT,
    by_level: bool = False,
) -> Finding:
    """A finding of the vocabulary; KeyError for a name that is not in it."""
    return Finding(
        id=name,
        kind=CLASS_OF[name],
        severity=severity,
        confidence=round(min(1.0, max(0.0, confidence)), 3),
        slots=tuple(slots),
        summary=summary,
        evidence=dict(evidence or {}),
        remedy=remedy,
        judged_by_level=by_level,
    )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Faults before notes, then by how much they explain."""
    return tuple(sorted(findings, key=lambda f: (f.severity != FAULT, _PLACE[f.id], -f.confidence, f.slots)))


def quoted(text: str, most: int = 60) -> str:
    """Text of strangers inside a summary: between typographic quotes, which reports escape, and without controls."""
    shown = printable(text[:most])
    return "“" + shown.replace("“", '"').replace("”", '"') + "”"


def boundary_list(boundaries: Iterable[int | None]) -> list[str]:
    """``["B0", "B3", "?"]`` for evidence."""
    return [boundary_name(k) for k in boundaries]


def name_slots(slots: Iterable[int]) -> str:
    """``slot 1``, ``slots 0 and 2``, ``slots 0, 1 and 2``."""
    names = [str(s) for s in slots]
    if len(names) == 1:
        return f"slot {names[0]}"
    return f"slots {', '.join(names[:-1])} and {names[-1]}"
