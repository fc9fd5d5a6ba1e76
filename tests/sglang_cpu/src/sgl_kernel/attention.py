"""Attention over SGLang's paged KV cache: extend (prefill, verify, draft extend) and decode.

Call sites: ``sglang/srt/layers/attention/intel_amx_backend.py``, ``IntelAMXAttnBackend.forward_extend`` and
``forward_decode``.

Shapes: T new rows of all requests together, R requests, S cache slots, Hq query heads, Hk key/value heads (Hq is a
multiple of Hk), D query/key width, Dv value width.

The arithmetic is float32 whatever the inputs are; only the output is rounded to its own type.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Softmax:
    """How scores become weights: everything that does not depend on positions."""

    scale: float
    logit_cap: float = 0.0
    sinks: Tensor | None = None


def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Attention of the new rows of each request to its cached prefix and to each other; writes ``out``.

    q [T, Hq, D], k [T, Hk, D], v [T, Hk, Dv], out [T, Hq, Dv]; k_buffer [S, Hb, D], v_buffer [S, Hb, Dv];
    req_to_token [pool, context] int; req_pool_indices, seq_lens (new rows included), extend_seq_lens and
    extend_start_loc [R]; tree_mask: flat bool, per request new rows x new rows, row by row (what
    ``TreeMaskMode.QLEN_ONLY`` builds), replaces the causal mask among the new rows; sinks [Hq].

    The new rows' keys and values come from k and v, not from the cache: in an MLA prefill they are per head while
    the cache holds one latent (then no prefix is read at all). With k and v None, all of them come from the cache.
    ``sliding_window`` is 0 for none, else how many keys a row sees, itself included.
    """
    _refuse_unsupported(is_cross_attention, k_buffer, k_scale, v_scale)
    softmax = Softmax(scaling, logit_cap, sinks)
    totals, news, starts = seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist()
    mask_start = 0
    # A padded batch (attention data parallelism) has more pool indices than sequences; its padding rows are left alone.
    tables = req_to_token[req_pool_indices[: len(totals)]]
    for slots, total, new, start in zip(tables, totals, news, starts, strict=True):
        rows = slice(start, start + new)
        mask_end = mask_start + new * new
        if new:
            if k is None or v is None:
                keys, values = k_buffer[slots[:total]], v_buffer[slots[:total]]
            elif prefix := total - new:
                keys = torch.cat((k_buffer[slots[:prefix]], k[rows]))
                values = torch.cat((v_buffer[slots[:prefix]], v[rows]))
            else:
                keys, values = k[rows], v[rows]
            tree = None if tree_mask is None else tree_mask[mask_start:mask_end].view(new, new)
            visible = _visible(new, total, is_causal, sliding_window, tree)
            out[rows] = _attend(q[None, rows], keys[None], values[None], visible, softmax)[0]
        mask_start = mask_end


