"""Faults of attention, of the target or of the draft: how far a layer looks back, and how it turns positions."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

WINDOW = 16
"""Tokens that a row sees where a window is in force, itself included."""
BASE = 500000.0
"""The rope base that stands in the place of the model's own."""


class Attention:
    """The attention layers of one model, which can be put wrong and right again while the server runs."""

    def __init__(self, model: nn.Module) -> None:
        from sglang.srt.layers.radix_attention import RadixAttention

        self._layers: list[Any] = [m for m in model.modules() if isinstance(m, RadixAttention)]
        self._windows = [layer.sliding_window_size for layer in self._layers]
        self._turning: list[Any] = [m for m in model.modules() if getattr(m, "rotary_emb", None) is not None]
        self._right = [module.rotary_emb for module in self._turning]
        self._wrong: list[Any] = []

    def put(self, *, window: bool, base: bool) -> None:
        """A window of WINDOW tokens (SGLang's number counts those before a row), another rope base, or neither."""
        for layer, right in zip(self._layers, self._windows, strict=True):
            layer.sliding_window_size = WINDOW - 1 if window else right
        if base and not self._wrong:
            self._wrong = [_turned_by(rotary) for rotary in self._right]
        for module, rotary in zip(self._turning, self._wrong if base else self._right, strict=True):
            module.rotary_emb = rotary


def _turned_by(rotary: Any) -> Any:
    """A copy with another base. SGLang gives target and draft one object where they turn alike: it must stay as it is."""
    other = copy.deepcopy(rotary)
    other.base = BASE
    other.cos_sin_cache = other._compute_cos_sin_cache().to(rotary.cos_sin_cache.dtype)
    other._cos_sin_cache_cast = None
    return other
