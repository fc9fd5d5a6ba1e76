"""The attention kernels of the CPU test server against loops over requests, heads and rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

# On a machine with the real sgl_kernel there is nothing to test.
pytest.importorskip("sgl_kernel.torch_ops", exc_type=ImportError)


@dataclass
class Batch:
    """Random requests: what is cached, what is new, and where the cache keeps it."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_buffer: Tensor
    v_buffer: Tensor
    req_to_token: Tensor
    rows: Tensor
    totals: Tensor
    news: Tensor

    @property
    def starts(self) -> Tensor:
        return self.news.cumsum(0) - self.news


def make_batch(
    prefixes: list[int],
    news: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 8,
    value_width: int = 8,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    totals = [p + n for p, n in zip(prefixes, news, strict=True)]
    slots = sum(totals) + 5
    order = torch.randperm(slots - 1, generator=generator) + 1
    pool = len(news) + 2
    # Past its request's end a row holds whatever was there before.
    req_to_token = torch.randint(0, slots, (pool, max(totals) + 3), generator=generator, dtype=torch.int32)
    rows = torch.randperm(pool, generator=generator)[: len(news)]
    k_buffer, v_buffer = random(slots, kv_heads, width), random(slots, kv_heads, value_width)
    new_k, new_v = [], []
    used = 0
    for row, prefix, total in zip(rows.tolist(), prefixes, totals, strict=True):
        mine = order[used : used + total]
        used += total
        req_to_token[row, :total] = mine.int()
        new_k.append(k_buffer[mine[prefix:]])
        new_v.append(v_buffer[mine[prefix:]])
    return Batch(
        random(sum(news), heads, width),
        torch.cat(new_k),
        torch.cat(new_v),
        k_buffer,
        v_buffer,
        req_to_token,
        rows,
        torch.tensor(totals),
        torch.tensor(news),
    )


def extend(batch: Batch, *, k: Tensor | None, v: Tensor | None, **options: Any) -> Tensor:
    out = torch.full((len(batch.q), batch.q.shape[1], batch.v_buffer.shape[2]), 9.0, dtype=batch.q.dtype)
    torch.ops.sgl_kernel.extend_attention_cpu(
        batch.q,
        k,
        v,
        out,
        batch.k_buffer,
        batch.v_buffer,
        1.0,
        1.0,
        batch.req_to_token,
        batch.rows,
        batch.totals,
        batch.news.int(),
        batch.starts.int(),
        int(batch.news.max()),
        options.get("scaling", 0.3),
        options.get("logit_cap", 0.0),
        False,
        options.get("window", 0),
        None,
        options.get("sinks"),
        options.get("tree_mask"),
        options.get("causal", True),
    )
    return out


def one_row(
    q: Tensor, keys: Tensor, values: Tensor, seen: list[int], *, scaling: float, cap: float, sink: float | None
) -> list[float]:
    """One query head over the keys of one head that it sees: softmax by hand, in double precision."""
    scores = []
    for position in seen:
        score = scaling * sum(a * b for a, b in zip(q.tolist(), keys[position].tolist(), strict=True))
        scores.append(cap * math.tanh(score / cap) if cap > 0 else score)
    weights = [math.exp(score) for score in scores]
    total = sum(weights) + (math.exp(sink) if sink is not None else 0.0)
    columns = values[seen].double().T.tolist()
    return [sum(w * x for w, x in zip(weights, column, strict=True)) / total for column in columns]


def extend_by_hand(batch: Batch, *, use_cache_for_new: bool = False, **options: Any) -> Tensor:
    heads, kv_heads = batch.q.shape[1], (batch.k_buffer if use_cache_for_new else batch.k).shape[1]
    window, tree, sinks = options.get("window", 0), options.get("tree_mask"), options.get("sinks")
    result = []
    mask_start = 0
    for request, row in enumerate(batch.rows.tolist()):
        total, new, start = (int(x[request]) for x in (batch.totals, batch.news, batch.starts))
        prefix = total - new
        slots = batch.req_to_token[row, :total].tolist()
        if use_cache_for_new:
            keys, values = batch.k_buffer[slots], batch.v_buffer[slots]
        else:
            keys, values = batch.k[start : start + new], batch.v[start : start + new]
            if prefix:
                keys = torch.cat((batch.k_buffer[slots[:prefix]], keys))
                values = torch.cat((batch.v_buffer[slots[:prefix]], values))
        for i in range(new):
            seen = list(range(prefix))
            for j in range(new):
                if tree is not None:
                    visible = bool(tree[mask_start + i * new + j])
                else:
                    visible = j <= i or not options.get("causal", True)
                if visible:
                    seen.append(prefix + j)
            if window:
                seen = [position for position in seen if prefix + i - position < window]
            result.append(
                [
                    one_row(
                        batch.q[start + i, head],
                        keys[:, head // (heads // kv_heads)],
                        values[:, head // (heads // kv_heads)],
                        seen,
                        scaling=options.get("scaling", 0.3),
                        cap=options.get("logit_cap", 0.0),
                        sink=None if sinks is None else float(sinks[head]),
                    )
                    for head in range(heads)
                ]
            )
        mask_start += new * new
    return torch.tensor(result)


def decode(batch: Batch, *, store: bool = True, loc: Tensor | None = None, **options: Any) -> Tensor:
    out = torch.full((len(batch.q), batch.q.shape[1], batch.v_buffer.shape[2]), 9.0, dtype=batch.q.dtype)
    torch.ops.sgl_kernel.decode_attention_cpu(
        batch.q,
        batch.k_buffer,
        batch.v_buffer,
        1.0,
        1.0,
        out,
        batch.k if store else None,
        batch.v if store else None,
        loc,
        torch.zeros(1),
        batch.req_to_token,
        batch.rows,
        batch.totals,
        options.get("scaling", 0.3),
        options.get("logit_cap", 0.0),
        False,
        options.get("window", 0),
        None,
        options.get("sinks"),
    )
    return out


requests = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5)), min_size=1, max_size=4)
head_counts = st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 2), (4, 1)])