def decode_attention_cpu(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    out: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor | None,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Stores one new row per request in the cache, then attends from it to all that the request has cached.

    q [R, Hq, D], k [R, Hk, D], v [R, Hk, Dv] (both None if already stored), loc [R] the new rows' slots,
    out [R, Hq, Dv]; the buffers and the index tensors as in ``extend_attention_cpu``, seq_lens with the new row.
    ``attn_logits`` is scratch space of the C++ kernel; nothing reads it.
    """
    _refuse_unsupported(is_cross_attention, k_buffer, k_scale, v_scale)
    if k is not None and v is not None:
        k_buffer[loc] = k.reshape(-1, *k_buffer.shape[1:])
        # In an MLA pool v_buffer is a view of k_buffer's first channels, and k already holds them.
        if v_buffer.data_ptr() != k_buffer.data_ptr():
            v_buffer[loc] = v.reshape(-1, *v_buffer.shape[1:])
    lengths = seq_lens.tolist()
    if not lengths:
        return
    longest = max(lengths)
    # What a row of the table holds past its request's end is stale; slot 0 always exists.
    slots = req_to_token[req_pool_indices, :longest]
    visible = None
    if min(lengths) < longest or 0 < sliding_window < longest:
        position = torch.arange(longest)
        visible = position < seq_lens[:, None]
        if sliding_window > 0:
            visible &= position >= seq_lens[:, None] - sliding_window
        slots = slots.masked_fill(~visible, 0)
    keys, values = k_buffer[slots], v_buffer[slots]
    if visible is not None:
        # A weight of zero does not hide a NaN, and slot 0 takes the rows of padded tokens.
        keys = keys.masked_fill(~visible[:, :, None, None], 0)
        values = values.masked_fill(~visible[:, :, None, None], 0)
        visible = visible[:, None]
    out.copy_(_attend(q[:, None], keys, values, visible, Softmax(scaling, logit_cap, sinks))[:, 0])


def _refuse_unsupported(is_cross_attention: bool, k_buffer: Tensor, k_scale: float, v_scale: float) -> None:
    if is_cross_attention:
        raise NotImplementedError("sgl_kernel of drafttrace's CPU tests has no cross attention")
    if k_buffer.dtype.itemsize < 2 or (k_scale, v_scale) != (1.0, 1.0):
        raise NotImplementedError(
            f"sgl_kernel of drafttrace's CPU tests has no quantised KV cache ({k_buffer.dtype}, scales "
            f"{k_scale} and {v_scale}): start the server with --kv-cache-dtype auto"
        )


def _visible(new: int, total: int, causal: bool, sliding_window: int, tree: Tensor | None) -> Tensor | None:
    """Which keys each new row sees, [new, total] bool; None where it is all of them."""
    if tree is None and (new == 1 or not causal) and not 0 < sliding_window < total:
        return None
    prefix = total - new
    row, column = torch.arange(prefix, total)[:, None], torch.arange(total)
    visible = torch.ones(new, total, dtype=torch.bool)
    if tree is not None:
        visible[:, prefix:] = tree
    elif causal:
        visible = column <= row
    if sliding_window > 0:
        visible &= row - column < sliding_window
    return visible


def _attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, softmax: Softmax) -> Tensor:
    """q [R, N, Hq, D], k [R, M, Hk, D], v [R, M, Hk, Dv], visible [(R,) N, M] -> [R, N, Hq, Dv] float32."""
    if visible is not None and visible.dim() == 3:
        visible = visible[:, None]
    if softmax.logit_cap <= 0 and softmax.sinks is None:
        q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=softmax.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return mixed.transpose(1, 2)
    requests, rows, heads, _ = q.shape
    groups = k.shape[2]
    # Query head h reads key head h // (Hq / Hk): put the heads of one group side by side.
    q_grouped = q.float().view(requests, rows, groups, heads // groups, -1).permute(0, 2, 3, 1, 4)
    q_grouped = q_grouped.reshape(requests, groups, -1, q.shape[-1])
    scores = q_grouped @ k.float().permute(0, 2, 3, 1) * softmax.scale
    if softmax.logit_cap > 0:
        scores = softmax.logit_cap * torch.tanh(scores / softmax.logit_cap)
    scores = scores.view(requests, groups, heads // groups, rows, -1)
    if visible is not None:
        scores = scores.masked_fill(~visible if visible.dim() == 2 else ~visible[:, None], -torch.inf)
    if softmax.sinks is not None:
        # A sink is one more score that takes its share of the weight and gives nothing.
        sinks = softmax.sinks.float().view(1, groups, -1, 1, 1).expand(requests, -1, -1, rows, -1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    mixed = weights.reshape(requests, groups, -1, k.shape[1]) @ v.float().permute(0, 2, 1, 3)
    mixed = mixed.view(requests, groups, heads // groups, rows, -1)
    return mixed.permute(0, 3, 1, 2, 4).reshape(requests, rows, heads, -1)
