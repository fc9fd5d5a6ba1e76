"""Rows of one scheduler step on the host: plain arrays, which any thread or process can take. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.hooks.identity import RowGroup, Verdict
from drafttrace.tracer.trace.schema import SOURCE_HOOK

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class HostPart:
    """One tap's rows ``[m, width]`` of one request, in the storage form of the trace.

    offset: the row of the group that the first of them stands at; None: the last accepted one.
    """

    array: Array
    offset: int | None = 0
    source: int = SOURCE_HOOK


@dataclass(frozen=True, slots=True)
class HostFrame:
    """The rows of one request in one forward pass.

    position, token_id: ``[rows]``. parts: by tap. padding: by tap the batch's first padding row ``[1, width]``.
    """

    side: str
    group: RowGroup
    rows: int
    round: int
    frame: int
    position: npt.NDArray[np.int64]
    token_id: npt.NDArray[np.int64]
    graph: bool = False
    live_rows: int = 0
    padded_rows: int = 0
    cached_prefix: int = 0
    rank: int = 0
    parts: Mapping[str, HostPart] = field(default_factory=dict)
    padding: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """What one scheduler step computed for one request. total: tokens of prompt and output after it, where known."""

    frames: tuple[HostFrame, ...]
    verdict: Verdict | None
    total: int | None

    @property
    def nbytes(self) -> int:
        """Bytes of all taps."""
        return sum(part.array.nbytes for frame in self.frames for part in frame.parts.values())
