"""The names under which trainers store hidden states, and which of them a file holds."""

from __future__ import annotations

from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.tensor import Tensor

STATE_FIELDS = frozenset({
    "hidden_state", "hidden_states", "aux_hidden_state", "aux_hidden_states", "last_hidden", "last_hidden_states",
    "target", "target_hiddens", "target_hidden_states", "target_last_hidden_states",
})  # fmt: skip


def named_states(document: Document) -> set[str]:
    """The names of hidden states that a dict holds, with a value or None.

    A trainer that was told not to store a state writes None in its place. By the names the file is still of its
    layout; without them it could be taken for one in which the same name means another state.
    """
    return set(STATE_FIELDS & document.keys) if isinstance(document.value, dict) else set()


def state_widths(document: Document) -> dict[str, int]:
    """The last axis of every hidden state of a dict, by name."""
    found = {name: document.tensor(name) for name in named_states(document)}
    return {name: tensor.shape[-1] for name, tensor in found.items() if tensor is not None and tensor.shape}


def some_tensor(document: Document, *names: str) -> bool:
    """Whether at least one of the fields is a tensor, and every other one a tensor or None."""
    values = [document.value[name] if name in document.keys else None for name in names]
    known = all(value is None or isinstance(value, Tensor) for value in values)
    return known and any(value is not None for value in values)
