"""What a target multiplies its embedding by before its first layer, as its config says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NAMES = ("scale_emb", "embedding_multiplier")
"""Keys of MiniCPM's and Granite's configs."""
_MOST = 1e6


def multipliers(
    config: Mapping[str, Any], model_type: str, hidden_size: int, names: Sequence[str] = NAMES
) -> dict[str, float]:
    """The factors by name: ``sqrt(H)`` of a Gemma, which no key tells, and what the keys ``names`` say. 1 is none."""
    gemma = "gemma" in model_type.lower() and hidden_size > 1
    found = {"sqrt(H)": math.sqrt(hidden_size)} if gemma else {}
    for name in names:
        value = config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST and value != 1:
            found[name] = float(value)
    return found
