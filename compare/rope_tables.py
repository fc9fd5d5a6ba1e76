"""Rotary tables of a draft, as its trainer made them and as SGLang makes them: every scaling that the two know.

The trainer's are transformers' (``modeling_rope_utils``), SGLang's those of ``layers/rotary_embedding`` as
``models/llama.py`` and ``models/deepseek_v2.py`` (0.5.23) ask for them. No torch in here: the audit reads this, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.compare.draft_config import DraftConfig
from drafttrace.tracer.errors import UnknownFormat

Doubles = npt.NDArray[np.float64]

INSIDE_COUNTS = frozenset({"glm4", "glm4_moe", "phi3", "stablelm", "persimmon", "nemotron", "qwen3_next"})
"""Types whose layer turns a part of the channels where ``partial_rotary_factor`` stands among the rope's own fields; a
Llama's, like most, turns all of them then."""
YARNS, LONGS = frozenset({"yarn", "deepseek_yarn"}), frozenset({"longrope", "su"})


@dataclass(frozen=True)
class RopeTable:
    """Angles of a rotary embedding: inverse frequencies ``[dims/2]``, and what multiplies cos and sin.

    interleaved: pairs are neighbours (2i, 2i+1), as in DeepSeek, instead of halves (i, i + dims/2). softmax: what the
    scaling multiplies attention scores with. The channels beyond ``dims`` of a head pass through.
    """

    inverse: Doubles
    scale: float
    interleaved: bool
    softmax: float

    @property
    def dims(self) -> int:
        """Channels that turn."""
        return 2 * len(self.inverse)

    def turned(self, x: Doubles, positions: Doubles) -> Doubles:
        """``x`` ``[N, head]`` at each of the positions ``[P]``: ``[P, N, head]``."""
        angle = positions[:, None, None] * self.inverse
        cos, sin = np.cos(angle) * self.scale, np.sin(angle) * self.scale
        half = len(self.inverse)
        one, two = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if self.interleaved else (
            slice(0, half), slice(half, 2 * half)
        )  # fmt: skip
        out = np.broadcast_to(x, (len(positions), *x.shape)).copy()
        out[..., one] = x[:, one] * cos - x[:, two] * sin
        out[..., two] = x[:, two] * cos + x[:, one] * sin
        return out


def trained_table(config: DraftConfig, length: int) -> RopeTable:
    """As the trainer made it for texts of up to ``length`` tokens (dynamic scalings depend on it).

    Raises UnknownFormat for a rope type that is none of the known ones or lacks its numbers; ArithmeticError, TypeError or
    ValueError for numbers that nothing can be computed with.
    """
    mla = config.mla
    width = mla.qk_rope if mla is not None else config.head_dim
    dims = width if mla is not None else int(config.head_dim * _partial(config))
    if dims <= 0 or dims % 2 or dims > width:
        raise ValueError(f"{dims} of {width} dimensions would turn")
    inverse, scale = _inverse(config, dims, length)
    interleaved = mla is not None and bool(config.flat.get("rope_interleave", True))
    if mla is None or config.rope.kind not in YARNS:
        return RopeTable(inverse, scale, interleaved, 1.0)
    factor, all_dim = _need(config, "factor"), float(config.rope.fields.get("mscale_all_dim", 0) or 0)
    given = config.rope.fields.get("attention_factor")
    scale = _mscale(factor, float(config.rope.fields.get("mscale", 1) or 1)) / _mscale(factor, all_dim)
    return RopeTable(
        inverse, float(given) if given is not None else scale, interleaved, _mscale(factor, all_dim) ** 2
    )


