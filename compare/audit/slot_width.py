"""A width of the slots that is not the target's: whose config is wrong, by ``fc`` and by the number of slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.audit.true_width import with_true_width
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.result import Finding

_KEY = "target_hidden_size"
_DEFAULT_SLOTS = 3


def with_true_widths(subject: Subject) -> tuple[Subject, list[Finding], Mapping[str, Any]]:
    """The subject with the widths of its weights, of the draft and of its slots; what to say of each, and what to write."""
    subject, said, changes = with_true_width(subject)
    subject, slots, more = _with_true_slot_width(subject)
    if more and not changes:  # which the wrong width of the slots had hidden
        subject, later, changes = with_true_width(subject)
        said = [*said, *later]
    return subject, [*said, *slots], {**changes, **more}


def _with_true_slot_width(subject: Subject) -> tuple[Subject, list[Finding], Mapping[str, Any]]:
    """The subject with the target's width for its slots where ``fc`` was trained on that one; what to say, and to write.

    Where ``fc`` was trained on the width that the config says, the draft is another target's, and no line helps.
    """
    draft, width = subject.draft, subject.target.hidden_size
    if draft.slot_width == width:
        return subject, [], {}
    field = _KEY if draft.target_hidden_size else "hidden_size"
    base = f"The draft expects slots {draft.slot_width} wide ({field}), the target's hidden states are {width} wide"
    facts = {"draft": draft.slot_width, "target": width}
    fc = matrix_shape(subject.draft_weights, "fc.weight")
    columns = fc[1] if fc is not None else None
    slots = _slots(columns, width, draft.slot_width, subject)
    if columns is None or slots is None:
        reads = f", and fc reads {columns} values" if columns is not None else ""
        remedy = (
            f"Give the target that the draft was trained on, whose hidden states are {draft.slot_width} wide; or train a "
            "draft on this one."
            if columns is None or columns % draft.slot_width == 0
            else f"Give the target that the draft was trained on: fc's {columns} columns are no whole number of this "
            "target's hidden states, either."
        )
        return subject, [fault("slot-count", 0.95, f"{base}{reads}.", remedy, facts)], {}
    found = fault(
        "slot-count",
        0.95,
        f"{base}, and fc reads {columns} values, {slots} slots of the target's width.",
        f'"{_KEY}": {width}',
        {**facts, "field": _KEY, "fc": columns},
    )
    return _with_width(subject, width), [found], {_KEY: width}


def _slots(columns: int | None, width: int, said: int, subject: Subject) -> int | None:
    """How many slots of the target's width ``fc`` reads; None where it was not trained on them."""
    if columns is None or columns % width:
        return None
    slots = columns // width
    if slots in _counts(subject):
        return slots
    as_said = columns // said if columns % said == 0 else None
    return None if as_said is not None else slots


def _counts(subject: Subject) -> set[int]:
    """The numbers of slots that the config, or what training used, names; the default's where none does."""
    draft = subject.draft
    listed = [draft.num_aux, *(len(ids.ids) for ids in (draft.layer_ids, *draft.other_ids) if ids is not None)]
    trained = [len(subject.trained)] if subject.trained is not None else []
    return {count for count in (*listed, *trained) if count} or {_DEFAULT_SLOTS}


def _with_width(subject: Subject, width: int) -> Subject:
    draft = subject.draft
    raw, flat = ({**config, _KEY: width} for config in (draft.raw, draft.flat))
    return replace(subject, draft=replace(draft, raw=raw, flat=flat, target_hidden_size=width))
