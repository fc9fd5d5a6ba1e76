"""Writes a capture as a trace: one row per token, its states, its sweep, and what a recording says of itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Norm
from drafttrace.tracer.convert_place import new_file
from drafttrace.tracer.convert_sample import (
    BLOCK,
    Sample,
    blocks,
    covered,
    kind_of,
    refuse,
    refuse_last_boundary,
    refuse_mask,
)
from drafttrace.tracer.dumps.tensor import Array
from drafttrace.tracer.rows import DType, Rows


def to_trace(source: Sample, out: Path) -> list[Path]:
    """Write the trace ``out``; an old file stays until the new one is whole. Raises DrafttraceError."""
    from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
    from drafttrace.tracer.trace.schema import TARGET_ROW, records
    from drafttrace.tracer.trace.writer import TraceWriter

    refuse_mask(source, "A trace")
    refuse_last_boundary(source, "A trace")
    capture, table = source.capture, source.capture.table
    states, ends = _states(source)
    specs = tuple(TensorSpec(name, rows.width, DType(kind_of(rows))) for name, rows in states.items())
    about = _about(source)
    with (
        new_file(out) as part,
        TraceWriter(part, TraceLayout(specs), request_id="converted", about=about, overwrite=True) as writer,
    ):
        for start in range(0, len(source), BLOCK):
            stop = min(len(source), start + BLOCK)
            index = source.index[start:stop]
            rows = records(
                TARGET_ROW,
                stop - start,
                position=np.arange(start, stop),
                token_id=source.tokens[start:stop],
                phase=table.phase[index],
                round=table.round[index],
                accepted=table.accepted[index],
                frame=table.frame[index],
            )
            here = {name: min(stop, ends.get(name, stop)) for name in states}
            writer.append_target(
                rows,
                {name: _piece(source, states[name], start, end) for name, end in here.items() if end > start},
            )
        writer.finish(
            complete=capture.complete,
            tokens=source.tokens,
            prompt_length=capture.prompt_length,
            probes=capture.probes,
        )
    return [out]


def _states(source: Sample) -> tuple[dict[str, Rows], dict[str, int]]:
    """The states by their names in the trace, and where a sweep ends that covers only the first tokens."""
    capture = source.capture
    states: dict[str, Rows] = {f"aux/{k}": slot.rows for k, slot in enumerate(capture.slots)}
    if capture.embed is not None:
        states["embed"] = capture.embed.rows
    if capture.last is not None:
        states["last"] = capture.last.rows
    ends: dict[str, int] = {}
    for k, rows in capture.boundaries.items():
        end = covered(source, k)
        scattered = int((source.index < len(rows)).sum()) - end
        if scattered:
            refuse(source, "boundaries", "A trace", f"{scattered} rows of B{k} come after a token that has none")
        if end:
            states[f"boundary/{k}"], ends[f"boundary/{k}"] = rows, end
    return states, ends


def _about(source: Sample) -> dict[str, Any]:
    capture = source.capture
    recorded = dict(capture.about) if capture.format.startswith("drafttrace.trace") else {}
    old = recorded.get("wiring")
    wiring: dict[str, Any] = {
        **(old if isinstance(old, dict) else {}),
        "boundaries": list(capture.wiring),
        "source": f"converted from {capture.format}: "
        + "; ".join(dict.fromkeys(slot.source for slot in capture.slots)),
        "last_norm": str(capture.last.norm) if capture.last is not None else str(Norm.UNKNOWN),
        "n": source.layers if capture.last is None or capture.last.boundary in {None, source.layers} else None,
    }
    return {**recorded, "wiring": wiring}


def _piece(source: Sample, rows: Rows, start: int, stop: int) -> Array:
    part = dataclasses.replace(source, index=source.index[start:stop])
    return np.ascontiguousarray(np.concatenate([block for _start, _stop, block in blocks(part, rows)]))
