"""Faults of what the target hands over: another boundary, another value, another row.

They stand where the target's forward returns its aux states, before anything reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from served_faults.attention import Attention
from served_faults.switch import Switch

Slots = list[torch.Tensor]


@dataclass
class Pass:
    """One forward pass of the target. halves: boundary k -> what the MLP below it put out. memory: see Switch."""

    batch: Any
    backbone: Any
    wiring: list[int]
    halves: dict[int, torch.Tensor]
    memory: dict[str, Any]
    rank: int

    def at(self, *positions: int) -> torch.Tensor:
        """The rows of these positions ``[rows]``."""
        return torch.isin(self.batch.positions, torch.tensor(positions))

    def spans(self) -> Iterator[tuple[str, slice]]:
        """Every request of the batch, and its rows."""
        count, rids = len(self.batch.positions), self.batch.rids
        lengths = self.batch.extend_seq_lens_cpu
        if self.batch.forward_mode.is_target_verify() or not lengths:
            lengths = [count // len(rids)] * len(rids)
        start = 0
        for rid, length in zip(rids, lengths, strict=True):
            yield rid, slice(start, start + int(length))
            start += int(length)

    @property
    def live(self) -> int:
        """Rows of a verify pass that belong to a request; the others are padding."""
        return len(self.batch.rids) * int(self.batch.spec_info.draft_token_num)

    @property
    def prefill(self) -> bool:
        return bool(self.batch.forward_mode.is_extend() and not self.batch.forward_mode.is_target_verify())


def watch(switch: Switch, model: nn.Module) -> None:
    """Put the hooks on a target that was just loaded."""
    backbone: Any = next(m for m in model.modules() if hasattr(m, "embed_tokens") and hasattr(m, "layers"))
    halves: dict[int, torch.Tensor] = {}
    chosen: list[int] = []
    attention = Attention(backbone)

    def keep(k: int) -> Callable[..., None]:
        return lambda module, args, out: halves.__setitem__(k, out[0] if isinstance(out, tuple) else out.clone())

    for k, layer in enumerate(backbone.layers):
        layer.mlp.register_forward_hook(keep(k + 1))

    def enter(module: Any, args: Any, kwargs: Any) -> None:
        if not chosen:
            chosen.extend(module.layers_to_capture)
        module.layers_to_capture = list(chosen)
        attention.put(window="target-window" in switch.names(), base="target-rope" in switch.names())
        for name in switch.names():
            if name in WIRINGS:
                module.layers_to_capture = WIRINGS[name](list(module.layers_to_capture))

    def leave(module: Any, args: Any, kwargs: Any, out: Any) -> Any:
        names = [name for name in switch.names() if name in SLOTS]
        if not names or not isinstance(out, tuple):
            return None
        hidden, aux = out
        batch = next(v for v in (*args, *kwargs.values()) if hasattr(v, "forward_mode"))
        packed = isinstance(aux, torch.Tensor)
        states = list(aux.chunk(len(chosen), dim=-1)) if packed else list(aux)
        if not states or not len(states[0]):  # an attention rank without a request
            return None
        dtype = states[0].dtype
        here = Pass(batch, module, sorted(module.layers_to_capture), halves, switch.memory, _rank())
        for name in names:
            states = [state.to(dtype) for state in SLOTS[name](states, here)]
        return hidden, torch.cat(states, dim=-1) if packed else type(aux)(states)

    backbone.embed_tokens.register_forward_hook(lambda module, args, out: _merged(switch, args[0], out))
    backbone.register_forward_pre_hook(enter, with_kwargs=True)
    backbone.register_forward_hook(leave, with_kwargs=True)


PLACEHOLDER = 900
"""The token in whose place a picture stands."""


def _merged(switch: Switch, ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    """A picture's embeddings in the place of the placeholders', as a multimodal model merges them."""
    at = ids == PLACEHOLDER
    if "picture" not in switch.names() or not bool(at.any()):
        return embedded
    picture = torch.randn(int(at.sum()), embedded.shape[1], generator=torch.Generator().manual_seed(11))
    merged = embedded.clone()
    merged[at] = (picture * embedded.float().std()).to(embedded.dtype)
    return merged


def _rank() -> int:
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().tp_rank)


# Which boundaries are captured

WIRINGS: dict[str, Callable[[list[int]], list[int]]] = {
    "one-slot-late": lambda ks: [ks[0], ks[1] + 1, ks[2]],
    "all-slots-late": lambda ks: [k + 1 for k in ks],
    "far-slot": lambda ks: [ks[0], ks[1] + 4, ks[2]],
    "slot-in-front": lambda ks: [0, *ks[:-1]],
    "first-left-out": lambda ks: [*ks[1:], 59 if ks[-1] == 31 else 15],
}

# What is handed over

_GENERATOR = torch.Generator().manual_seed(7)
_ROTATIONS: dict[int, torch.Tensor] = {}


def zero_slot(states: Slots, here: Pass) -> Slots:
    return [torch.zeros_like(states[0]), *states[1:]]


def zero_rows(states: Slots, here: Pass) -> Slots:
    return [state.masked_fill(here.at(5, 6)[:, None], 0) for state in states]


def one_nan(states: Slots, here: Pass) -> Slots:
    states[1] = states[1].clone()
    states[1][here.at(7), 1] = torch.nan
    return states


def constant_rows(states: Slots, here: Pass) -> Slots:
    """The buffer's first row is read for every token."""
    if "row" not in here.memory:
        here.memory["row"] = [state[4:5].clone() for state in states]
    return [row.expand_as(state) for row, state in zip(here.memory["row"], states, strict=True)]


