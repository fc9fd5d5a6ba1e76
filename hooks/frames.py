"""Rows on their way from a forward pass to the writer. Knows tensors, and nothing of any engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from drafttrace.hooks.host import Array, HostFrame, HostPart, Step
from drafttrace.hooks.identity import RowGroup, Verdict
from drafttrace.tracer.trace.schema import SOURCE_PYTHON_SEAM

if TYPE_CHECKING:
    import torch

    from drafttrace.hooks.session import Session


def is_boundary(name: str) -> bool:
    """Whether a tap belongs to the layer sweep."""
    return name.startswith("boundary/")


@dataclass(slots=True)
class Part:
    """One tap's rows of one request: ``tensor`` ``[m, width]`` stands at rows ``offset .. offset+m`` of the group.

    offset None: the row is the last accepted one, which is known only when the verdict is.
    """

    tensor: torch.Tensor
    offset: int | None = 0
    source: int = 0

    @property
    def nbytes(self) -> int:
        return int(self.tensor.nbytes)


@dataclass
class FrameRows:
    """The rows of one request in one forward pass, with every tap that fired there.

    position and token_id: tensors ``[rows]`` of the engine's own. sweep: how many of the rows a layer sweep covers.
    parts: by tap name. padding: by tap name the first padding row ``[1, width]`` of the batch, where it had any.
    """

    side: str
    group: RowGroup
    rows: int
    round: int
    frame: int
    position: torch.Tensor
    token_id: torch.Tensor
    graph: bool = False
    live_rows: int = 0
    padded_rows: int = 0
    cached_prefix: int = 0
    rank: int = 0
    sweep: int = 0
    parts: dict[str, Part] = field(default_factory=dict)
    padding: dict[str, torch.Tensor] = field(default_factory=dict)
    copied: list[Any] = field(default_factory=list)
    direct: bool = False
    held: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are kept (``held``: of the taps), and of what stands beside them."""
        return self.held + 64 * self.rows

    def keep(self, name: str, part: Part) -> None:
        """One more tap."""
        self.parts[name] = part
        self.held += part.nbytes

    def keep_padding(self, name: str, row: torch.Tensor) -> None:
        """The padding row of a tap."""
        self.padding[name] = row
        self.held += int(row.nbytes)

    def as_arrays(self) -> HostFrame:
        """The same rows as arrays, which share the memory of the tensors. Only once everything is on the host."""
        return HostFrame(
            side=self.side,
            group=self.group,
            rows=self.rows,
            round=self.round,
            frame=self.frame,
            position=as_numpy(self.position).astype(np.int64),
            token_id=as_numpy(self.token_id).astype(np.int64),
            graph=self.graph,
            live_rows=self.live_rows,
            padded_rows=self.padded_rows,
            cached_prefix=self.cached_prefix,
            rank=self.rank,
            parts={
                name: HostPart(as_numpy(part.tensor), part.offset, part.source) for name, part in self.parts.items()
            },
            padding={name: as_numpy(tensor) for name, tensor in self.padding.items()},
        )

    def to_host(self) -> None:
        """Start the copies to the host; ``copied`` are the events after which they are done."""
        if not self.position.is_cuda and not any(part.tensor.is_cuda for part in self.parts.values()):
            return
        import torch

        names = list(self.parts)
        tensors = [
            self.position,
            self.token_id,
            *(self.parts[name].tensor for name in names),
            *self.padding.values(),
        ]
        made, event = to_host(tensors)
        self.copied = [event] if event is not None else []
        if self.direct:
            self.copied.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
            self.copied[-1].record()
        self.position, self.token_id = made[:2]
        parts, padding = made[2 : 2 + len(names)], made[2 + len(names) :]
        for name, tensor in zip(names, parts, strict=True):
            self.parts[name].tensor = tensor
        self.padding = dict(zip(self.padding, padding, strict=True))


@dataclass
class Span:
    """Where one traced request (number ``index``) stands in the running batch: rows ``start .. stop``."""

    session: Session
    start: int
    stop: int
    index: int
    rows: FrameRows


