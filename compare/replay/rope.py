"""Rotary position embeddings of draft layers: every scaling that SGLang and transformers know, in torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drafttrace.compare.audit.said_in_vain import garbled_rope
from drafttrace.compare.draft_config import DraftConfig, Rope
from drafttrace.tracer.errors import UnknownFormat


@dataclass(frozen=True)
class Rotation:
    """Angles of a rotary embedding. inverse ``[dims/2]``; cos and sin are multiplied by ``scale``.

    interleaved: pairs are neighbours (2i, 2i+1), as in DeepSeek, instead of halves (i, i + dims/2). softmax: what the
    scaling multiplies attention scores with. dims: rotated dimensions of a head; the rest pass through.
    """

    inverse: Tensor
    scale: float
    interleaved: bool
    softmax: float

    @property
    def dims(self) -> int:
        return 2 * len(self.inverse)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin) of ``[rows, dims/2]``."""
        turned = positions.float()[:, None] * self.inverse[None, :]
        return turned.cos() * self.scale, turned.sin() * self.scale

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x`` ``[..., rows, head_dim]`` turned; dimensions beyond ``dims`` unchanged."""
        head, tail = x[..., : self.dims], x[..., self.dims :]
        if self.interleaved:
            even, odd = head[..., 0::2], head[..., 1::2]
            turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
        else:
            half = self.dims // 2
            first, second = head[..., :half], head[..., half:]
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((turned, tail), dim=-1) if tail.shape[-1] else turned


def rotation_of(config: DraftConfig, length: int) -> Rotation:
    """The rotation of a draft for texts of up to ``length`` tokens (dynamic scalings depend on it).

    Raises UnknownFormat for a rope type that is none of the known ones or lacks its numbers, and for fields from which
    no scaling can be read.
    """
    garbled = garbled_rope(config)
    if garbled is not None:
        raise UnknownFormat(
            f"{config.path} has {garbled}, so it is not known how the draft turns positions; copy the training run's "
            "rope_scaling, or drop it if training used none."
        )
    try:
        return _rotation(config, length)
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise UnknownFormat(
            f"{config.path} has rope numbers that cannot be computed with ({config.rope.kind}, {error}); "
            "copy the training run's rope_scaling."
        ) from error


def _rotation(config: DraftConfig, length: int) -> Rotation:
    mla = config.mla
    width = mla.qk_rope if mla is not None else config.head_dim
    dims = width if mla is not None else int(config.head_dim * config.rope.partial)
    if dims <= 0 or dims % 2 or dims > width:
        raise ValueError(f"{dims} of {width} dimensions would turn")
    inverse, scale = _inverse(config, config.rope, dims, length)
    softmax = 1.0
    interleaved = bool(config.flat.get("rope_interleave", mla is not None))
    if mla is not None and config.rope.kind in {"yarn", "deepseek_yarn"}:
        factor, all_dim = _need(config, "factor"), float(config.rope.fields.get("mscale_all_dim", 0) or 0)
        scale = _mscale(factor, float(config.rope.fields.get("mscale", 1) or 1)) / _mscale(factor, all_dim)
        softmax = _mscale(factor, all_dim) ** 2
    return Rotation(inverse, scale, interleaved, softmax)


def _plain(theta: float, dims: int) -> Tensor:
    return theta ** -(torch.arange(0, dims, 2, dtype=torch.float64) / dims)


def _inverse(config: DraftConfig, rope: Rope, dims: int, length: int) -> tuple[Tensor, float]:
    """Inverse frequencies (float32) and the factor on cos and sin."""
    base, scale = _plain(rope.theta, dims), 1.0
    if rope.kind == "linear":
        base = base / _need(config, "factor")
    elif rope.kind == "dynamic":
        base = _dynamic(config, dims, length)
    elif rope.kind == "llama3":
        base = _llama3(config, base)
    elif rope.kind in {"yarn", "deepseek_yarn"}:
        base, scale = _yarn(config, base, dims)
    elif rope.kind in {"longrope", "su"}:
        base, scale = _longrope(config, base, length)
    elif rope.kind not in {"default", "mrope"}:
        raise UnknownFormat(
            f"{config.path} has the rope type '{rope.kind}', which the replay does not know; "
            "copy the training run's rope_scaling (known are default, linear, dynamic, llama3, yarn and longrope)."
        )
    return base.float(), scale


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


def _dynamic(config: DraftConfig, dims: int, length: int) -> Tensor:
    factor, original = _need(config, "factor"), _original(config)
    longest = max(float(length), original)
    theta = config.rope.theta * ((factor * longest / original) - (factor - 1)) ** (dims / (dims - 2))
    return _plain(theta, dims)


def _llama3(config: DraftConfig, base: Tensor) -> Tensor:
    """Long wavelengths are stretched, short ones kept, those between blended (Llama 3.1)."""
    factor = _need(config, "factor")
    low, high = _need(config, "low_freq_factor"), _need(config, "high_freq_factor")
    wavelength = 2 * math.pi / base
    smooth = ((_original(config) / wavelength - low) / (high - low)).clamp(0, 1)
    return base * (smooth + (1 - smooth) / factor)


def _yarn(config: DraftConfig, base: Tensor, dims: int) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): a ramp over dimensions from interpolated to kept frequencies."""
    factor, original, theta = _need(config, "factor"), _original(config), config.rope.theta
    fields = config.rope.fields

    def dimension(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(float(fields.get("beta_fast") or 32)), dimension(float(fields.get("beta_slow") or 1))
    if fields.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    span = (high - low) if high != low else 0.001
    keep = 1 - ((torch.arange(dims // 2, dtype=torch.float64) - low) / span).clamp(0, 1)
    return base / factor * (1 - keep) + base * keep, _yarn_scale(fields, factor)


def _yarn_scale(fields: Mapping[str, Any], factor: float) -> float:
    if fields.get("attention_factor") is not None:
        return float(fields["attention_factor"])
    if fields.get("mscale") and fields.get("mscale_all_dim"):
        return _mscale(factor, float(fields["mscale"])) / _mscale(factor, float(fields["mscale_all_dim"]))
    return _mscale(factor, 1.0) * float(fields.get("attn_factor") or 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(config: DraftConfig, base: Tensor, length: int) -> tuple[Tensor, float]:
    original = _original(config)
    key = "long_factor" if length > original else "short_factor"
    stretch = config.rope.fields.get(key)
    if not isinstance(stretch, list) or len(stretch) != len(base):
        raise UnknownFormat(f"{config.path} has the rope type 'longrope' without a fitting '{key}'; add the list.")
    factor = float(config.rope.fields.get("factor") or config.max_positions / original)
    scale = config.rope.fields.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return base / torch.tensor(stretch, dtype=torch.float64), float(scale)
