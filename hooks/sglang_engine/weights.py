"""Which weights a server holds, as a trace tells it: what of the draft is its own, and what it shares with the target.

Names, shapes and number formats only: no value is read, so it costs nothing on a GPU. With a tensor-parallel server the
shapes are those of this rank's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import Tensor, nn

# Of a target of hundreds of layers, what a draft can share or replace.
_OF_TARGET = ("embed_tokens.weight", "lm_head.weight", "norm.weight")


def audit(target: nn.Module, draft: nn.Module | None) -> dict[str, Any]:
    """``{"target": {"tensors", "bytes", "held": {name: ...}}, "draft": the same, all of it held}``.

    Every entry of ``held`` has ``shape`` and ``dtype``, one of the draft also ``shared_with``: the target's tensor that
    lies in the same memory (a draft without an own embedding or head), else None.
    """
    ours = dict(_tensors(target))
    places = {_place(tensor): name for name, tensor in ours.items() if tensor.numel() and _place(tensor)[0]}
    known = {name: tensor for name, tensor in ours.items() if _is_outer(name)}
    found = {"target": {**_size(ours), "held": {name: _told(tensor) for name, tensor in known.items()}}}
    if draft is not None:
        theirs = dict(_tensors(draft))
        held = {
            name: {**_told(tensor), "shared_with": places.get(_place(tensor))} for name, tensor in theirs.items()
        }
        found["draft"] = {**_size(theirs), "held": held}
    return found


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    # A tensor under two names is told twice: which names are one is what a reader wants to know.
    yield from chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))


def _is_outer(name: str) -> bool:
    """Whether a tensor of the target stands outside its layers, and is one of those that a draft can share."""
    return name.endswith(_OF_TARGET) and "layers." not in name


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _told(tensor: Tensor) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def _size(tensors: dict[str, Tensor]) -> dict[str, int]:
    apart = {_place(tensor): tensor for tensor in tensors.values()}
    return {"tensors": len(apart), "bytes": sum(t.numel() * t.element_size() for t in apart.values())}