@settings(max_examples=60, deadline=None)
@given(
    requests,
    head_counts,
    st.sampled_from([(4, 4), (6, 3)]),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([0, 1, 3, 100]),
    st.booleans(),
    st.integers(0, 9),
)
def test_extend_equals_loops(
    sizes: list[tuple[int, int]],
    heads: tuple[int, int],
    widths: tuple[int, int],
    cap: float,
    window: int,
    with_sinks: bool,
    seed: int,
) -> None:
    batch = make_batch(
        [p for p, _ in sizes],
        [n for _, n in sizes],
        heads=heads[0],
        kv_heads=heads[1],
        width=widths[0],
        value_width=widths[1],
        seed=seed,
    )
    sinks = torch.linspace(-1, 1, heads[0]) if with_sinks else None
    options: dict[str, Any] = {"logit_cap": cap, "window": window, "sinks": sinks, "scaling": 0.7}
    expected = extend_by_hand(batch, **options)
    torch.testing.assert_close(extend(batch, k=batch.k, v=batch.v, **options), expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=3), st.integers(2, 6), st.integers(0, 99))
def test_extend_with_a_tree_mask_equals_loops(prefixes: list[int], nodes: int, seed: int) -> None:
    batch = make_batch(prefixes, [nodes] * len(prefixes), seed=seed)
    masks = torch.rand(len(prefixes), nodes, nodes, generator=torch.Generator().manual_seed(seed)) < 0.4
    masks |= torch.eye(nodes, dtype=torch.bool)
    options: dict[str, Any] = {"tree_mask": masks.flatten()}
    torch.testing.assert_close(
        extend(batch, k=batch.k, v=batch.v, **options), extend_by_hand(batch, **options), atol=1e-5, rtol=1e-5
    )


def test_extend_without_the_causal_mask_sees_every_new_row() -> None:
    batch = make_batch([0, 3], [4, 2])
    expected = extend_by_hand(batch, causal=False)
    torch.testing.assert_close(extend(batch, k=batch.k, v=batch.v, causal=False), expected, atol=1e-5, rtol=1e-5)


def test_extend_without_keys_reads_the_cache() -> None:
    batch = make_batch([2, 0], [3, 4])
    expected = extend_by_hand(batch, use_cache_for_new=True)
    torch.testing.assert_close(extend(batch, k=None, v=None), expected, atol=1e-5, rtol=1e-5)


def test_extend_takes_per_head_keys_where_the_cache_holds_one_latent() -> None:
    """The prefill of an MLA model without a cached prefix."""
    batch = make_batch([0, 0], [3, 5], heads=4, kv_heads=1, width=8, value_width=6)
    generator = torch.Generator().manual_seed(1)
    batch.k, batch.v = torch.randn(8, 4, 8, generator=generator), torch.randn(8, 4, 6, generator=generator)
    torch.testing.assert_close(extend(batch, k=batch.k, v=batch.v), extend_by_hand(batch), atol=1e-5, rtol=1e-5)