@dataclass
class Frame:
    """One forward pass that holds at least one traced request.

    live_rows: rows of the batch that belong to a request. padded_rows: rows that the taps saw, with those of padding.
    """

    side: str
    spans: list[Span]
    expected: frozenset[str] = frozenset()
    live_rows: int = 0
    padded_rows: int = 0
    graph: bool = False

    def take(self, name: str, tensor: torch.Tensor, source: int = 0) -> None:
        """Copy the traced rows of ``tensor`` ``[batch rows, width]`` now: fused kernels overwrite views in place.

        Rows behind the live ones are padding: the first of them is kept beside the traced rows, once for the batch, so
        that a live row that holds the same can be told (a layer sweep's rows aside).
        """
        padding = self._padding_row(name, tensor, source)
        seen = tensor.shape[0]
        for span in self.spans:
            if not span.session.wants(name) or name in span.rows.parts:
                continue
            stop = span.stop
            if is_boundary(name):  # a sweep may cover only the first rows, of the trace or of a graph's buffer
                stop = min(stop, span.start + span.rows.sweep, seen)
            if stop <= span.start:
                continue
            if seen < stop:
                raise RuntimeError(f"the tap {name} saw {seen} rows where the batch has {self.live_rows} or more")
            rows = tensor[span.start : stop]
            if span.session.admits(name, span.rows, rows.nbytes):
                span.rows.keep(name, Part(_own(rows, span.rows), source=source))
                if padding is not None:
                    span.rows.keep_padding(name, padding)

    def _padding_row(self, name: str, tensor: torch.Tensor, source: int) -> torch.Tensor | None:
        """A copy of the first padding row ``[1, width]``; None where the batch has none, or the seam cut it off."""
        if tensor.shape[0] <= self.live_rows or is_boundary(name) or source == SOURCE_PYTHON_SEAM:
            return None
        self.padded_rows = max(self.padded_rows, int(tensor.shape[0]))
        if all(name in span.rows.parts or not span.session.wants(name) for span in self.spans):
            return None
        return tensor[self.live_rows : self.live_rows + 1].clone()

    def take_part(self, span: Span, name: str, tensor: torch.Tensor, offset: int | None) -> None:
        """Keep ``tensor`` (already this request's own copy) as rows of a tap."""
        if span.session.wants(name) and name not in span.rows.parts:
            span.rows.keep(name, Part(tensor, offset))


@dataclass
class Batch:
    """What one scheduler step computed for one request: its frames in order, and the verdict if it verified.

    nodes and count are the verifier's tensors. total: tokens of prompt and output after the step.
    """

    session: Session
    frames: list[FrameRows] = field(default_factory=list)
    nodes: torch.Tensor | None = None
    count: torch.Tensor | None = None
    copies: list[Any] = field(default_factory=list)
    total: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(frame.nbytes for frame in self.frames)

    @property
    def row_count(self) -> int:
        return sum(frame.rows for frame in self.frames)

    def say(self, nodes: torch.Tensor, count: torch.Tensor) -> None:
        """Keep the verdict, on its way to the host."""
        (self.nodes, self.count), copied = to_host([nodes, count])
        self.copies.append(copied)

    @property
    def arrived(self) -> bool:
        """Whether everything is on the host already."""
        return all(copied is None or copied.query() for copied in self._copied())

    def _copied(self) -> Iterator[Any]:
        yield from self.copies
        for frame in self.frames:
            yield from frame.copied

    def on_host(self) -> Step:
        """The step as arrays, once everything is on the host. Waits where it has not ``arrived``."""
        for copied in self._copied():
            if copied is not None:
                copied.synchronize()
        verdict = None
        if self.nodes is not None and self.count is not None:
            verdict = Verdict(as_numpy(self.nodes).astype(np.int64), int(self.count))
        return Step(tuple(frame.as_arrays() for frame in self.frames), verdict, self.total)


def _own(rows: torch.Tensor, frame: FrameRows) -> torch.Tensor:
    """A copy that nobody else writes to: on the device, or for the many rows of a prefill at once in host memory.

    A second copy of a long prefill's states could be what a full GPU has no room for.
    """
    if not rows.is_cuda or rows.nbytes < _DIRECT_BYTES:
        return rows.clone()
    import torch

    host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    host.copy_(rows, non_blocking=True)  # on the stream that computes: queued before anything overwrites the rows
    frame.direct = True
    return host


_DIRECT_BYTES = 4 << 20
_side: dict[Any, Any] = {}  # one copy stream per device


def to_host(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
    """The tensors on the host, and the CUDA event after which they hold their values (None: they do already).

    Copies go to pinned memory on a stream of their own, behind what the current stream has queued: the next forward
    pass does not wait for them. The tensors must be ours: nobody may write to them any more.
    """
    import torch

    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return tensors, None
    side = _side.get(device)
    if side is None:
        side = _side[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    made = []
    with torch.cuda.stream(side):
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(side)  # its memory is not reused before the copy has run
            made.append(host)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(side)
    return made, event


def as_numpy(tensor: torch.Tensor) -> Array:
    """A host tensor in the storage form of the trace: bf16 and fp8 as unsigned integers of their bits."""
    import torch

    if tensor.dtype is torch.bfloat16:
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        return tensor.view(torch.int16).numpy().view(np.uint16)
    if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point:
        return tensor.contiguous().view(torch.uint8).numpy()
    return tensor.contiguous().numpy()
