"""What a trace holds, in numbers: for ``inspect`` and for the list of a server. Reads no tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Accepted, Phase, Probe
from drafttrace.tracer.trace import reader, schema, texts
from drafttrace.tracer.trace.h5open import TraceFile, settled
from drafttrace.tracer.trace.layout import TensorSpec
from drafttrace.tracer.trace.schema import Records


@dataclass(frozen=True)
class TensorSummary:
    """One tensor: ``target/aux/0``; rows in the file, those of them that were recorded, width, number format."""

    name: str
    rows: int
    recorded: int
    width: int
    dtype: str


@dataclass(frozen=True)
class TraceSummary:
    """A trace in numbers.

    complete: the request was recorded from beginning to end. finished: the writer closed the file (False: it is at
    work or was killed). frames: forward passes. rounds: draft-verify rounds. phases: rows by phase name.
    graph_rows: rows out of CUDA graph replays. accept_lengths: accepted rows of every verify round, in order
    (these are the tokens that the round put out).
    """

    path: str
    bytes: int
    complete: bool
    finished: bool
    reason: str
    request_id: str
    created_utc: str
    tool_version: str
    tokens: int
    prompt_length: int | None
    target_rows: int
    draft_rows: int
    frames: int
    rounds: int
    phases: Mapping[str, int]
    graph_rows: int
    cached_prefix: int
    accept_lengths: tuple[int, ...]
    tensors: tuple[TensorSummary, ...]
    probes: tuple[Probe, ...]
    ranks: tuple[int, ...]

    @property
    def accept_length(self) -> float | None:
        """Mean tokens per round; None without a verify round."""
        return float(np.mean(self.accept_lengths)) if self.accept_lengths else None


def trace_summary(path: str | os.PathLike[str]) -> TraceSummary:
    """The summary of the trace at ``path``. Raises as :func:`drafttrace.tracer.trace.reader.read_trace` does."""
    return settled(path, _summary)


def _summary(trace: TraceFile) -> TraceSummary:
    capture = reader.capture_of(trace)
    layout = reader.layout_of(trace)
    target = reader.table_of(trace, schema.TARGET_ROWS, schema.TARGET_ROW)
    draft = reader.table_of(trace, schema.DRAFT_ROWS, schema.DRAFT_ROW)
    both = np.concatenate([target[["phase", "frame", "graph"]], draft[["phase", "frame", "graph"]]])
    with trace.reading("its head"):
        attributes = {
            name: texts.get_text(trace.file.attrs.get(name, ""))
            for name in (schema.ATTR_REASON, schema.ATTR_REQUEST, schema.ATTR_CREATED, schema.ATTR_TOOL)
        }
    return TraceSummary(
        path=os.fspath(trace.path),
        bytes=os.stat(trace.path).st_size,
        complete=capture.complete,
        finished=trace.closed_properly,
        reason=attributes[schema.ATTR_REASON],
        request_id=attributes[schema.ATTR_REQUEST],
        created_utc=attributes[schema.ATTR_CREATED],
        tool_version=attributes[schema.ATTR_TOOL],
        tokens=len(capture.tokens),
        prompt_length=capture.prompt_length,
        target_rows=len(target),
        draft_rows=len(draft),
        frames=len(np.unique(both["frame"])),
        rounds=len(np.unique(target["round"][target["round"] >= 0])),
        phases={phase.name.lower(): n for phase in Phase if (n := int((both["phase"] == phase).sum()))},
        graph_rows=int((both["graph"] == schema.GRAPH_REPLAY).sum()),
        cached_prefix=int(target["cached_prefix"].max(initial=0)),
        accept_lengths=_accept_lengths(target),
        tensors=(
            *_tensors("target", layout.target, target, capture),
            *_tensors("draft", layout.draft, draft, capture),
        ),
        probes=capture.probes,
        ranks=layout.ranks,
    )


def _accept_lengths(rows: Records) -> tuple[int, ...]:
    verify = rows[rows["phase"] == Phase.VERIFY]
    rounds, place = np.unique(verify["round"], return_inverse=True)
    counts = np.bincount(place, verify["accepted"] == Accepted.ACCEPTED, minlength=len(rounds))
    return tuple(int(count) for count in counts)


def _tensors(side: str, specs: tuple[TensorSpec, ...], rows: Records, capture: Any) -> list[TensorSummary]:
    found = []
    bit = 0
    for spec in specs:
        if spec.is_boundary:
            count = len(capture.boundaries[int(spec.name.removeprefix("boundary/"))])
            recorded = count
        else:
            count = len(rows)
            recorded = int(((rows["present"] >> bit) & 1).sum())
            bit += 1
        found.append(TensorSummary(f"{side}/{spec.name}", count, recorded, spec.width, str(spec.dtype)))
    return found
