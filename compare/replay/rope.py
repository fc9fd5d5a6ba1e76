"""Rotary position embeddings of draft layers in torch: the tables of ``rope_tables``, applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drafttrace.compare.audit.said_in_vain import garbled_rope
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.rope_tables import RopeTable, served_table, trained_table
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
    """The rotation that training used, for texts of up to ``length`` tokens (dynamic scalings depend on it).

    Raises UnknownFormat for a rope type that is none of the known ones or lacks its numbers, and for fields from which
    no scaling can be read.
    """
    return _made(config, length, trained_table)


def served_rotation(config: DraftConfig, length: int) -> Rotation:
    """The rotation that SGLang uses; raises as :func:`rotation_of` does."""
    return _made(config, length, served_table)


def same_rotation(one: Rotation, other: Rotation) -> bool:
    """Whether two rotations turn alike."""
    alike = one.interleaved == other.interleaved and one.dims == other.dims
    scales = np.allclose((one.scale, one.softmax), (other.scale, other.softmax), rtol=1e-6)
    return alike and bool(scales) and torch.allclose(one.inverse, other.inverse, rtol=1e-6, atol=0.0)


def _made(config: DraftConfig, length: int, make: Callable[[DraftConfig, int], RopeTable]) -> Rotation:
    garbled = garbled_rope(config)
    if garbled is not None:
        raise UnknownFormat(
            f"{config.path} has {garbled}, so it is not known how the draft turns positions; copy the training run's "
            "rope_scaling, or drop it if training used none."
        )
    try:
        table = make(config, length)
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise UnknownFormat(
            f"{config.path} has rope numbers that cannot be computed with ({config.rope.kind}, {error}); "
            "copy the training run's rope_scaling."
        ) from error
    return Rotation(torch.from_numpy(table.inverse).float(), table.scale, table.interleaved, table.softmax)
