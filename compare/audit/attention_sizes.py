"""The sizes of a draft's attention, solved together from the shapes of its stored tensors.

One shape is a product of two sizes, so that no number of a config explains it where two are lost or wrong. All of them
together leave a few sets: plain attention any width of a head that divides its projections, multi-latent attention
one set for each number of heads. What the config says itself decides among these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.class_defaults import HEAD_DIM, KV_HEADS, implied_sizes
from drafttrace.compare.draft_weights import DraftWeights

Sizes = dict[str, int]
HEADS = "num_attention_heads"
_AT = "layers.0.self_attn."
_MOST_SHOWN = 3


def attention_sizes(weights: DraftWeights) -> list[Sizes]:
    """Every set of sizes that fits all attention tensors of layer 0, or of plain attention all but one or two."""
    held = {name.removeprefix(_AT): weights.info(name).shape for name in weights.names if name.startswith(_AT)}
    shapes = {name.removesuffix(".weight"): shape for name, shape in held.items() if name.endswith(".weight")}
    if any(0 in shape for shape in shapes.values()):
        return []
    solved = _latent(shapes) if "kv_a_proj_with_mqa" in shapes else _plain(shapes)
    return list(solved)


def _plain(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Sizes]:
    """Queries and keys share the width of a head, which is even: half of its channels turn with the other half.

    Where two tensors that should agree do not, each of them is believed once.
    """
    output, joint = shapes.get("o_proj", ()), shapes.get("qkv_proj")
    if len(output) != 2:
        return
    if joint is not None:
        pairs = {(output[1], (joint[0] - output[1]) // 2)} if (joint[0] - output[1]) % 2 == 0 else set()
    else:
        parts = [shapes.get(name, ()) for name in ("q_proj", "k_proj", "v_proj")]
        if any(len(part) != 2 for part in parts):
            return
        query, *keys = (part[0] for part in parts)
        pairs = {(rows, key) for rows in (query, output[1]) for key in keys}
    for rows, key in sorted(pair for pair in pairs if pair[1] > 0):
        for head_dim in _divisors(math.gcd(rows, key)):
            heads, kv_heads = rows // head_dim, key // head_dim
            if head_dim % 2 == 0 and heads % kv_heads == 0:
                yield {HEADS: heads, KV_HEADS: kv_heads, HEAD_DIM: head_dim}


def _latent(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Sizes]:
    """Rows of the two latents, and per head the parts of query, key and value that come out of them."""
    needed = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")
    if any(name not in shapes for name in needed) or len(shapes["o_proj"]) != 2:
        return
    down, latent, up = (shapes[name][0] for name in needed[:3])
    values = shapes["o_proj"][1]
    query = shapes.get("q_b_proj", shapes.get("q_proj", (0,)))[0]
    turned, plain = down - latent, up - values  # of the query: heads * turned + plain rows
    if turned <= 0 or turned % 2 or plain <= 0 or query <= plain or (query - plain) % turned:
        return
    heads = (query - plain) // turned
    if values % heads or plain % heads:
        return
    sizes = {"kv_lora_rank": latent, "qk_rope_head_dim": turned, "qk_nope_head_dim": plain // heads}
    sizes |= {HEADS: heads, "v_head_dim": values // heads}
    if "q_a_proj" in shapes:
        sizes["q_lora_rank"] = shapes["q_a_proj"][0]
    yield sizes


def _divisors(number: int) -> list[int]:
    small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)}, reverse=True)


def lines_of(sizes: Sizes, config: Mapping[str, Any], hidden_size: int) -> Sizes:
    """Those of the sizes that the config does not say already, by itself or by what follows from it."""
    heads = sizes[HEADS]
    implied = implied_sizes(config, heads, hidden_size)
    return {
        key: value
        for key, value in sizes.items()
        if (implied.get(key) if config.get(key) is None else config[key]) != value
    }


def nearest(sets: list[Sizes], config: Mapping[str, Any], hidden_size: int) -> list[Sizes]:
    """The lines of the sets that leave most of what the config says itself as it is; several where they tie.

    Config classes refuse a number of heads that does not divide the hidden size, whatever a head's width is.
    """
    whole = [sizes for sizes in sets if hidden_size % sizes[HEADS] == 0] or sets
    lines = [found for sizes in whole if (found := lines_of(sizes, config, hidden_size))]
    told = [sum(config.get(key) is not None for key in found) for found in lines]
    return [found for found, count in zip(lines, told, strict=True) if count == min(told)]


def pasted(lines: Sizes) -> str:
    """Lines to paste, all of them together."""
    return ", ".join(f'"{key}": {value}' for key, value in lines.items())


def alternatives(sets: list[Sizes]) -> str:
    """The first few sets as lines to paste."""
    more = f", or one of {len(sets) - _MOST_SHOWN} more" if len(sets) > _MOST_SHOWN else ""
    return "; or ".join(pasted(lines) for lines in sets[:_MOST_SHOWN]) + more