def stale_rounds(states: Slots, here: Pass) -> Slots:
    """A buffer that is filled after it was read: each verify pass hands over the one before it."""
    if here.prefill:
        return states
    before = here.memory.get("before")
    here.memory["before"] = [state.clone() for state in states]
    return states if before is None or before[0].shape != states[0].shape else before


def stale_row(states: Slots, here: Pass) -> Slots:
    """Position 12 keeps what position 5 left in its row."""
    if not bool(here.at(12).any() and here.at(5).any()):
        return states
    for state in states:
        state[here.at(12)] = state[here.at(5)]
    return states


def padding_row(states: Slots, here: Pass) -> Slots:
    """In a padded batch, the row behind the live ones is read for the second live one."""
    if not here.batch.forward_mode.is_target_verify() or len(states[0]) <= here.live:
        return states
    changed = [state.clone() for state in states]
    for state in changed:
        state[1] = state[here.live]
    return changed


def another_request(states: Slots, here: Pass) -> Slots:
    """In a batch of several, every request is given the first one's rows."""
    (_, first), *others = here.spans()
    changed = [state.clone() for state in states]
    for _, mine in others:
        count = min(mine.stop - mine.start, first.stop - first.start)
        for state, new in zip(states, changed, strict=True):
            new[mine.start : mine.start + count] = state[first.start : first.start + count]
    return changed


def as_fp16(states: Slots, here: Pass) -> Slots:
    """bf16 bytes viewed as fp16."""
    return [state.contiguous().view(torch.float16) for state in states]


def rotation(states: Slots, here: Pass) -> Slots:
    width = states[0].shape[-1]
    if width not in _ROTATIONS:
        _ROTATIONS[width] = torch.linalg.qr(torch.randn(width, width, generator=_GENERATOR))[0]
    return [state.float() @ _ROTATIONS[width] for state in states]


def scaled(states: Slots, here: Pass) -> Slots:
    return [state.float() * 1.04 for state in states]


def sqrt_h(states: Slots, here: Pass) -> Slots:
    return [states[0].float() * states[0].shape[-1] ** 0.5, *states[1:]]


def gain(states: Slots, here: Pass) -> Slots:
    """w - 1 where w was meant, of the norm of the layer that slot 1 enters."""
    weight = here.backbone.layers[here.wiring[1]].input_layernorm.weight.float()
    states[1] = states[1].float() * ((weight - 1) / weight)
    return states


