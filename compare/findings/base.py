"""How a finding is made, how a module's function becomes a finder, and in which order findings are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drafttrace.compare.facts import Facts
from drafttrace.compare.result import FAULT, Finding
from drafttrace.compare.vocabulary import class_of, entry
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.grammar import in_number
from drafttrace.tracer.printable import printable

Find = Callable[[Facts], Iterable[Finding]]
_ANY_TIME = 1_000


@dataclass(frozen=True)
class Finder:
    """A function from facts to findings. turn: when it is asked; findings alike in all else are told in that order.
    unpaired: it is also asked where the two sides have too few rows in common to be compared."""

    find: Find
    turn: int
    unpaired: bool

    @property
    def module(self) -> str:
        """Where it stands."""
        return self.find.__module__


FINDERS: dict[str, Finder] = {}
"""The finders of the modules that were imported so far, by module."""


def finder(*, turn: int = _ANY_TIME, unpaired: bool = False) -> Callable[[Find], Find]:
    """Mark a module's one function from facts to findings, see :class:`Finder`: every comparison asks it.

    Raises ValueError for a second one of the same module.
    """

    def marked(find: Find) -> Find:
        if find.__module__ in FINDERS:
            raise ValueError(
                f"the module {find.__module__} has two finders; let one function yield from the others"
            )
        FINDERS[find.__module__] = Finder(find, turn, unpaired)
        return find

    return marked


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
        kind=class_of(name),
        severity=severity,
        confidence=round(min(1.0, max(0.0, confidence)), 3),
        slots=tuple(slots),
        summary=in_number(summary),
        evidence=dict(evidence or {}),
        remedy=in_number(remedy),
        judged_by_level=by_level,
    )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Faults before notes, then by how much they explain."""
    return tuple(sorted(findings, key=lambda f: (f.severity != FAULT, entry(f.id).rank, -f.confidence, f.slots)))


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
