"""The EAGLE-3 draft's forward in plain torch: whole causal passes, and trained steps for all rows at once.

Everything is float32. A server computes in bfloat16 or float16; where its own ids are compared with, ``rounded`` gives
the same draft with every number rounded where SGLang rounds it.

Shapes: B wirings run side by side, T rows (tokens), H the draft's width, S slots. Row t reads the target's slots of
position t and the embedding of token t+1 and predicts token t+2; step s reads the state that step s-1 left in the row
and the embedding of token t+1+s. Attention of step s: the keys of step 0 up to t, and the row's own keys of steps
1..s, as a drafted chain has them; under a sliding window only those of the last positions. Written after SGLang's
``models/llama_eagle3.py`` and ``kimi_k25_eagle3.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.replay.rope import Rotation, rotation_of
from drafttrace.compare.replay.switches import Switches

_BLOCK = 512
"""Query rows that score all earlier keys at once in steps after the first."""


@dataclass(frozen=True)
class StepOut:
    """One step: state before the final norm ``[B, T, H]``, normed state, and what the next step receives."""

    state: Tensor
    normed: Tensor
    handed: Tensor


@dataclass(frozen=True)
class _Keys:
    """Keys and values of one layer and step ``[B, heads, T, dim]``, rotated."""

    key: Tensor
    value: Tensor


class DraftModel:
    """A draft's weights (float32, by canonical name) and its forward.

    number_format: what every result is rounded to; float32 rounds nothing.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: Mapping[str, Tensor],
        slots: int,
        longest: int,
        number_format: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        self.weights = weights
        self.slots = slots
        self.number_format = number_format
        self._longest = longest
        self.rotation: Rotation = rotation_of(config, longest)
        mla = config.mla
        dim = config.head_dim if mla is None else mla.qk_nope + mla.qk_rope
        self._softmax = dim**-0.5 * self.rotation.softmax

    def rounded(self, number_format: torch.dtype) -> DraftModel:
        """This draft as a server runs it in ``number_format``: weights and results are float32 tensors of such numbers."""
        weights = {name: tensor.to(number_format).float() for name, tensor in self.weights.items()}
        return DraftModel(self.config, weights, self.slots, self._longest, number_format)

    def _round(self, x: Tensor) -> Tensor:
        return x if self.number_format is torch.float32 else x.to(self.number_format).float()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        return self._round(F.rms_norm(x, weight.shape, weight, self.config.eps))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return self._round(F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")))

    def _rotate(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """``x`` turned, in the number format throughout: SGLang rounds every product here."""
        kind = self.number_format
        return self.rotation.rotate(x.to(kind), turn[0].to(kind), turn[1].to(kind)).float()

    def fc_in(self, slots: Sequence[Tensor], switches: Switches) -> Tensor:
        """What enters ``fc``: S slots ``[..., T, width]`` side by side, after any norm; the one over all slots first."""
        wide = torch.cat(list(slots), dim=-1)
        if switches.input_norm:
            wide = self._norm(wide, "input_norm.weight")
        if switches.fc_norm:
            parts = wide.chunk(len(slots), dim=-1)
            wide = torch.cat([self._norm(part, f"fc_norm.{k}.weight") for k, part in enumerate(parts)], dim=-1)
        return wide

    def fc(self, fc_in: Tensor) -> Tensor:
        """``fc`` itself, ``[..., T, H]``."""
        return self._linear(fc_in, "fc")

    def logits(self, normed: Tensor) -> Tensor:
        """Scores over the draft vocabulary."""
        return self._round(F.linear(normed, self.weights["lm_head.weight"]))

    def steps(self, state: Tensor, embedded: Sequence[Tensor], switches: Switches) -> list[StepOut]:
        """Run ``len(embedded)`` steps from fc's output ``[B, T, H]``.

        embedded[s] is the embedding ``[T, H]`` of the tokens that step s reads.
        """
        layers = range(self.config.layers)
        kept: list[list[_Keys]] = [[] for _ in layers]
        done: list[StepOut] = []
        for s, table in enumerate(embedded):
            positions = torch.arange(state.shape[1]) + s
            turn = self.rotation.angles(positions)
            h = state
            for layer in layers:
                h = self._layer(layer, h, self._round(table), turn, kept[layer], switches)
            normed = self._norm(h, "norm.weight")
            h = self._round(h)
            state = normed if switches.norm_output else h
            done.append(StepOut(h, normed, state))
        return done

    def _layer(
        self,
        layer: int,
        h: Tensor,
        table: Tensor,
        turn: tuple[Tensor, Tensor],
        kept: list[_Keys],
        switches: Switches,
    ) -> Tensor:
        """One layer. ``h`` and the result are sums that no one has rounded yet: SGLang's norms add in float32, too."""
        at = f"layers.{layer}"
        residual = self._round(h)
        if layer == 0:
            normed = self._norm(h, f"{at}.hidden_norm.weight")
            residual = normed if switches.norm_before_residual else residual
            embedding = self._norm(table, f"{at}.input_layernorm.weight").expand_as(normed)
            x = torch.cat((embedding, normed), dim=-1)
        else:
            own = f"{at}.hidden_norm.weight"
            x = self._norm(h, own if own in self.weights else f"{at}.input_layernorm.weight")
        window = switches.windows[layer] if layer < len(switches.windows) else None
        h = residual + self._attention(at, x, turn, kept, window)
        return self._round(h) + self._mlp(at, self._norm(h, f"{at}.post_attention_layernorm.weight"))

    def _mlp(self, at: str, x: Tensor) -> Tensor:
        gate = self._linear(x, f"{at}.mlp.gate_proj")
        kind = self.config.activation
        if kind in {"silu", "swish"}:
            gate = F.silu(gate)
        elif kind == "relu":
            gate = F.relu(gate)
        else:
            gate = F.gelu(gate, approximate="none" if kind == "gelu" else "tanh")
        wide = self._round(self._round(gate) * self._linear(x, f"{at}.mlp.up_proj"))
        return self._linear(wide, f"{at}.mlp.down_proj")

    def _attention(
        self, at: str, x: Tensor, turn: tuple[Tensor, Tensor], kept: list[_Keys], window: int | None
    ) -> Tensor:
        query, fresh = self._mla(at, x, turn) if self.config.mla is not None else self._gqa(at, x, turn)
        kept.append(fresh)
        if len(kept) > 1:
            mixed = self._chain(query, kept, window)
        elif window is not None and window < query.shape[2]:
            mixed = self._windowed(query, fresh, window)
        else:
            mixed = F.scaled_dot_product_attention(
                query, fresh.key, fresh.value, is_causal=True, scale=self._softmax
            )
        return self._linear(self._round(mixed).transpose(1, 2).flatten(-2), f"{at}.self_attn.o_proj")

    def _windowed(self, query: Tensor, keys: _Keys, window: int) -> Tensor:
        """Causal attention over the last ``window`` positions, in blocks that read only the keys they see."""
        parts = []
        for begin in range(0, query.shape[2], _BLOCK):
            end = min(begin + _BLOCK, query.shape[2])
            start = max(0, begin - window + 1)
            seen = _seen(begin, end, start, window)
            parts.append(
                F.scaled_dot_product_attention(
                    query[:, :, begin:end],
                    keys.key[:, :, start:end],
                    keys.value[:, :, start:end],
                    attn_mask=seen,
                    scale=self._softmax,
                )
            )
        return torch.cat(parts, dim=2)

    def _gqa(self, at: str, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, _Keys]:
        config = self.config

        def heads(name: str, count: int) -> Tensor:
            return _heads(self._linear(x, f"{at}.self_attn.{name}"), count)

        repeat = config.heads // config.kv_heads
        query = self._rotate(heads("q_proj", config.heads), turn)
        key = self._rotate(heads("k_proj", config.kv_heads), turn)
        value = heads("v_proj", config.kv_heads)
        return query, _Keys(key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1))

    def _mla(self, at: str, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, _Keys]:
        """Multi-latent attention (DeepSeek-V2), written out: per-head keys and values from the latent."""
        mla, heads = self.config.mla, self.config.heads
        assert mla is not None
        if mla.q_lora_rank:
            down = self._norm(self._linear(x, f"{at}.self_attn.q_a_proj"), f"{at}.self_attn.q_a_layernorm.weight")
            query = self._linear(down, f"{at}.self_attn.q_b_proj")
        else:
            query = self._linear(x, f"{at}.self_attn.q_proj")
        query = _heads(query, heads)
        plain, turned = query[..., : mla.qk_nope], query[..., mla.qk_nope :]
        latent = self._linear(x, f"{at}.self_attn.kv_a_proj_with_mqa")
        compressed, shared = latent[..., : mla.kv_lora_rank], latent[..., mla.kv_lora_rank :]
        up = self._linear(
            self._norm(compressed, f"{at}.self_attn.kv_a_layernorm.weight"), f"{at}.self_attn.kv_b_proj"
        )
        up = _heads(up, heads)
        key, value = up[..., : mla.qk_nope], up[..., mla.qk_nope :]
        shared = self._rotate(shared.unsqueeze(1), turn).expand(-1, heads, -1, -1)
        query = torch.cat((plain, self._rotate(turned, turn)), dim=-1)
        return query, _Keys(torch.cat((key, shared), dim=-1), value)

    def _chain(self, query: Tensor, kept: Sequence[_Keys], window: int | None) -> Tensor:
        """Attention of a later step: step-0 keys up to the row, and the row's own keys of the steps since.

        Row t of step s stands at position t + s, which is what a window counts from.
        """
        first, rows, step = kept[0], query.shape[2], len(kept) - 1
        reach = rows + step if window is None else window
        later = kept[max(1, step - reach + 1) :]
        own = torch.stack([(query * one.key).sum(-1) for one in later], dim=-1)
        parts = []
        for begin in range(0, rows, _BLOCK):
            end = min(begin + _BLOCK, rows)
            start = min(max(0, begin + step - reach + 1), end)
            past = query[:, :, begin:end] @ first.key[:, :, start:end].mT
            past = past.masked_fill(~_seen(begin, end, start, reach - step), float("-inf"))
            shares = (torch.cat((past, own[:, :, begin:end]), dim=-1) * self._softmax).softmax(-1)
            mixed = shares[..., : end - start] @ first.value[:, :, start:end]
            for k, one in enumerate(later):
                mixed = mixed + shares[..., end - start + k, None] * one.value[:, :, begin:end]
            parts.append(mixed)
        return torch.cat(parts, dim=2)


def _seen(begin: int, end: int, start: int, reach: int) -> Tensor:
    """Which of the keys ``start..end`` the rows ``begin..end`` see: their own and the ``reach - 1`` before it."""
    behind = torch.arange(begin, end)[:, None] - torch.arange(start, end)[None, :]
    return (behind >= 0) & (behind < reach)


def _heads(x: Tensor, count: int) -> Tensor:
    """``[B, T, count * dim]`` as ``[B, count, T, dim]``."""
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count).transpose(1, 2)
