"""The EAGLE-3 draft's forward in plain torch: whole causal passes, and trained steps for all rows at once.

Everything is float32. A server computes in bfloat16 or float16; where its own ids are compared with, ``rounded`` gives
the same draft with every number rounded where SGLang rounds it.

Shapes: B wirings run side by side, R rows (tokens of one or several texts), H the draft's width, S slots. Row t reads
the target's slots of position t and the embedding of token t+1 and predicts token t+2; step s reads the state that step
s-1 left in the row and the embedding of token t+1+s. Attention of step s: the keys of step 0 up to t, and the row's own
keys of steps 1..s, as a drafted chain has them; under a sliding window only those of the last positions. Written after
SGLang's ``models/llama_eagle3.py`` and ``kimi_k25_eagle3.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.replay.attention import Keys, Spans, chained, seen
from drafttrace.compare.replay.products import linear
from drafttrace.compare.replay.rope import Rotation, rotation_of, same_rotation, served_rotation
from drafttrace.compare.replay.switches import SERVED, Switches
from drafttrace.tracer.errors import UnknownFormat

_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Projections of one input, computed as one product."""
UNSERVED = tuple(f"{name}.bias" for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"))
"""SGLang's EAGLE-3 classes build these projections without a bias, whatever the config says (llama_eagle3.py)."""


@dataclass(frozen=True)
class Reading:
    """What steps read: the embeddings ``[U, H]`` of U tokens, and which of them row t of step s reads ``[steps, R]``."""

    table: Tensor
    place: Tensor


@dataclass(frozen=True)
class StepOut:
    """One step: state before the final norm ``[B, R, H]``, normed state, and what the next step receives."""

    state: Tensor
    normed: Tensor
    handed: Tensor


@dataclass(frozen=True)
class _Pass:
    """One run over texts that stand behind one another, ``spans`` of the rows.

    positions ``[R]``: of the rows in their texts. turns: cosines and sines by position. told: what each projection of
    layer 0 makes of the U embeddings ``[U, width]``. kept: the keys of every layer and step. silent: parts of layers
    (``layers.0.self_attn``, ``layers.0.mlp``) that put out nothing.
    """

    spans: Spans
    positions: Tensor
    turns: tuple[Tensor, Tensor]
    reading: Reading
    told: Mapping[str, Tensor]
    kept: tuple[list[Keys], ...]
    silent: Collection[str] = ()


Project = Callable[[str], Tensor]
"""A projection of a layer's attention input, by the projection's name: ``[B, R, width]``."""


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
        served = {name: tensor for name, tensor in weights.items() if not name.endswith(UNSERVED)}
        self._unbiased: DraftModel | None = None
        if len(served) < len(weights):
            self._unbiased = DraftModel(config, served, slots, longest, number_format)
        self._fused, parts = _fused(weights, config.layers)
        self.weights = {**weights, **parts}
        self.slots = slots
        self.number_format = number_format
        self._longest = longest
        self.rotation: Rotation = rotation_of(config, longest)
        self._softmax = _scores(config, self.rotation)
        self._served = self._turned_by_the_server()
        self._based: dict[float, DraftModel] = {}

    def with_base(self, base: float) -> DraftModel:
        """This draft with another base of its rotary table, for training as for the server."""
        if base not in self._based:
            other = copy.copy(self)
            other.config = replace(self.config, rope=replace(self.config.rope, theta=base))
            other.rotation, other._based = rotation_of(other.config, self._longest), {}
            other._softmax, other._served = _scores(other.config, other.rotation), other._turned_by_the_server()
            self._based[base] = other
        return self._based[base]

    def _turned_by_the_server(self) -> DraftModel | None:
        """This draft with SGLang's rotary table; None where it is the trainer's, and where SGLang makes none."""
        try:
            rotation = served_rotation(self.config, self._longest)
        except UnknownFormat:
            return None
        if same_rotation(rotation, self.rotation):
            return None
        served = copy.copy(self)
        served.rotation, served._softmax, served._served = rotation, _scores(self.config, rotation), None
        return served

    @property
    def turned_otherwise(self) -> bool:
        """Whether a server turns positions otherwise than training did."""
        return self._served is not None

    @property
    def biased_otherwise(self) -> bool:
        """Whether a server leaves out biases that training added."""
        return self._unbiased is not None

    def rounded(self, number_format: torch.dtype) -> DraftModel:
        """This draft as a server runs it in ``number_format``: weights and results are float32 tensors of such numbers."""
        weights = {name: tensor.to(number_format).float() for name, tensor in self.weights.items()}
        return DraftModel(self.config, weights, self.slots, self._longest, number_format)

    def _round(self, x: Tensor) -> Tensor:
        return x if self.number_format is torch.float32 else x.to(self.number_format).float()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        return self._round(F.rms_norm(x, weight.shape, weight, self.config.eps))

    def _matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a projection; those of :data:`_FUSED` by their joint name."""
        held = self._fused if f"{name}.weight" in self._fused else self.weights
        return held[f"{name}.weight"], held.get(f"{name}.bias")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return self._round(linear(x, *self._matrix(name)))

    def _rotate(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """``x`` turned, in the number format throughout: SGLang rounds every product here."""
        kind = self.number_format
        return self.rotation.rotate(x.to(kind), turn[0].to(kind), turn[1].to(kind)).float()

    def fc_in(self, slots: Sequence[Tensor], switches: Switches) -> Tensor:
        """What enters ``fc``: S slots ``[..., R, width]`` side by side, after any norm; the one over all slots first."""
        wide = torch.cat(list(slots), dim=-1)
        if switches.input_norm:
            wide = self._norm(wide, "input_norm.weight")
        if switches.fc_norm:
            parts = wide.chunk(len(slots), dim=-1)
            wide = torch.cat([self._norm(part, f"fc_norm.{k}.weight") for k, part in enumerate(parts)], dim=-1)
        return wide

    def fc(self, fc_in: Tensor) -> Tensor:
        """``fc`` itself, ``[..., R, H]``."""
        return self._linear(fc_in, "fc")

    def logits(self, normed: Tensor) -> Tensor:
        """Scores over the draft vocabulary."""
        return self._round(linear(normed, self.weights["lm_head.weight"]))

    def steps(
        self,
        state: Tensor,
        reading: Reading,
        switches: Switches,
        spans: Spans | None = None,
        silent: Collection[str] = (),
    ) -> list[StepOut]:
        """Run ``len(reading.place)`` steps from fc's output ``[B, R, H]``.

        spans: where each text begins and ends in the rows (default: one text). silent: parts of layers, such as
        ``layers.0.self_attn`` and ``layers.0.mlp``, that put out nothing.
        """
        if switches.biases == SERVED and self._unbiased is not None:
            return self._unbiased.steps(state, reading, switches, spans, silent)
        if switches.rope_base is not None:
            return self.with_base(switches.rope_base).steps(
                state, reading, replace(switches, rope_base=None), spans, silent
            )
        if switches.rope == SERVED and self._served is not None:
            return self._served.steps(state, reading, switches, spans, silent)
        this = replace(self._pass(reading, spans or ((0, state.shape[1]),)), silent=silent)
        done: list[StepOut] = []
        for s in range(len(reading.place)):
            turn = tuple(table.index_select(0, this.positions + s)[:, None] for table in this.turns)
            h = state
            for layer in range(self.config.layers):
                h = self._layer(layer, h, this, (turn[0], turn[1]), switches)
            normed = self._norm(h, "norm.weight")
            h = self._round(h)
            state = normed if switches.norm_output else h
            done.append(StepOut(h, normed, state))
        return done

    def _pass(self, reading: Reading, spans: Spans) -> _Pass:
        longest = max(end - begin for begin, end in spans)
        table = self._norm(self._round(reading.table), "layers.0.input_layernorm.weight")
        names = ("qkv_proj",) if self.config.mla is None else (*self._queries(), "kv_a_proj_with_mqa")
        told = {}
        for name in names:
            weight, bias = self._matrix(f"layers.0.self_attn.{name}")
            told[name] = linear(table, weight[:, : table.shape[1]], bias)
        return _Pass(
            spans=spans,
            positions=torch.cat([torch.arange(end - begin) for begin, end in spans]),
            turns=self.rotation.angles(torch.arange(longest + len(reading.place))),
            reading=reading,
            told=told,
            kept=tuple([] for _ in range(self.config.layers)),
        )

    def _layer(self, layer: int, h: Tensor, this: _Pass, turn: tuple[Tensor, Tensor], switches: Switches) -> Tensor:
        """One layer. ``h`` and the result are sums that no one has rounded yet: SGLang's norms add in float32, too."""
        at = f"layers.{layer}"
        residual = self._round(h)
        if layer == 0:
            x = self._norm(h, f"{at}.hidden_norm.weight")
            residual = x if switches.norm_before_residual else residual
            place = this.reading.place[len(this.kept[0])]
        else:
            own = f"{at}.hidden_norm.weight"
            x = self._norm(h, own if own in self.weights else f"{at}.input_layernorm.weight")

        def project(name: str) -> Tensor:
            """Layer 0 reads embedding and state side by side; what it makes of an embedding was computed once."""
            if layer:
                return self._linear(x, f"{at}.self_attn.{name}")
            weight, _ = self._matrix(f"{at}.self_attn.{name}")
            return self._round(linear(x, weight[:, -x.shape[-1] :]).add_(this.told[name].index_select(0, place)))

        window = switches.windows[layer] if layer < len(switches.windows) else None
        h = self._attention(at, project, this, turn, window)
        h = (h.zero_() if f"{at}.self_attn" in this.silent else h).add_(residual)
        made = self._mlp(at, self._norm(h, f"{at}.post_attention_layernorm.weight"))
        return (made.zero_() if f"{at}.mlp" in this.silent else made).add_(self._round(h))

    def _mlp(self, at: str, x: Tensor) -> Tensor:
        gate, up = self._linear(x, f"{at}.mlp.gate_up_proj").chunk(2, dim=-1)
        kind = self.config.activation
        if kind in {"silu", "swish"}:
            gate = F.silu(gate)
        elif kind == "relu":
            gate = F.relu(gate)
        else:
            gate = F.gelu(gate, approximate="none" if kind == "gelu" else "tanh")
        return self._linear(self._round(self._round(gate).mul_(up)), f"{at}.mlp.down_proj")

    def _attention(
        self, at: str, project: Project, this: _Pass, turn: tuple[Tensor, Tensor], window: int | None
    ) -> Tensor:
        """Attention of the step whose keys come after those kept; row t of step s stands at position t + s."""
        kept = this.kept[int(at.rpartition(".")[2])]
        query, fresh = self._mla(at, project, turn) if self.config.mla is not None else self._gqa(project, turn)
        kept.append(fresh)
        step = len(kept) - 1
        if step == 0:
            mixed, _ = seen(query, fresh, window, self._softmax, this.spans)
        else:
            own = kept[1:] if window is None else kept[max(1, step - window + 1) :]
            reach = None if window is None else max(0, window - step)
            mixed = chained(query, kept[0], own, reach, self._softmax, this.spans)
        return self._linear(self._round(mixed).flatten(-2), f"{at}.self_attn.o_proj")

    def _gqa(self, project: Project, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Keys]:
        config = self.config
        every = _heads(project("qkv_proj"), config.heads + 2 * config.kv_heads)
        turned = self._rotate(every[:, :, : -config.kv_heads], turn)
        query, key = turned[:, :, : config.heads], turned[:, :, config.heads :]
        return query, Keys(key, every[:, :, -config.kv_heads :])

    def _queries(self) -> tuple[str, ...]:
        mla = self.config.mla
        return ("q_a_proj",) if mla is not None and mla.q_lora_rank else ("q_proj",)

    def _mla(self, at: str, project: Project, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Keys]:
        """Multi-latent attention (DeepSeek-V2), written out: per-head keys and values from the latent."""
        mla, heads = self.config.mla, self.config.heads
        assert mla is not None
        query = project(self._queries()[0])
        if mla.q_lora_rank:
            query = self._norm(query, f"{at}.self_attn.q_a_layernorm.weight")
            query = self._linear(query, f"{at}.self_attn.q_b_proj")
        query = _heads(query, heads)
        plain, turned = query[..., : mla.qk_nope], query[..., mla.qk_nope :]
        latent = project("kv_a_proj_with_mqa")
        compressed, shared = latent[..., : mla.kv_lora_rank], latent[..., mla.kv_lora_rank :]
        up = self._linear(
            self._norm(compressed, f"{at}.self_attn.kv_a_layernorm.weight"), f"{at}.self_attn.kv_b_proj"
        )
        up = _heads(up, heads)
        key, value = up[..., : mla.qk_nope], up[..., mla.qk_nope :]
        shared = self._rotate(shared[:, :, None], turn).expand(-1, -1, heads, -1)
        query = torch.cat((plain, self._rotate(turned, turn)), dim=-1)
        return query, Keys(torch.cat((key, shared), dim=-1), value)


def _fused(weights: Mapping[str, Tensor], layers: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights and biases of :data:`_FUSED` where a layer has their parts, and these parts as views of them."""
    found: dict[str, Tensor] = {}
    views: dict[str, Tensor] = {}
    for layer in range(layers):
        for name, parts in _FUSED.items():
            for kind in ("weight", "bias"):
                held = {key: weights[key] for part in parts if (key := f"layers.{layer}.{part}.{kind}") in weights}
                if len(held) == len(parts):
                    joint = torch.cat(list(held.values()))
                    found[f"layers.{layer}.{name}.{kind}"] = joint
                    views |= zip(held, torch.split(joint, [len(tensor) for tensor in held.values()]), strict=True)
    return found, views


def _scores(config: DraftConfig, rotation: Rotation) -> float:
    """What attention scores are multiplied with."""
    mla = config.mla
    dim = config.head_dim if mla is None else mla.qk_nope + mla.qk_rope
    return float(dim**-0.5 * rotation.softmax)


def _heads(x: Tensor, count: int) -> Tensor:
    """``[B, R, count * dim]`` as ``[B, R, count, dim]``."""
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)
