"""The products that a replay spends most of its time on, by oneDNN where torch has it.

For float32 torch takes another library (MKL), which leaves half of a processor idle that is not its maker's: on an EPYC
with AVX-512 oneDNN is 2.2 times as fast with the shapes of a draft. Both sum in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

_FEWEST = 16
"""Rows from which on it pays."""
_SMALL = 512
"""Width of a draft up to which more than one thread costs more than it saves."""


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


@contextmanager
def threads(width: int) -> Iterator[None]:
    """One thread for small drafts: handing an operation of microseconds to other cores costs more than it saves."""
    before = torch.get_num_threads()
    if width <= _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
