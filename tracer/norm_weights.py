"""The norm weights of a served target and its draft, by name: vectors of kilobytes out of checkpoints of any size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.checkpoint import open_checkpoint, read_json
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.part_names import gain_is_one_plus
from drafttrace.tracer.served_paths import served_path

if TYPE_CHECKING:
    from drafttrace.tracer.capture import Capture

Doubles = npt.NDArray[np.float64]

_ELSEWHERE = ("visual", "vision", "audio")


def served_norms(capture: Capture) -> dict[str, Doubles]:
    """What the norms of the target and of the draft that a trace names multiply by, as wide as a slot.

    Empty where the folders are not on this machine, or are no checkpoints: nobody asked for them.
    """
    width = capture.hidden_size
    found: dict[str, Doubles] = {}
    for role, prefix in (("target", ""), ("draft", "draft: ")):
        path = served_path(capture, "target" if role == "target" else "draft")
        if path is None or width is None or not Path(path).is_dir():
            continue
        try:
            found |= {prefix + name: gain for name, gain in norm_gains(Path(path), width).items()}
        except DrafttraceError:
            continue
    return found


def norm_gains(folder: Path, width: int) -> Mapping[str, Doubles]:
    """Per norm of a checkpoint what it multiplies by ``[width]``: ``1 + w`` for the families that store ``w``.

    Raises DrafttraceError where the folder is no checkpoint that can be read.
    """
    checkpoint = open_checkpoint(folder)
    config = folder / "config.json"
    kind = read_json(config).get("model_type") if config.is_file() else None
    plus = 1.0 if gain_is_one_plus(str(kind or "")) else 0.0
    found: dict[str, Doubles] = {}
    for name in checkpoint:
        if not name.endswith(".weight") or "norm" not in name or any(part in name for part in _ELSEWHERE):
            continue
        info = checkpoint.info(name)
        if info.shape == (width,) and info.float_dtype is not None:
            found[name] = checkpoint.floats(name).astype(np.float64) + plus
    return found
