"""The closed vocabulary of findings. Every cause is an :class:`Entry`, which stands in the module that finds it.

A new cause is one module in ``compare/findings/`` that calls :func:`register` and has its function ``find`` beside that,
and one test. What only the audit and the replay name is in ``compare/audit/causes.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = (
    "wiring",
    "norm",
    "weights",
    "vocabulary",
    "position",
    "token",
    "cache",
    "ranks",
    "batching",
    "number-format",
    "multimodal",
    "data",
    "downstream",
    "unknown",
    "tracer",
)
"""The classes of findings, in the order of the faults' list. A class is part of the result's contract."""

_LAST = 1_000


@dataclass(frozen=True)
class Entry:
    """One cause that drafttrace can name.

    id: as in ``findings[].id``. kind: its class, of KINDS. rank: its place among the causes when several hold, the
    smallest first: those that explain most; ours are ten apart. what: what is wrong. signature: what the finding rests
    on. remedy: the general one; the finding itself prints the line for the case at hand. cases: public threads about a
    fault of that kind, written ``project#number``. listed: its place within its class in the documents.
    """

    id: str
    kind: str
    rank: int
    what: str
    signature: str
    remedy: str
    cases: tuple[str, ...] = ()
    listed: int = _LAST


_ENTRIES: dict[str, Entry] = {}


def register(*entries: Entry) -> None:
    """Add causes. Raises ValueError for an id that is taken, and for a class that is none of KINDS."""
    for one in entries:
        if one.id in _ENTRIES:
            raise ValueError(f"the finding {one.id} is registered twice")
        if one.kind not in KINDS:
            raise ValueError(f"the finding {one.id} has the class '{one.kind}'; the classes are {', '.join(KINDS)}")
        _ENTRIES[one.id] = one


def entry(name: str) -> Entry:
    """The entry of an id; KeyError for an id that is not in the vocabulary."""
    if name not in _ENTRIES:
        _load()
    return _ENTRIES[name]


def class_of(name: str) -> str:
    """The class of an id; KeyError for an id that is not in the vocabulary."""
    return entry(name).kind


def entries() -> Mapping[str, Entry]:
    """All causes by id, in the order of the documentation: by class, then as listed."""
    _load()
    ordered = sorted(_ENTRIES.values(), key=lambda one: (KINDS.index(one.kind), one.listed, one.id))
    return {one.id: one for one in ordered}


def classes() -> Mapping[str, tuple[str, ...]]:
    """Class to ids, in the order of the documentation."""
    found = entries().values()
    return {kind: tuple(one.id for one in found if one.kind == kind) for kind in KINDS}


def _load() -> None:
    # Here, and not above: the modules with the entries read this one, and cost an import of numpy.
    from drafttrace.compare import findings
    from drafttrace.compare.audit import causes  # noqa: F401  (it registers its entries)

    findings.load()