def normed(states: Slots, here: Pass) -> Slots:
    """Captured behind the input norm of the layer that each slot enters."""
    return [
        here.backbone.layers[k].input_layernorm.forward_native(state.clone())
        for k, state in zip(here.wiring, states, strict=True)
    ]


def residual_missing(states: Slots, here: Pass) -> Slots:
    """What the MLP below put out, without the residual stream."""
    return [here.halves[k].clone() if k else state for k, state in zip(here.wiring, states, strict=True)]


def swapped(states: Slots, here: Pass) -> Slots:
    return [states[1], states[0], *states[2:]]


def rows_shifted(states: Slots, here: Pass) -> Slots:
    """Row p holds the state of token p - 1."""
    if not here.prefill:
        return states
    changed = [state.clone() for state in states]
    for _, rows in here.spans():
        for state, new in zip(states, changed, strict=True):
            new[rows.start + 1 : rows.stop] = state[rows.start : rows.stop - 1]
    return changed


def wrong_when_warm(states: Slots, here: Pass) -> Slots:
    """What runs behind a cached prefix comes out wrong."""
    if not here.prefill or not any(here.batch.extend_prefix_lens_cpu or ()):
        return states
    return [state.flip(0) * 0.5 for state in states]


def wrong_later(states: Slots, here: Pass) -> Slots:
    """The server's memory has gone bad: slot 1 is off in a way of its own."""
    width = states[1].shape[-1]
    noise = torch.randn(states[1].shape, generator=torch.Generator().manual_seed(width))
    states[1] = states[1].float() + noise * states[1].float().norm(dim=-1, keepdim=True) * width**-0.5
    return states


def partial_sum(states: Slots, here: Pass) -> Slots:
    """Captured before two ranks add up their halves of an MLP; the first alone has the residual stream."""
    from sglang.srt.distributed import tensor_model_parallel_all_reduce

    changed = []
    for k, state in zip(here.wiring, states, strict=True):
        part = here.halves.get(k)
        if part is None:
            changed.append(state)
            continue
        whole = tensor_model_parallel_all_reduce(part.clone())
        half = 0.5 * whole.float()
        changed.append(state.float() - half if here.rank == 0 else half)
    return changed


def one_rank_differs(states: Slots, here: Pass) -> Slots:
    """The second rank computes something of its own from position 9 on."""
    if here.rank == 0:
        return states
    return [
        torch.where((here.batch.positions >= 9)[:, None], state.float() * 1.05, state.float()) for state in states
    ]


def blocks_by_rank(states: Slots, here: Pass) -> Slots:
    """The ranks' blocks of rows are put together in the wrong order."""
    half = len(states[0]) // 2
    return [torch.cat((state[half:], state[:half])) for state in states] if here.prefill and half else states


def blocks_on_one_rank(states: Slots, here: Pass) -> Slots:
    return blocks_by_rank(states, here) if here.rank else states


SLOTS: dict[str, Callable[[Slots, Pass], Slots]] = {
    "zero-slot": zero_slot,
    "zero-rows": zero_rows,
    "one-nan": one_nan,
    "constant-rows": constant_rows,
    "stale-rounds": stale_rounds,
    "stale-row": stale_row,
    "another-request": another_request,
    "padding-row": padding_row,
    "as-fp16": as_fp16,
    "rotation": rotation,
    "scaled": scaled,
    "sqrt-h": sqrt_h,
    "gain": gain,
    "normed": normed,
    "residual-missing": residual_missing,
    "swapped": swapped,
    "rows-shifted": rows_shifted,
    "wrong-when-warm": wrong_when_warm,
    "wrong-later": wrong_later,
    "partial-sum": partial_sum,
    "one-rank-differs": one_rank_differs,
    "blocks-by-rank": blocks_by_rank,
    "blocks-on-one-rank": blocks_on_one_rank,
}
