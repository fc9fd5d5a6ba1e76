"""``python sglang_rope.py REQUEST OUT``: the rotary tables of the installed SGLang, in a process of its own.

REQUEST is a JSON list of ``get_rope``'s arguments and a number of rows; OUT gets cos and sin of each, and its pairing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


def main(request: Path, out: Path) -> None:
    from sglang.srt.layers.rotary_embedding import get_rope

    found: dict[str, Any] = {}
    for k, one in enumerate(json.loads(request.read_text())):
        rows, first = one.pop("rows"), one.pop("original")
        layer = get_rope(**one, dtype=torch.float32)
        if hasattr(layer, "cos_sin_cache"):
            table = layer.cos_sin_cache[:rows]
        else:  # Phi3: two tables one after the other, the second for texts beyond the first one's length
            begin = first if rows > first else 0
            table = layer.long_short_cos_sin_cache[begin : begin + rows]
        cos, sin = table.float().cpu().chunk(2, dim=-1)
        found |= {f"cos{k}": cos, f"sin{k}": sin, f"neox{k}": bool(getattr(layer, "is_neox_style", True))}
    np.savez(out, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
