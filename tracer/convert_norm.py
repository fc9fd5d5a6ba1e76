"""The final norm that a conversion applies to a last state before it, where the layout stores it after the norm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drafttrace.tracer.capture import Norm
from drafttrace.tracer.convert_recording import is_trace
from drafttrace.tracer.dumps.tensor import Array
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import DType, Rows

if TYPE_CHECKING:
    from drafttrace.tracer.convert_sample import Sample
    from drafttrace.tracer.target_weights import TargetWeights


def normed_by(source: Sample, folder: Path, name: str, rows: Rows) -> Rows:
    """The state ``name`` of a sample, which is said to stand before the final norm, after that of the target in ``folder``.

    Raises DrafttraceError where its values stand after the norm: normed twice, it would look like a last state to every
    later check, and be another one.
    """
    from drafttrace.tracer.checked_states import CheckedState
    from drafttrace.tracer.last_state_checks import refuted_before_norm
    from drafttrace.tracer.target_weights import TargetWeights

    target, capture = TargetWeights(folder), source.capture
    if rows.width == target.shape.hidden_size:
        state = CheckedState(name, rows, None, True, source.index)
        found = refuted_before_norm(capture, state, capture.tokens[: len(source)], target)
        if found is not None:
            raise DrafttraceError(
                f"The last state of '{capture.path}' would be normed twice with --target: {found.summary.rstrip('.')}"
                f"{_declared(source, name)}; {_remedy(source, name)}."
            )
    return _Normed(rows, target)


def _declared(source: Sample, name: str) -> str:
    last = source.capture.last
    return f", for {last.proven_by}" if last is not None and last.name == name and last.proven_by else ""


def _remedy(source: Sample, name: str) -> str:
    """How a user says where the state stands, by what kind of file it is in."""
    capture = source.capture
    if capture.format == "MAPPED":
        return f"say --last-norm {Norm.POST}, which stores it as it is"
    if is_trace(capture):
        return "give the target that it was recorded with, or record it again"
    return (
        f"if it is so, name the file's fields instead, with --slots, --tokens, --mask, --last '{name}' and --last-norm "
        f"{Norm.POST}, which stores it as it is; else dump it again"
    )


class _Normed(Rows):
    """A last state after the target's final norm, rounded to the number format that it came in; of fp8 as float32."""

    def __init__(self, rows: Rows, target: TargetWeights) -> None:
        self._rows, self._target = rows, target
        self.shape = rows.shape
        self.dtype = DType.FP32 if rows.dtype in {DType.FP8_E4M3, DType.FP8_E5M2} else rows.dtype

    def raw(self, start: int, stop: int) -> Array:
        values = self._target.final_norm(self._rows.floats(start, stop))
        if self.dtype is DType.BF16:
            bits = values.view(np.uint32)
            rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            return rounded
        return values.astype(self.dtype.storage)
