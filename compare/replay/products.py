"""The products that a replay spends most of its time on, by oneDNN where torch has it.

For float32 torch takes another library (MKL), which leaves half of a processor idle that is not its maker's: on an EPYC
with AVX-512 oneDNN is 2.2 times as fast with the shapes of a draft. Both sum in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_FEWEST = 16
"""Rows from which on it pays."""


def _kernel() -> torch._ops.OpOverloadPacket | None:
    """torch calls it internal, so it is done without where it is missing."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_KERNEL = _kernel()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x`` ``[..., K]`` times ``weight`` ``[N, K]``, plus ``bias`` ``[N]``: ``[..., N]``, float32."""
    if (
        _KERNEL is None
        or x.dtype is not torch.float32
        or x.device.type != "cpu"
        or x.numel() < _FEWEST * x.shape[-1]
    ):
        return F.linear(x, weight, bias)
    made: Tensor = _KERNEL(x.contiguous(), weight.contiguous(), bias, "none", [], "")
    return made
