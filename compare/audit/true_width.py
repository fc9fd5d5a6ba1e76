"""A ``hidden_size`` that all weights contradict: it is said once, and the rest is judged by the width of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from drafttrace.compare.audit.asking_sglang import DRAFT, Loads
from drafttrace.compare.audit.shape_remedies import shapes_of
from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.draft_config import parse_draft_config
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.result import Finding
from drafttrace.tracer.errors import UnreadableFile

_KEY = "hidden_size"
_FEWEST = 3
"""Tensors that have to differ: one or two are a bad export."""


def with_true_width(subject: Subject) -> tuple[Subject, list[Finding], Mapping[str, Any]]:
    """The subject with the width of its weights where the config's fits none of them; what to say, and what to write."""
    fc, said = matrix_shape(subject.draft_weights, "fc.weight"), subject.draft.hidden_size
    wrong = shapes_of(subject).wrong() if fc is not None and fc[0] != said else {}
    if fc is None or len(wrong) < _FEWEST:
        return subject, [], {}
    changed = _with_width(subject, fc[0])
    left = shapes_of(changed).wrong() if changed is not None else {}
    if changed is None or changed.fc_slots is None or 2 * len(left) > len(wrong):
        return subject, [], {}  # else what is left has a cause of its own
    name, (found, asked) = next(iter(wrong.items()))
    finding = fault(
        "weights-missing",
        0.95,
        f"hidden_size is {said}, and {'the' if left else 'all'} weights are of a draft {fc[0]} wide: "
        f"{len(wrong)} tensors have other shapes than "
        f"the config asks for, such as '{subject.draft_weights.names[name]}' {list(found)} instead of {list(asked)}.",
        f'"{_KEY}": {fc[0]}',
        {"field": _KEY, "config": said, "weights": fc[0], "tensors": len(wrong)},
    )
    return changed, [finding], {_KEY: fc[0]}


def _with_width(subject: Subject, width: int) -> Subject | None:
    """The subject with another ``hidden_size`` and what follows from it; None where that is no config."""
    draft = subject.draft
    try:
        made = parse_draft_config({**draft.raw, _KEY: width}, draft.path)
    except UnreadableFile:
        return None
    names = ("raw", "flat", _KEY, "target_hidden_size", "head_dim")
    loads = subject.loads
    if loads is not None:  # SGLang was asked about the file as it stands
        sizes = {
            role: {k: v for k, v in found.items() if (role, k) != (DRAFT, _KEY)}
            for role, found in loads.sizes.items()
        }
        loads = Loads(loads.version, loads.refusals, sizes)
    return replace(subject, draft=replace(draft, **{name: getattr(made, name) for name in names}), loads=loads)
