"""Greedy decoding in batches with transformers on a CPU, keeping the hidden states on the way.

The states of a training dump cost nothing extra this way. Two things make it about three times as fast as `generate`:
the cache writes in place instead of being copied at every step, and the query heads of a group share their key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask


@dataclass(frozen=True)
class Said:
    """An answer, and the states ``[prompt + answer - 1, K, H]`` (bf16) of all tokens but the last, which is not fed."""

    tokens: list[int]
    states: Tensor


def _grouped(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """One query token per row: the heads of a group become the queries of their key's head, nothing is repeated."""
    batch, heads, length, width = query.shape
    if length > 1:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return out, None
    grouped = query.view(batch, key.shape[1], -1, width)
    made = F.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=options.get("scaling")
    )
    return made.reshape(batch, 1, heads, width), None


AttentionInterface.register("grouped", _grouped)
AttentionMaskInterface.register("grouped", sdpa_mask)


class _InPlace(DynamicLayer):  # type: ignore[misc]
    """A cache layer of a fixed room, ``[rows, heads, room, width]``, that hands out views."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.used = room, 0
        self.store: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        rows, heads, length, width = key_states.shape
        if self.store is None:
            self.lazy_initialization(key_states, value_states)
            self.store = key_states.new_zeros(2, rows, heads, self.room, width)
        span = slice(self.used, self.used + length)
        self.store[0, :, :, span], self.store[1, :, :, span] = key_states, value_states
        self.used += length
        self.keys, self.values = self.store[0, :, :, : self.used], self.store[1, :, :, : self.used]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.store is not None:
            self.store = self.store[:, indices]
            self.keys, self.values = self.store[0, :, :, : self.used], self.store[1, :, :, : self.used]


def pick(hidden_states: Sequence[Tensor], boundaries: Sequence[int]) -> Tensor:
    """``[rows, length, K, H]`` out of transformers' hidden states: B(k) for k < n, and last/post for k = n."""
    return torch.stack([hidden_states[k] for k in boundaries], dim=2)


@torch.inference_mode()
def answer(
    model: Any, prompts: Sequence[Sequence[int]], end_id: int, limit: int, boundaries: Sequence[int]
) -> list[Said]:
    """Greedy answers of up to ``limit`` tokens to prompts of about one length (they are padded on the left)."""
    width = max(map(len, prompts))
    ids = torch.tensor([[end_id] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    said: list[list[int]] = [[] for _ in prompts]
    states: list[list[Tensor]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # which answer each row of the batch belongs to
    cache = Cache(layers=[_InPlace(width + limit) for _ in range(model.config.num_hidden_layers)])
    for step in range(limit):
        out = model(
            ids,
            attention_mask=mask,
            position_ids=position,
            past_key_values=cache,
            logits_to_keep=1,
            output_hidden_states=True,
        )
        kept_states = pick(out.hidden_states, boundaries)
        token = out.logits[:, -1].argmax(-1)
        for i, (row, value) in enumerate(zip(rows, token.tolist(), strict=True)):
            if end_id not in said[row]:
                states[row].append(kept_states[i, width - len(prompts[row]) :] if step == 0 else kept_states[i])
                said[row].append(value)
        going = torch.tensor([end_id not in said[row] for row in rows])
        if not bool(going.any()):
            break
        if int(going.sum()) <= 0.8 * len(rows):  # rows that have ended cost as much as the others
            kept = going.nonzero()[:, 0]
            cache.batch_select_indices(kept)
            mask, position, token = mask[kept], position[kept], token[kept]
            rows = [rows[i] for i in kept.tolist()]
        ids, position = token[:, None], position[:, -1:] + 1
        mask = torch.cat((mask, mask.new_ones(len(rows), 1)), -1)
    return [Said(tokens, torch.cat(parts)) for tokens, parts in zip(said, states, strict=True)]
