"""Layer ids that are no integers, where SGLang looks for them: what it makes of them, and what to write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from drafttrace.compare.audit.class_tensors import draft_class
from drafttrace.compare.audit.remedies import wiring_remedy
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.draft_config import NESTED, PLAIN_CLASS, DraftConfig, LayerIds
from drafttrace.compare.odd_ids import numbers_only, problem_of, short_value, taken_for, written_for
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import wiring_name

_FIELD = f'"{NESTED.rsplit(".", 1)[-1]}"'


def whole_ids(draft: DraftConfig) -> DraftConfig:
    """The draft with ids such as 3.0 and true as the integers that SGLang takes them for: it only adds and compares."""
    ids = taken_for(draft.nested_ids)
    if draft.ids_problem is None or ids is None:
        return draft
    others = draft.other_ids if draft.layer_ids is None else (draft.layer_ids, *draft.other_ids)
    return replace(draft, layer_ids=LayerIds(ids, NESTED), other_ids=others)


def stops_at_the_object(draft: DraftConfig) -> bool:
    """Whether the plain class stops at an ``eagle_config`` that is no object: it asks whatever stands there for a key."""
    found = _object(draft)
    return draft_class(draft) == PLAIN_CLASS and bool(found) and not isinstance(found, dict)


def _object(draft: DraftConfig) -> object:
    return draft.raw.get("eagle_config")


def _no_object(subject: Subject) -> Finding:
    value, reader, wanted = _object(subject.draft), subject.reader, subject.trained
    slots = subject.fc_slots or 3
    if wanted is None and reader is not None and isinstance(value, list) and problem_of(NESTED, value) is None:
        served = reader.served(value, subject.target.layers)
        wanted = served if len(served) == len(value) == slots else None
    default = subject.served.wiring or ()
    line = f'"eagle_config": {{{_FIELD}: […]}} with the {slots} ids that training used'
    if wanted is not None or len(default) == slots:
        line = wiring_remedy(subject, default if wanted is None else wanted)
    return fault(
        "fc-not-called",
        0.95,
        f"eagle_config is {short_value(value)}, where an object belongs: {PLAIN_CLASS} asks it for a key and the server "
        "stops with an AttributeError.",
        f"Write an object: {line}.",
        {"field": "eagle_config", "value": short_value(value)},
    )


def odd_id_findings(subject: Subject) -> Iterator[Finding]:
    """Ids that a server reads all the same, as a hint; ids that no server can use, as a fault."""
    draft, problem = subject.draft, subject.draft.ids_problem
    if stops_at_the_object(draft):
        yield _no_object(subject)
    if problem is None or not problem.startswith(NESTED) or subject.reader is None:
        return
    if subject.served.ids is not None:
        ids = list(subject.served.ids)
        yield note(
            "default-wiring",
            0.5,
            f"{problem}; {subject.served.who} takes them for {ids} and serves "
            f"{wiring_name(subject.served.wiring or ())}, and other readers may refuse them or take their default.",
            f"Write integers: {_FIELD}: {ids}" if writable_ids(subject) is not None else _remedy(subject),
            {"ids": ids, "problem": problem},
        )
        return
    numbers = numbers_only(draft.nested_ids)
    yield fault(
        "slot-count" if numbers else "fc-not-called",
        0.95,
        f"{problem}: {subject.served.who} {_effect(draft.nested_ids)}.",
        _remedy(subject),
        {"problem": problem, "ids": repr(draft.nested_ids)[:200]},
    )


def _effect(ids: object) -> str:
    """What a server does with ids that it cannot use."""
    if ids == []:
        return "hands over no slot at all"
    if numbers_only(ids):
        return "finds no layer of such a number and hands over a slot less for each"
    return "stops at them with a TypeError, or finds no layer of such a name and hands over a slot less for each"


def writable_ids(subject: Subject) -> tuple[int, ...] | None:
    """The ids that somebody surely meant, where this server hands over a slot for each; None where the next check would
    refuse them again (an id twice, one beyond the target)."""
    ids, reader = written_for(subject.draft.nested_ids), subject.reader
    if ids is None or reader is None or len(reader.served(ids, subject.target.layers)) != len(ids):
        return None
    return ids


def _remedy(subject: Subject) -> str:
    if subject.trained is not None:
        return wiring_remedy(subject, subject.trained)
    meant = writable_ids(subject)
    if meant is not None:
        return f"Write integers: {_FIELD}: {list(meant)}"
    return (
        f"Write the whole numbers of the training run in {_FIELD}; where nobody knows them, --dump or --trained finds the "
        "line to write, and drafttrace replay --search the wiring by value."
    )
