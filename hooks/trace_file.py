"""One trace file as the recorder sees it: scheduler steps go in. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drafttrace.hooks.assemble import padding_of, records_of, tensors_of
from drafttrace.hooks.host import Array, HostFrame, Step
from drafttrace.tracer.capture import Probe
from drafttrace.tracer.row_hash import Hashes
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TraceLayout
from drafttrace.tracer.trace.writer import TraceWriter


@dataclass(frozen=True)
class Written:
    """What is in a trace file by now. rows: of both tables. dropped: by tap, rows of a sweep that did not connect.

    lost: by tap, rows that could not be written. problem: why the first of them could not, in words.
    """

    rows: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None


class _Placed(NamedTuple):
    """A frame and the step that it is of."""

    frame: HostFrame
    step: Step


class TraceFile:
    """One trace on disk. One thread at a time. Raises OSError where the disk refuses, OutputExists for a taken path."""

    def __init__(
        self,
        path: Path,
        layout: TraceLayout,
        request_id: str,
        about: Mapping[str, Any],
        prompt: Sequence[int],
    ) -> None:
        self._writer = TraceWriter(path, layout, request_id=request_id, about=about, prompt=prompt)
        self._specs = {spec.name: spec for spec in (*layout.target, *layout.draft)}
        self._swept: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self.waiting: list[Step] = []
        self.waiting_bytes = 0

    @property
    def written(self) -> Written:
        return Written(self._writer.target_rows + self._writer.draft_rows, dict(self._dropped))

    def append_rank(self, rank: int, rows: schema.Records, hashes: Hashes) -> None:
        """The row hashes of one rank, as :meth:`TraceWriter.append_rank`."""
        self._writer.append_rank(rank, rows, hashes)

    def finish(
        self,
        *,
        reason: str | None,
        tokens: Sequence[int],
        prompt_length: int,
        request: Mapping[str, Any],
        probes: Sequence[Probe],
    ) -> None:
        """End the file: complete where there is no ``reason`` against it. Nothing may wait to be written."""
        self._writer.finish(
            complete=reason is None,
            tokens=tokens,
            prompt_length=prompt_length,
            about={"request": request},
            probes=probes,
            reason=reason,
        )

    def close(self) -> None:
        """Write what waits and close what is not finished: the trace stays incomplete."""
        try:
            self.write()
        finally:
            self._writer.close()

    def takes_now(self, nbytes: int) -> bool:
        """Never: whoever has a step writes it."""
        return False

    def append(self, step: Step) -> None:
        """Write all frames of one scheduler step and flush them."""
        self.take(step)
        self.write()

    def take(self, step: Step) -> None:
        """Keep a step for the next :meth:`write`."""
        self.waiting.append(step)
        self.waiting_bytes += step.nbytes

    def write(self) -> None:
        """Write the frames of all steps that wait, and flush them: every call into HDF5 costs more than a few rows."""
        steps, self.waiting, self.waiting_bytes = self.waiting, [], 0
        if steps:
            self._write(steps)

    def _write(self, steps: Sequence[Step]) -> None:
        run: list[_Placed] = []
        drafts: list[_Placed] = []
        for placed in (_Placed(frame, step) for step in steps for frame in step.frames):
            if placed.frame.padding:
                self._writer.append_padding(padding_of(placed.frame, self._specs))
            if placed.frame.side == "draft":
                drafts.append(placed)
            elif any(self._specs[name].is_boundary for name in placed.frame.parts):
                self._append(self._writer.append_target, run)
                self._append(self._writer.append_target, [placed])
                run = []
            else:
                run.append(placed)
        self._append(self._writer.append_target, run)
        self._append(self._writer.append_draft, drafts)
        self._writer.flush()

    def _append(self, append: Callable[..., None], frames: Sequence[_Placed]) -> None:
        """Frames of one side in one go. Those of a layer sweep come alone."""
        if not frames:
            return
        rows = np.concatenate([records_of(at.frame, at.step.verdict, at.step.total) for at in frames])
        tensors, absent = tensors_of([(at.frame, at.step.verdict) for at in frames], self._specs)
        append(rows, tensors | (self._boundaries(frames[0].frame) if len(frames) == 1 else {}), absent=absent)

    def _boundaries(self, frame: HostFrame) -> dict[str, Array]:
        """The sweep's rows of a frame, as long as they connect to the rows before."""
        found: dict[str, Array] = {}
        for name, part in frame.parts.items():
            if not self._specs[name].is_boundary:
                continue
            array = part.array
            if self._swept.get(name, 0) == self._writer.target_rows:
                found[name] = array
                self._swept[name] = self._swept.get(name, 0) + len(array)
            else:
                self._dropped[name] = self._dropped.get(name, 0) + len(array)
        return found
