"""Attention of drafted chains: all rows of several texts over the keys of step 0, and each row's own later keys.

Shapes, rows first: query ``[B, R, heads, dim]``, keys ``[B, R, groups, dim]``, values ``[B, R, groups, width]``; heads
``g * heads / groups ...`` read group g. The R rows are those of several texts behind one another, and ``spans`` says
where each begins and ends: rows of one text never see another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Spans = Sequence[tuple[int, int]]
_BLOCK = 512
"""Query rows that are scored at once where not every earlier key is seen, or torch has no kernel of its own."""
_KERNEL = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""What ``scaled_dot_product_attention`` runs on a processor. Only it tells the sum that it divided by, which later steps
need; torch calls it internal, so it is done without where it is missing."""


@dataclass(frozen=True)
class Keys:
    """Keys and values of one layer and step, rotated."""

    key: Tensor
    value: Tensor


def seen(query: Tensor, keys: Keys, reach: int | None, scale: float, spans: Spans) -> tuple[Tensor, Tensor]:
    """Every row over its own key and those before it in its text, at most ``reach`` in all.

    Returns what it mixed ``[B, R, heads, width]`` and the logarithm of the scores' sum ``[B, R, heads]``.
    """
    parts = [
        _causal(query[:, begin:end], keys.key[:, begin:end], keys.value[:, begin:end], reach, scale)
        for begin, end in spans
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([mixed for mixed, _ in parts], dim=1), torch.cat([total for _, total in parts], dim=1)


def chained(
    query: Tensor, first: Keys, own: Sequence[Keys], reach: int | None, scale: float, spans: Spans
) -> Tensor:
    """A later step's attention: the keys of step 0 as :func:`seen` takes them, and the row's own keys of the steps since.

    reach: how many keys of step 0 a row sees; 0 where a window leaves only its own later ones.
    """
    batch, rows, heads, _ = query.shape
    groups = first.key.shape[2]
    grouped = query.reshape(batch, rows, groups, heads // groups, -1)
    scores = [(grouped * one.key[:, :, :, None]).sum(-1).flatten(2) * scale for one in own]
    if reach == 0:
        shares = list(torch.stack(scores).softmax(0)[..., None])
        mixed = query.new_zeros(*query.shape[:-1], first.value.shape[-1])
    else:
        mixed, total = seen(query, first, reach, scale, spans)
        past, *shares = torch.stack([total, *scores]).softmax(0)[..., None]
        mixed = mixed.mul_(past)
    parts = mixed.reshape(batch, rows, groups, heads // groups, -1)
    for share, one in zip(shares, own, strict=True):
        parts.addcmul_(share.view(batch, rows, groups, heads // groups, 1), one.value[:, :, :, None])
    return parts.flatten(2, 3)


def _causal(query: Tensor, key: Tensor, value: Tensor, reach: int | None, scale: float) -> tuple[Tensor, Tensor]:
    """One text, see :func:`seen`."""
    heads, rows = query.shape[2], query.shape[1]
    query, key, value = query.transpose(1, 2), _repeated(key, heads), _repeated(value, heads)
    if reach is None or reach >= rows:
        if _KERNEL is not None:
            return _kernel(query, key, value, None, scale)
        reach = rows
    parts = []
    for begin in range(0, rows, _BLOCK):
        end, start = min(begin + _BLOCK, rows), max(0, begin - reach + 1)
        behind = torch.arange(begin, end)[:, None] - torch.arange(start, end)[None, :]
        hidden = torch.zeros(behind.shape).masked_fill_((behind < 0) | (behind >= reach), float("-inf"))
        run = _plain if _KERNEL is None else _kernel
        parts.append(run(query[:, :, begin:end], key[:, :, start:end], value[:, :, start:end], hidden, scale))
    return torch.cat([mixed for mixed, _ in parts], dim=1), torch.cat([total for _, total in parts], dim=1)


def _repeated(x: Tensor, heads: int) -> Tensor:
    """``[B, T, groups, dim]`` as ``[B, heads, T, dim]``."""
    batch, rows, groups, dim = x.shape
    if groups == heads:
        return x.transpose(1, 2)
    return (
        x.transpose(1, 2)[:, :, None]
        .expand(batch, groups, heads // groups, rows, dim)
        .reshape(batch, heads, rows, dim)
    )


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """``[B, heads, T, ...]`` by torch's kernel, it wants values as wide as keys. hidden: added to scores (None: causal)."""
    assert _KERNEL is not None
    width, dim = value.shape[-1], max(value.shape[-1], key.shape[-1])
    query, key, value = (x if x.shape[-1] == dim else F.pad(x, (0, dim - x.shape[-1])) for x in (query, key, value))
    mixed, total = _KERNEL(query, key, value, 0.0, hidden is None, attn_mask=hidden, scale=scale)
    return mixed.transpose(1, 2)[..., :width], total.transpose(1, 2)


def _plain(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same written out."""
    scores = (query @ key.mT).mul_(scale).add_(hidden)
    total = scores.logsumexp(-1, keepdim=True)
    return (scores.sub_(total).exp_() @ value).transpose(1, 2), total[..., 0].transpose(1, 2)