def served_table(config: DraftConfig, length: int) -> RopeTable:
    """As SGLang makes it; raises what :func:`trained_table` raises."""
    table, fields = trained_table(config, length), config.rope.fields
    mla, kind = config.mla, config.rope.kind
    if mla is not None:
        return table if kind in {"default", "mrope"} else _served_latent(config, table)
    top = config.flat.get("partial_rotary_factor")
    dims = config.head_dim if top is None else int(config.head_dim * float(top))
    neox = config.flat.get("rope_is_neox_style", True)
    table = replace(table, interleaved=not neox)
    base = _plain(config.rope.theta, dims)
    if kind == "linear":
        return replace(table, inverse=base / _need(config, "factor"))
    if kind == "dynamic":
        return replace(table, inverse=_served_dynamic(config, dims))
    if kind == "llama3":
        return replace(table, inverse=_llama3(config, base))
    if kind in YARNS:
        inverse = _yarn(config, base, dims, truncate=kind == "deepseek_yarn" or bool(fields.get("truncate", True)))
        return replace(table, inverse=inverse, scale=_served_yarn_scale(fields, _need(config, "factor"), kind))
    if kind in LONGS:
        return replace(table, inverse=_long_inverse(config, base, length), scale=_served_long_scale(config, length))
    return replace(table, inverse=base)


def distance(one: RopeTable, other: RopeTable, width: int, positions: int) -> float:
    """By how much of its length a vector of ``width`` channels, turned by the two, differs at most, up to a position."""
    random = np.random.default_rng(0)
    x = random.standard_normal((8, width))
    at = np.unique(np.linspace(0, max(1, positions) - 1, 256).astype(np.int64)).astype(np.float64)
    apart = np.linalg.norm(one.turned(x, at) - other.turned(x, at), axis=-1) / np.linalg.norm(x, axis=-1)
    return float(apart.max())


def _partial(config: DraftConfig) -> float:
    """The share of channels that training turned."""
    if config.flat.get("partial_rotary_factor") is None and str(config.flat.get("model_type")) not in INSIDE_COUNTS:
        return 1.0
    return config.rope.partial


def _plain(theta: float, dims: int) -> Doubles:
    found: Doubles = theta ** -(np.arange(0, dims, 2, dtype=np.float64) / dims)
    return found


def _inverse(config: DraftConfig, dims: int, length: int) -> tuple[Doubles, float]:
    """Inverse frequencies and the factor on cos and sin."""
    rope = config.rope
    base, fields = _plain(rope.theta, dims), rope.fields
    if rope.kind == "linear":
        return base / _need(config, "factor"), 1.0
    if rope.kind == "dynamic":
        return _dynamic(config, dims, length), 1.0
    if rope.kind == "llama3":
        return _llama3(config, base), 1.0
    if rope.kind in YARNS:
        inverse = _yarn(config, base, dims, truncate=bool(fields.get("truncate", True)))
        return inverse, _yarn_scale(fields, _need(config, "factor"))
    if rope.kind in LONGS:
        return _long_inverse(config, base, length), _long_scale(config)
    if rope.kind in {"default", "mrope"}:
        return base, 1.0
    raise UnknownFormat(
        f"{config.path} has the rope type '{rope.kind}', which the replay does not know; "
        "copy the training run's rope_scaling (known are default, linear, dynamic, llama3, yarn and longrope)."
    )


def _need(config: DraftConfig, key: str) -> float:
    value: Any = config.rope.fields.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value:
        raise UnknownFormat(
            f"{config.path} has the rope type '{config.rope.kind}' without '{key}'; add the number."
        )
    return float(value)


def _original(config: DraftConfig) -> float:
    value = config.rope.fields.get("original_max_position_embeddings") or config.flat.get(
        "original_max_position_embeddings"
    )
    return float(value or config.max_positions)


def _dynamic(config: DraftConfig, dims: int, length: int) -> Doubles:
    factor, original = _need(config, "factor"), _original(config)
    longest = max(float(length), original)
    return _plain(config.rope.theta * ((factor * longest / original) - (factor - 1)) ** (dims / (dims - 2)), dims)


def _served_dynamic(config: DraftConfig, dims: int) -> Doubles:
    """Stretched from the first token on, as for a text of ``factor`` times the positions; by any ``alpha`` instead."""
    alpha, power = config.rope.fields.get("alpha"), dims / (dims - 2)
    if alpha is not None:
        return _plain(config.rope.theta * float(alpha) ** power, dims)
    factor = _need(config, "factor")
    return _plain(config.rope.theta * (factor * factor - (factor - 1)) ** power, dims)