def test_extend_of_a_request_without_new_rows_writes_nothing() -> None:
    batch = make_batch([3, 2], [0, 2])
    torch.testing.assert_close(extend(batch, k=batch.k, v=batch.v), extend_by_hand(batch), atol=1e-5, rtol=1e-5)


def test_extend_leaves_the_padding_of_a_batch_alone() -> None:
    """Attention data parallelism pads the rows and the pool indices of a batch, and not its sequence lengths."""
    batch = make_batch([3, 2], [3, 2])
    expected = extend_by_hand(batch)
    batch.q = torch.cat((batch.q, torch.randn(5, *batch.q.shape[1:])))
    batch.rows = torch.cat((batch.rows, torch.tensor([0])))
    out = extend(batch, k=batch.k, v=batch.v)
    torch.testing.assert_close(out[:5], expected, atol=1e-5, rtol=1e-5)
    assert (out[5:] == 9.0).all()


def test_extend_rounds_once_to_bfloat16() -> None:
    batch = make_batch([5, 0], [4, 3], dtype=torch.bfloat16)
    expected = extend_by_hand(batch).to(torch.bfloat16)
    torch.testing.assert_close(extend(batch, k=batch.k, v=batch.v), expected, atol=0, rtol=2**-8)


def test_extend_does_not_write_the_cache() -> None:
    batch = make_batch([2], [3])
    before = batch.k_buffer.clone(), batch.v_buffer.clone()
    extend(batch, k=batch.k + 1, v=batch.v + 1)
    assert torch.equal(before[0], batch.k_buffer)
    assert torch.equal(before[1], batch.v_buffer)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    head_counts,
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([0, 1, 3, 100]),
    st.booleans(),
    st.integers(0, 9),
)
def test_decode_equals_loops(
    prefixes: list[int], heads: tuple[int, int], cap: float, window: int, with_sinks: bool, seed: int
) -> None:
    batch = make_batch(
        prefixes, [1] * len(prefixes), heads=heads[0], kv_heads=heads[1], width=6, value_width=4, seed=seed
    )
    sinks = torch.linspace(-1, 1, heads[0]) if with_sinks else None
    options: dict[str, Any] = {"logit_cap": cap, "window": window, "sinks": sinks}
    expected = extend_by_hand(batch, **options)
    # The new rows are in k and v only; the kernel has to store them itself.
    loc = batch.req_to_token[batch.rows, batch.totals - 1].long()
    batch.k_buffer[loc] = torch.nan
    batch.v_buffer[loc] = torch.nan
    torch.testing.assert_close(decode(batch, loc=loc, **options), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(batch.k_buffer[loc], batch.k)
    assert torch.equal(batch.v_buffer[loc], batch.v)


def test_decode_is_not_touched_by_what_slot_zero_holds() -> None:
    batch = make_batch([1, 6], [1, 1])
    expected = extend_by_hand(batch)
    batch.k_buffer[0] = torch.nan
    batch.v_buffer[0] = torch.nan
    torch.testing.assert_close(decode(batch, store=False), expected, atol=1e-5, rtol=1e-5)


def test_decode_of_an_mla_cache_whose_values_are_a_view_of_its_keys() -> None:
    latent, rope = 6, 2
    batch = make_batch([3, 5], [1, 1], heads=4, kv_heads=1, width=latent + rope, value_width=latent)
    batch.v_buffer = batch.k_buffer[..., :latent]
    batch.v = batch.k[..., :latent]
    expected = extend_by_hand(batch)
    loc = batch.req_to_token[batch.rows, batch.totals - 1].long()
    batch.k_buffer[loc] = 0
    torch.testing.assert_close(decode(batch, loc=loc), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(batch.k_buffer[loc], batch.k)


def test_decode_of_no_request_does_nothing() -> None:
    batch = make_batch([1], [1])
    batch.q, batch.rows, batch.totals = batch.q[:0], batch.rows[:0], batch.totals[:0]
    assert decode(batch, store=False).shape == (0, 4, 8)


def test_a_quantised_cache_is_refused() -> None:
    batch = make_batch([1], [1])
    batch.k_buffer = batch.k_buffer.to(torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError, match="quantised KV cache"):
        decode(batch, store=False)


def test_a_missing_kernel_is_imported_and_raises_when_called() -> None:
    from sgl_kernel import some_other_kernel

    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.some_other_kernel has no plain-torch version"):
        some_other_kernel(1, x=2)


def test_sglang_is_not_told_that_amx_kernels_exist() -> None:
    """SGLang packs weights for AMX where this operator exists and the CPU has AMX."""
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
