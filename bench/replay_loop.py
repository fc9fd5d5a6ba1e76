"""The draft one token at a time, as a straightforward script would run it: what the batched replay is measured against.

Independent of ``compare/replay/model.py`` on purpose: it also serves as the reference of the replay's tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from drafttrace.compare.draft_config import DraftConfig


@dataclass
class Cache:
    """Keys and values ``[heads, dim]`` seen so far, oldest first."""

    keys: list[Tensor]
    values: list[Tensor]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean() + eps) * weight


def turn(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of one token ``[heads, dim]``, halves convention."""
    half = x.shape[-1] // 2
    angle = position * theta ** -(torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos().float(), angle.sin().float()
    first, second = x[:, :half], x[:, half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def layer(w: Mapping[str, Tensor], c: DraftConfig, h: Tensor, e: Tensor, position: int, cache: Cache) -> Tensor:
    """One decoder layer for one token; appends to the cache."""
    at = "layers.0."
    x = torch.cat(
        (
            norm(e, w[at + "input_layernorm.weight"], c.eps),
            norm(h, w[at + "hidden_norm.weight"], c.eps),
        )
    )

    def heads(name: str, count: int) -> Tensor:
        return (w[f"{at}self_attn.{name}.weight"] @ x).view(count, c.head_dim)

    repeat = c.heads // c.kv_heads
    query = turn(heads("q_proj", c.heads), position, c.rope.theta)
    cache.keys.append(turn(heads("k_proj", c.kv_heads), position, c.rope.theta).repeat_interleave(repeat, 0))
    cache.values.append(heads("v_proj", c.kv_heads).repeat_interleave(repeat, 0))
    seen = slice(-(c.windows[0] or len(cache.keys)), None)
    keys, values = torch.stack(cache.keys[seen], 1), torch.stack(cache.values[seen], 1)
    share = ((keys @ query[:, :, None])[..., 0] * c.head_dim**-0.5).softmax(-1)
    mixed = (share[:, None, :] @ values)[:, 0].reshape(-1)
    h = h + w[at + "self_attn.o_proj.weight"] @ mixed
    m = norm(h, w[at + "post_attention_layernorm.weight"], c.eps)
    gate = torch.nn.functional.silu(w[at + "mlp.gate_proj.weight"] @ m)
    return h + w[at + "mlp.down_proj.weight"] @ (gate * (w[at + "mlp.up_proj.weight"] @ m))


def run_loop(
    w: Mapping[str, Tensor], c: DraftConfig, slots: Tensor, embedding: Tensor, tokens: Tensor, steps: int
) -> Tensor:
    """Draft ids ``[rows, steps]``: for every row a chain that reads the text's own tokens, cache and all.

    slots ``[rows, K*H]``; embedding ``[vocab, H]``; tokens ``[T]``. Tokens beyond the text read zeros.
    """

    def embed(place: int) -> Tensor:
        return embedding[tokens[place]] if place < len(tokens) else torch.zeros(embedding.shape[1])

    cache = Cache([], [])
    found = torch.zeros(len(slots), steps, dtype=torch.long)
    for t in range(len(slots)):
        h = layer(w, c, w["fc.weight"] @ slots[t], embed(t + 1), t, cache)
        found[t, 0] = (w["lm_head.weight"] @ norm(h, w["norm.weight"], c.eps)).argmax()
        chain = Cache(list(cache.keys), list(cache.values))
        for s in range(1, steps):
            h = layer(w, c, h, embed(t + 1 + s), t + s, chain)
            found[t, s] = (w["lm_head.weight"] @ norm(h, w["norm.weight"], c.eps)).argmax()
    return found
