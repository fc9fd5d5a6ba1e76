"""A draft's tensors under one set of names, and the shapes that its config asks for.

Families (by their first weight names): ``midlayer.`` (EAGLE, SpecForge, TorchSpec, AngelSlim), ``layers.0.``
(speculators, Model-Optimizer), ``model.`` (Automodel). Fused projections are left fused: whoever loads splits them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from drafttrace.compare.draft_config import DraftConfig
from drafttrace.tracer.checkpoint import Checkpoint, TensorInfo

_RENAMES = (
    (re.compile(r"^(?:draft_model\.|module\.)+"), ""),
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)
VOCABULARY_MAPS = ("d2t", "t2d")


def canonical_name(name: str) -> str:
    """``layers.0.mlp.up_proj.weight`` for ``model.midlayer.mlp.up_proj.weight`` and its relatives."""
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


def family(names: Mapping[str, str]) -> str:
    """Which family of names a checkpoint uses; ``names`` maps canonical to stored names."""
    stored = list(names.values())
    if any(name.startswith("midlayer.") or ".midlayer." in name for name in stored):
        return "midlayer."
    if any(name.startswith("model.") for name in stored):
        return "model."
    return "layers.0." if any(name.startswith("layers.0.") for name in stored) else "unknown"


@dataclass(frozen=True)
class DraftWeights:
    """A checkpoint and its tensors by canonical name. ``clashes``: stored names that mean the same tensor. ``turned``:
    canonical names of those that are stored transposed; their shapes are told as they should be."""

    checkpoint: Checkpoint
    names: Mapping[str, str]
    clashes: tuple[tuple[str, str], ...]
    turned: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def info(self, name: str) -> TensorInfo:
        """Header entry of a canonical name. Raises KeyError where it is not there."""
        info = self.checkpoint.info(self.names[name])
        return replace(info, shape=info.shape[::-1]) if name in self.turned else info

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a canonical name; None where it is not there."""
        return self.info(name).shape if name in self.names else None


def draft_weights(checkpoint: Checkpoint) -> DraftWeights:
    """The tensors of a draft's checkpoint by canonical name."""
    names: dict[str, str] = {}
    clashes: list[tuple[str, str]] = []
    for stored in checkpoint:
        name = canonical_name(stored)
        if name in names:
            clashes.append((names[name], stored))
        else:
            names[name] = stored
    return DraftWeights(checkpoint, names, tuple(clashes))


def matrix_shape(weights: DraftWeights, name: str) -> tuple[int, int] | None:
    """Shape of a tensor where it is a matrix with something in it; None for everything else."""
    shape = weights.shape(name)
    return (shape[0], shape[1]) if shape is not None and len(shape) == 2 and 0 not in shape else None


def slots_of_fc(weights: DraftWeights, config: DraftConfig) -> int | None:
    """How many slots ``fc`` takes by its shape; None without ``fc`` or where the width does not divide."""
    shape = weights.shape("fc.weight")
    if shape is None or len(shape) != 2 or shape[1] % config.slot_width:
        return None
    return shape[1] // config.slot_width


def expected_shapes(config: DraftConfig, slots: int) -> dict[str, tuple[int, ...]]:
    """Every tensor that the draft's forward reads, by canonical name, the embedding, head and maps left out."""
    h = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, slots * config.slot_width), "norm.weight": (h,)}
    if config.fc_bias:
        shapes["fc.bias"] = (h,)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (slots * config.slot_width,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{k}.weight": (config.slot_width,) for k in range(slots)}
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config, layer).items()}
    return shapes


def _layer_shapes(config: DraftConfig, layer: int) -> dict[str, tuple[int, ...]]:
    h, wide = config.hidden_size, config.hidden_size * (2 if layer == 0 else 1)
    shapes: dict[str, tuple[int, ...]] = {
        "hidden_norm.weight": (h,),
        "post_attention_layernorm.weight": (h,),
        "mlp.gate_proj.weight": (config.intermediate_size, h),
        "mlp.up_proj.weight": (config.intermediate_size, h),
        "mlp.down_proj.weight": (h, config.intermediate_size),
    }
    if layer == 0:
        shapes["input_layernorm.weight"] = (h,)
    if config.mla is not None:
        mla = config.mla
        query = config.heads * (mla.qk_nope + mla.qk_rope)
        down = mla.q_lora_rank
        if down:
            shapes["self_attn.q_a_proj.weight"] = (down, wide)
            shapes["self_attn.q_a_layernorm.weight"] = (down,)
            shapes["self_attn.q_b_proj.weight"] = (query, down)
        else:
            shapes["self_attn.q_proj.weight"] = (query, wide)
        shapes["self_attn.kv_a_proj_with_mqa.weight"] = (mla.kv_lora_rank + mla.qk_rope, wide)
        shapes["self_attn.kv_a_layernorm.weight"] = (mla.kv_lora_rank,)
        shapes["self_attn.kv_b_proj.weight"] = (config.heads * (mla.qk_nope + mla.v_head), mla.kv_lora_rank)
        shapes["self_attn.o_proj.weight"] = (h, config.heads * mla.v_head)
        return shapes
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    sizes = {"q_proj": (query, wide), "k_proj": (key, wide), "v_proj": (key, wide), "o_proj": (h, query)}
    for name, shape in sizes.items():
        shapes[f"self_attn.{name}.weight"] = shape
        if config.attention_bias:
            shapes[f"self_attn.{name}.bias"] = (shape[0],)
    return shapes


def split_fused(name: str) -> tuple[str, ...]:
    """The plain tensors that a fused one holds: ``qkv_proj`` and ``gate_up_proj``; others hold themselves."""
    if ".qkv_proj." in name:
        return tuple(name.replace("qkv_proj", part) for part in ("q_proj", "k_proj", "v_proj"))
    if ".gate_up_proj." in name:
        return tuple(name.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj"))
    return (name,)
