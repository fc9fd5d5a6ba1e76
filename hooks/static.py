"""Static buffers for taps inside CUDA graphs, where Python does not run at replay.

While a graph is captured, a tap's hook copies into a buffer that lives as long as the process; the copy becomes part
of the graph. After a replay the buffer holds the rows of that replay. Every graph size of one scope shares the buffer
of the largest, so two sizes overwrite each other's rows, as they do in the server's own output buffers: rows are read
right after the replay, on the same stream.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class StaticTaps:
    """Buffers by (scope, tap). ``limit`` bounds their bytes; taps beyond it are not graph-safe and say so."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._largest: dict[tuple[str, str], torch.Tensor] = {}
        self._captured: dict[tuple[str, str], dict[int, torch.Tensor]] = {}

    def write(self, scope: str, name: str, tensor: torch.Tensor, keep: int | None = None) -> bool:
        """Copy ``tensor`` ``[rows, ...]`` into the tap's buffer, in the graph that is being captured; whether it fits.

        keep: how many of the first rows matter; None: all.
        """
        key = (scope, name)
        size = int(tensor.shape[0])
        tensor = tensor[:keep]
        rows = int(tensor.shape[0])
        buffer = self._largest.get(key)
        if (
            buffer is None
            or len(buffer) < rows
            or buffer.shape[1:] != tensor.shape[1:]
            or buffer.dtype != tensor.dtype
        ):
            nbytes = tensor.numel() * tensor.element_size()
            if self.nbytes + nbytes > self.limit:
                return False
            self.nbytes += nbytes
            # Graphs captured before keep the smaller buffer: it stays alive in ``_captured``.
            buffer = self._largest[key] = tensor.new_zeros(tensor.shape)
        buffer[:rows].copy_(tensor)
        self._captured.setdefault(key, {})[size] = buffer
        return True

    def read(
        self, scope: str, name: str, live: int, padded: int | None = None, *, padding: int = 0
    ) -> torch.Tensor | None:
        """The live rows of the last replay, a view ``[live, ...]`` (fewer where fewer were kept); None where no graph
        of that size has the tap.

        padded: rows of the replayed graph, where known; else the smallest captured size that holds the live rows.
        padding: how many rows of padding are wanted behind the live ones, as far as the replay had any. What stands
        behind those is a larger graph's.
        """
        padded = self.size(scope, name, live) if padded is None else padded
        buffer = self._captured.get((scope, name), {}).get(padded) if padded is not None else None
        return None if padded is None or buffer is None else buffer[: max(live, min(live + padding, padded))]

    def size(self, scope: str, name: str, live: int) -> int | None:
        """Rows of the smallest captured graph that holds the live ones; None without one."""
        ordered = sorted(self._captured.get((scope, name), ()))
        at = bisect.bisect_left(ordered, live)
        return ordered[at] if at < len(ordered) else None

    def names(self, scope: str) -> Iterable[str]:
        """The taps that some graph of this scope writes."""
        return [name for found, name in self._captured if found == scope]

    def scopes(self) -> list[str]:
        """All scopes, sorted."""
        return sorted({scope for scope, _ in self._captured})