def _llama3(config: DraftConfig, base: Doubles) -> Doubles:
    """Long wavelengths are stretched, short ones kept, those between blended (Llama 3.1)."""
    factor = _need(config, "factor")
    low, high = _need(config, "low_freq_factor"), _need(config, "high_freq_factor")
    wavelength = 2 * math.pi / base
    smooth = ((_original(config) / wavelength - low) / (high - low)).clip(0, 1)
    found: Doubles = base * (smooth + (1 - smooth) / factor)
    return found


def _yarn(config: DraftConfig, base: Doubles, dims: int, *, truncate: bool) -> Doubles:
    """YaRN (arXiv 2309.00071): a ramp over dimensions from interpolated to kept frequencies."""
    factor, original, theta = _need(config, "factor"), _original(config), config.rope.theta
    fields = config.rope.fields

    def dimension(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(float(fields.get("beta_fast") or 32)), dimension(float(fields.get("beta_slow") or 1))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    span = (high - low) if high != low else 0.001
    keep = 1 - ((np.arange(dims // 2, dtype=np.float64) - low) / span).clip(0, 1)
    found: Doubles = base / factor * (1 - keep) + base * keep
    return found


def _yarn_scale(fields: Mapping[str, Any], factor: float) -> float:
    if fields.get("attention_factor") is not None:
        return float(fields["attention_factor"])
    if fields.get("mscale") and fields.get("mscale_all_dim"):
        return _mscale(factor, float(fields["mscale"])) / _mscale(factor, float(fields["mscale_all_dim"]))
    return _mscale(factor, 1.0) * float(fields.get("attn_factor") or 1.0)


def _served_yarn_scale(fields: Mapping[str, Any], factor: float, kind: str) -> float:
    """Without ``attention_factor``; a 0 in ``mscale_all_dim`` counts, and ``attn_factor`` multiplies in any case."""
    weight, every = fields.get("mscale"), fields.get("mscale_all_dim")
    given = fields.get("attn_factor")
    attn = 1.0 if given is None else float(given)
    if kind == "deepseek_yarn":
        weight, every = 1.0 if weight is None else weight, 0.0 if every is None else every
    if weight is None or every is None:
        return _mscale(factor, 1.0) * attn
    return _mscale(factor, float(weight)) / _mscale(factor, float(every)) * attn


def _served_latent(config: DraftConfig, table: RopeTable) -> RopeTable:
    """Multi-latent attention: whatever scaling is asked for, it is DeepSeek's YaRN."""
    fields = config.rope.fields
    number: Any = fields.get("factor", 1.0)
    factor = float(number)
    yarn = replace(config, rope=replace(config.rope, kind="deepseek_yarn", fields={**fields, "factor": factor}))
    inverse = _yarn(yarn, _plain(config.rope.theta, table.dims), table.dims, truncate=True)
    all_dim = float(fields.get("mscale_all_dim", 0) or 0)
    softmax = _mscale(factor, all_dim) ** 2 if fields.get("apply_yarn_scaling", True) else 1.0
    scale = _served_yarn_scale(fields, factor, "deepseek_yarn")
    return replace(table, inverse=inverse, scale=scale, softmax=softmax)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _long_inverse(config: DraftConfig, base: Doubles, length: int) -> Doubles:
    key = "long_factor" if length > _original(config) else "short_factor"
    stretch = config.rope.fields.get(key)
    if not isinstance(stretch, list) or len(stretch) != len(base):
        raise UnknownFormat(f"{config.path} has the rope type 'longrope' without a fitting '{key}'; add the list.")
    found: Doubles = base / np.asarray(stretch, np.float64)
    return found


def _long_scale(config: DraftConfig) -> float:
    original = _original(config)
    factor = float(config.rope.fields.get("factor") or config.max_positions / original)
    scale = config.rope.fields.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return float(scale)


def _served_long_scale(config: DraftConfig, length: int) -> float:
    """By the two lengths, whatever ``factor`` and ``attention_factor`` say, unless the file gives SGLang's own fields."""
    original = _original(config)
    given = config.rope.fields.get("long_mscale" if length > original else "short_mscale")
    if given is not None:
        return float(given)
    factor = config.max_positions / original
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
