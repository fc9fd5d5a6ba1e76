"""The two target architectures in plain torch, layer weights stacked, for fast training on a CPU.

They compute what transformers' `LlamaForCausalLM` and `DeepseekV3ForCausalLM` compute
(tests/unit/test_pairs_targets.py compares them) and are saved under the names of those classes.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from pairs.chat import BOS_ID, END_ID
from pairs.shapes import EPS, MAX_POSITIONS, DeepseekShape, LlamaShape, shape_from_config
from pairs.tokenizer import VOCAB_SIZE


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm as both model classes apply it."""
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def rope_angles(length: int, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, [length, dim/2]."""
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's rope: dimension i pairs with i + dim/2."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """DeepSeek's rope: dimension 2i pairs with 2i + 1."""
    pairs = x.unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


class Target(nn.Module):
    """What both architectures share: embedding, stacked layers, final norm, head, and the save format."""

    shape: LlamaShape | DeepseekShape
    angles: tuple[Tensor, Tensor]

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(VOCAB_SIZE, hidden) * 0.5)
        self.norm = nn.Parameter(torch.ones(hidden))
        self.head = nn.Parameter(torch.randn(VOCAB_SIZE, hidden) * hidden**-0.5)

    def _layer(self, x: Tensor, cos: Tensor, sin: Tensor, weights: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError

    def layer_weights(self) -> list[dict[str, Tensor]]:
        """The weights of each layer, as views of the stacked parameters."""
        raise NotImplementedError

    def forward(self, ids: Tensor) -> list[Tensor]:
        """All boundaries B(0)..B(n), each [batch, length, hidden]."""
        cos, sin = (a[: ids.shape[1]] for a in self.angles)
        boundaries = [F.embedding(ids, self.embed)]
        for weights in self.layer_weights():
            boundaries.append(self._layer(boundaries[-1], cos, sin, weights))
        return boundaries

    def logits(self, last: Tensor) -> Tensor:
        """Logits from B(n)."""
        return F.linear(rms_norm(last, self.norm), self.head)

    def named_tensors(self) -> dict[str, Tensor]:
        """The weights under the names of the transformers class."""
        raise NotImplementedError

    def _outer_tensors(self) -> dict[str, Tensor]:
        return {
            "model.embed_tokens.weight": self.embed,
            "model.norm.weight": self.norm,
            "lm_head.weight": self.head,
        }

    def round_to_bf16(self) -> None:
        """Give every weight the value that the saved bf16 model has."""
        with torch.no_grad():
            for tensor in [*self.parameters(), *self.buffers()]:
                tensor.copy_(tensor.bfloat16().float())

    def save(self, folder: Path) -> None:
        """Write config.json, generation_config.json and model.safetensors (bf16)."""
        folder.mkdir(parents=True, exist_ok=True)
        config = self.shape.config()
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        generation = {
            "bos_token_id": BOS_ID,
            "eos_token_id": END_ID,
            "pad_token_id": END_ID,
            "do_sample": False,
        }
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
        tensors = {name: t.detach().bfloat16().contiguous().clone() for name, t in self.named_tensors().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _stacked(layers: int, fan_out: int, fan_in: int, gain: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(layers, fan_out, fan_in) * gain * fan_in**-0.5)


class LlamaTarget(Target):
    """A dense Llama with grouped-query attention."""

    _NAMES = {  # noqa: RUF012
        "in_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__(shape.hidden)
        self.shape: LlamaShape = shape
        n, h, out = shape.layers, shape.hidden, (2 * shape.layers) ** -0.5
        q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.stack = nn.ParameterDict(
            {
                "in_norm": nn.Parameter(torch.ones(n, h)),
                "q": _stacked(n, q_width, h),
                "k": _stacked(n, kv_width, h),
                "v": _stacked(n, kv_width, h),
                "o": _stacked(n, h, q_width, out),
                "mlp_norm": nn.Parameter(torch.ones(n, h)),
                "gate": _stacked(n, shape.inter, h),
                "up": _stacked(n, shape.inter, h),
                "down": _stacked(n, h, shape.inter, 2 * out),
            }
        )
        self.angles = rope_angles(MAX_POSITIONS, shape.head_dim, shape.theta)

    def layer_weights(self) -> list[dict[str, Tensor]]:
        columns = {name: stacked.unbind(0) for name, stacked in self.stack.items()}
        return [{name: column[i] for name, column in columns.items()} for i in range(self.shape.layers)]

    def _layer(self, x: Tensor, cos: Tensor, sin: Tensor, w: dict[str, Tensor]) -> Tensor:
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        h = rms_norm(x, w["in_norm"])
        q = F.linear(h, w["q"]).unflatten(-1, (heads, dim)).transpose(1, 2)
        k = F.linear(h, w["k"]).unflatten(-1, (kv_heads, dim)).transpose(1, 2)
        v = F.linear(h, w["v"]).unflatten(-1, (kv_heads, dim)).transpose(1, 2)
        q, k = rotate_halves(q, cos, sin), rotate_halves(k, cos, sin)
        repeat = heads // kv_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(a.transpose(1, 2).flatten(-2), w["o"])
        h = rms_norm(x, w["mlp_norm"])
        return x + F.linear(F.silu(F.linear(h, w["gate"])) * F.linear(h, w["up"]), w["down"])

    def named_tensors(self) -> dict[str, Tensor]:
        tensors = self._outer_tensors()
        for i, weights in enumerate(self.layer_weights()):
            for name, tensor in weights.items():
                tensors[f"model.layers.{i}.{self._NAMES[name]}.weight"] = tensor
        return tensors


class DeepseekTarget(Target):
    """DeepSeek-V3: multi-head latent attention, a dense layer, then experts chosen by sigmoid scores.

    All experts are computed for every token as one wide MLP and the ones not chosen are weighted with zero.
    The first `expert_inter` columns of that MLP are the shared expert.
    """

    _NAMES = {  # noqa: RUF012
        "in_norm": "input_layernorm",
        "q_a": "self_attn.q_a_proj",
        "q_norm": "self_attn.q_a_layernorm",
        "q_b": "self_attn.q_b_proj",
        "kv_a": "self_attn.kv_a_proj_with_mqa",
        "kv_norm": "self_attn.kv_a_layernorm",
        "kv_b": "self_attn.kv_b_proj",
        "o": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
    }

    def __init__(self, shape: DeepseekShape) -> None:
        super().__init__(shape.hidden)
        self.shape: DeepseekShape = shape
        n, h, out = shape.layers, shape.hidden, (2 * shape.layers) ** -0.5
        wide = shape.dense_inter
        self.stack = nn.ParameterDict(
            {
                "in_norm": nn.Parameter(torch.ones(n, h)),
                "q_a": _stacked(n, shape.q_rank, h),
                "q_norm": nn.Parameter(torch.ones(n, shape.q_rank)),
                "q_b": _stacked(n, shape.heads * (shape.nope + shape.rope), shape.q_rank),
                "kv_a": _stacked(n, shape.kv_rank + shape.rope, h),
                "kv_norm": nn.Parameter(torch.ones(n, shape.kv_rank)),
                "kv_b": _stacked(n, shape.heads * (shape.nope + shape.v_dim), shape.kv_rank),
                "o": _stacked(n, h, shape.heads * shape.v_dim, out),
                "mlp_norm": nn.Parameter(torch.ones(n, h)),
                "gate": _stacked(n, wide, h),
                "up": _stacked(n, wide, h),
                "down": _stacked(n, h, wide, 2 * out),
                "router": _stacked(n, shape.experts, h),
            }
        )
        self.register_buffer("route_bias", torch.zeros(n, shape.experts))
        self.route_bias: Tensor
        self.angles = rope_angles(MAX_POSITIONS, shape.rope, shape.theta)

    def layer_weights(self) -> list[dict[str, Tensor]]:
        columns = {name: stacked.unbind(0) for name, stacked in self.stack.items()}
        columns["route_bias"] = self.route_bias.unbind(0)
        rows = [{name: column[i] for name, column in columns.items()} for i in range(self.shape.layers)]
        for row in rows[: self.shape.dense_layers]:
            del row["router"], row["route_bias"]
        return rows

    def _layer(self, x: Tensor, cos: Tensor, sin: Tensor, w: dict[str, Tensor]) -> Tensor:
        s = self.shape
        h = rms_norm(x, w["in_norm"])
        q = F.linear(rms_norm(F.linear(h, w["q_a"]), w["q_norm"]), w["q_b"])
        q = q.unflatten(-1, (s.heads, -1)).transpose(1, 2)
        latent, k_rope = F.linear(h, w["kv_a"]).split((s.kv_rank, s.rope), dim=-1)
        kv = F.linear(rms_norm(latent, w["kv_norm"]), w["kv_b"]).unflatten(-1, (s.heads, -1)).transpose(1, 2)
        k_nope, v = kv.split((s.nope, s.v_dim), dim=-1)
        q_nope, q_rope = q.split((s.nope, s.rope), dim=-1)
        q = torch.cat((q_nope, rotate_pairs(q_rope, cos, sin)), dim=-1)
        k_rope = rotate_pairs(k_rope, cos, sin).unsqueeze(1).expand(-1, s.heads, -1, -1)
        k = torch.cat((k_nope, k_rope), dim=-1)
        if s.v_dim != s.nope + s.rope:  # the fused CPU attention wants one width for all three
            v = F.pad(v, (0, s.nope + s.rope - s.v_dim))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., : s.v_dim]
        x = x + F.linear(a.transpose(1, 2).flatten(-2), w["o"])
        h = rms_norm(x, w["mlp_norm"])
        inner = F.silu(F.linear(h, w["gate"])) * F.linear(h, w["up"])
        if "router" in w:
            inner = (inner.unflatten(-1, (s.experts + 1, -1)) * self._weights(h, w).unsqueeze(-1)).flatten(-2)
        return x + F.linear(inner, w["down"])

    def _weights(self, h: Tensor, w: dict[str, Tensor]) -> Tensor:
        """The weight of the shared expert (1) and of each routed expert, [batch, length, 1 + experts]."""
        scores = F.linear(h, w["router"]).sigmoid()
        chosen = (scores + w["route_bias"]).topk(self.shape.top_k, dim=-1).indices
        kept = scores * torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        kept = kept / (kept.sum(-1, keepdim=True) + 1e-20) * self.shape.routed_scale
        return F.pad(kept, (1, 0), value=1.0)

    def named_tensors(self) -> dict[str, Tensor]:
        tensors = self._outer_tensors()
        width = self.shape.expert_inter
        for i, weights in enumerate(self.layer_weights()):
            prefix = f"model.layers.{i}."
            for name, suffix in self._NAMES.items():
                tensors[f"{prefix}{suffix}.weight"] = weights[name]
            parts = {"gate_proj": weights["gate"], "up_proj": weights["up"], "down_proj": weights["down"]}
            if "router" not in weights:
                tensors |= {f"{prefix}mlp.{name}.weight": tensor for name, tensor in parts.items()}
                continue
            tensors[f"{prefix}mlp.gate.weight"] = weights["router"]
            tensors[f"{prefix}mlp.gate.e_score_correction_bias"] = weights["route_bias"]
            for name, tensor in parts.items():
                shared, *experts = tensor.split(width, dim=1 if name == "down_proj" else 0)
                tensors[f"{prefix}mlp.shared_experts.{name}.weight"] = shared
                for j, expert in enumerate(experts):
                    tensors[f"{prefix}mlp.experts.{j}.{name}.weight"] = expert
        return tensors


def build_target(shape: LlamaShape | DeepseekShape) -> Target:
    """The plain-torch target of this shape, freshly initialised."""
    return LlamaTarget(shape) if isinstance(shape, LlamaShape) else DeepseekTarget(shape)


def grow(shallow: DeepseekTarget, shape: DeepseekShape) -> DeepseekTarget:
    """A deeper target that starts out computing about what `shallow` computes.

    Each expert layer becomes a run of equal copies, each adding its share of what the one layer added.
    """
    dense = shallow.shape.dense_layers
    copies, rest = divmod(shape.layers - dense, shallow.shape.layers - dense)
    if rest or shape.dense_layers != dense:
        raise ValueError(f"{shape.layers} layers cannot be grown from {shallow.shape.layers} in equal runs.")
    source = torch.tensor([*range(dense), *(i for i in range(dense, shallow.shape.layers) for _ in range(copies))])
    deep = DeepseekTarget(shape)
    with torch.no_grad():
        for name in ("embed", "norm", "head"):
            getattr(deep, name).copy_(getattr(shallow, name))
        deep.route_bias.copy_(shallow.route_bias[source])
        for name, stacked in deep.stack.items():
            stacked.copy_(shallow.stack[name][source])
            if name in ("o", "down"):
                stacked[dense:] /= copies
    return deep


def load_target(folder: Path) -> Target:
    """The plain-torch target with the weights of a saved model (bf16 values, computing in float32)."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    target = build_target(shape_from_config(config))
    saved = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, view in target.named_tensors().items():
            view.copy_(saved.pop(name).float())
    if saved:
        raise ValueError(f"{folder} has weights that this target does not know: {sorted(saved)[:3]}.")
    return target
