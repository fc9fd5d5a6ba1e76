"""Tensors that are stored transposed: told once, and the rest is judged as if they were stored right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from drafttrace.compare.audit.shape_remedies import shapes_of
from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.document import join
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.result import Finding

_FC = "fc.weight"


def with_turned_tensors(subject: Subject) -> tuple[Subject, list[Finding]]:
    """The subject with transposed tensors as the config asks for them, and what to say of them."""
    names = tuple(_turned(subject))
    if not names:
        return subject, []
    weights = subject.draft_weights
    right = replace(weights, turned=frozenset(names))
    stored = [weights.info(name) for name in names]
    said = join([f"'{info.name}' {list(info.shape)}" for info in stored], 4)
    asked = join([str(list(right.info(name).shape)) for name in names], 4)
    one = len(names) == 1
    finding = fault(
        "weights-missing",
        0.95,
        f"{said} {'is' if one else 'are'} stored transposed: the config asks for {asked}, so the server stops when it "
        "loads the draft.",
        f"Export {'it' if one else 'them'} again transposed, as {asked}: a linear layer's weight is [outputs, inputs]"
        + (", or under each other's names, if the two were exchanged." if _exchanged(subject, names) else "."),
        {
            "tensors": [info.name for info in stored],
            "found": [list(info.shape) for info in stored],
            "transposed": True,
        },
    )
    return replace(subject, draft_weights=right), [finding]


def _exchanged(subject: Subject, names: tuple[str, ...]) -> bool:
    """Whether two tensors have each other's shape, so that their names may be exchanged instead."""
    shapes = [subject.draft_weights.info(name).shape for name in names]
    return len(names) == 2 and shapes[0] == shapes[1][::-1]


def _turned(subject: Subject) -> Iterator[str]:
    """Matrices whose two sides are exchanged: ``fc`` by the width of the draft's last norm, others by the config."""
    fc, draft = matrix_shape(subject.draft_weights, _FC), subject.draft
    width = (draft.hidden_size,)
    turned = fc is not None and fc[1] == draft.hidden_size < fc[0] and fc[0] % draft.slot_width == 0
    if turned and subject.draft_weights.shape("norm.weight") in (width, None):
        yield _FC
    for name, (found, asked) in shapes_of(subject).wrong().items():
        if name != _FC and len(found) == 2 and found == asked[::-1]:
            yield name
