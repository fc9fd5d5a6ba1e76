"""One trace file as the recorder sees it: scheduler steps go in. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """What is in a trace file by now. rows: of both tables. dropped: by tap, rows of a sweep that did not connect."""

    rows: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)


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
        """End the file: complete where there is no ``reason`` against it."""
        self._writer.finish(
            complete=reason is None,
            tokens=tokens,
            prompt_length=prompt_length,
            about={"request": request},
            probes=probes,
            reason=reason,
        )

    def close(self) -> None:
        """Close what is not finished: the trace stays incomplete."""
        self._writer.close()

    def append(self, step: Step) -> None:
        """Write all frames of one scheduler step and flush them."""
        verdict = step.verdict
        for frame in step.frames:
            if frame.padding:
                self._writer.append_padding(padding_of(frame, self._specs))
            if frame.side == "target":
                rows = records_of(frame, verdict, step.total)
                tensors, absent = tensors_of([frame], self._specs, verdict)
                self._writer.append_target(rows, tensors | self._boundaries(frame), absent=absent)
        drafts = [frame for frame in step.frames if frame.side == "draft"]
        if drafts:  # all steps of a round in one go: every call into HDF5 costs more than these few rows
            rows = np.concatenate([records_of(frame, verdict, step.total) for frame in drafts])
            tensors, absent = tensors_of(drafts, self._specs, verdict)
            self._writer.append_draft(rows, tensors, absent=absent)
        self._writer.flush()

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
