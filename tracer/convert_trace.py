"""Writes a capture as a trace: one row per token, its states, its sweep, and what a recording says of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Norm
from drafttrace.tracer.convert_place import new_file
from drafttrace.tracer.convert_recording import Recording, is_reduced, is_trace
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
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import DType, Rows
from drafttrace.tracer.trace import schema


def to_trace(source: Sample, out: Path) -> None:
    """Write the trace ``out``; an old file stays until the new one is whole.

    Of a trace, what every row says of itself stays, and so do the row hashes of the ranks and of padding where no row is
    left out. Raises DrafttraceError.
    """
    from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
    from drafttrace.tracer.trace.writer import TraceWriter

    check_trace(source)
    capture, recording = source.capture, source.recording
    kept = recording if recording is not None and not is_reduced(source) else None
    states, ends = _states(source)
    specs = tuple(TensorSpec(name, rows.width, DType(kind_of(rows))) for name, rows in states.items())
    ranks = tuple(part.rank for part in kept.ranks) if kept is not None else ()
    layout = TraceLayout(specs, (), ranks, _hashed(source) if ranks else ())
    request_id = recording.head.get(schema.ATTR_REQUEST, "") if recording is not None else "converted"
    with new_file(out) as part:
        with TraceWriter(part, layout, request_id=request_id, about=_about(source), overwrite=True) as writer:
            for start in range(0, len(source), BLOCK):
                stop = min(len(source), start + BLOCK)
                here = {name: min(stop, ends.get(name, stop)) for name in states}
                writer.append_target(
                    _rows(source, start, stop),
                    {name: _piece(source, states[name], start, end) for name, end in here.items() if end > start},
                    absent=_absent(source, states, start, stop),
                )
            if kept is not None:
                for rank in kept.ranks:
                    writer.append_rank(rank.rank, rank.rows, np.ascontiguousarray(rank.hashes))
                writer.append_padding(kept.padding)
            writer.finish(
                complete=capture.complete,
                tokens=source.all_tokens,
                prompt_length=capture.prompt_length,
                probes=capture.probes,
                reason=None if capture.complete else _reason(source),
            )
        if recording is not None:
            _keep_head(part, recording)


def check_trace(source: Sample) -> None:
    """Raise DrafttraceError for what a trace cannot hold of a sample."""
    refuse_mask(source, "A trace")
    refuse_last_boundary(source, "A trace")
    _states(source)


def _rows(source: Sample, start: int, stop: int) -> schema.Records:
    """The row records of tokens ``start..stop``: those of a trace with everything that they say."""
    index, tokens = source.index[start:stop], source.tokens[start:stop]
    if source.recording is not None:
        rows: schema.Records = source.recording.rows[index].copy()
        rows["token_id"] = np.where(rows["token_id"] < 0, tokens, rows["token_id"])
        return rows
    table = source.capture.table
    return schema.records(
        schema.TARGET_ROW,
        stop - start,
        position=np.arange(start, stop),
        token_id=tokens,
        phase=table.phase[index],
        round=table.round[index],
        accepted=table.accepted[index],
        frame=table.frame[index],
    )


def _absent(source: Sample, states: Collection[str], start: int, stop: int) -> dict[str, npt.NDArray[np.bool_]]:
    """What was not recorded of tokens ``start..stop`` is said to be missing, not to be zero."""
    index = source.index[start:stop]
    return {name: ~mask[index] for name, mask in source.capture.present.items() if name in states}


def _hashed(source: Sample) -> tuple[str, ...]:
    """The tensors that the ranks hashed: a trace names them once for all of them."""
    assert source.recording is not None
    named = {rank.names for rank in source.recording.ranks}
    if len(named) != 1:
        raise DrafttraceError(
            f"The ranks of '{source.capture.path}' hashed different tensors, which a new trace cannot hold; record it "
            "again."
        )
    return named.pop()


def _reason(source: Sample) -> str:
    """Why the trace is incomplete; one whose writer never said so is closed now, so that has to be said."""
    recording = source.recording
    if recording is not None and recording.reason:
        return recording.reason
    notes = [note for note in source.capture.notes if note.startswith("the trace is incomplete: ")]
    return notes[0].removeprefix("the trace is incomplete: ") if notes else "converted from an incomplete capture"


def _keep_head(part: Path, recording: Recording) -> None:
    """When and with which version it was recorded, not when it was converted."""
    import h5py

    from drafttrace.tracer.trace import texts

    with h5py.File(part, "r+") as file:
        for name in (schema.ATTR_CREATED, schema.ATTR_TOOL):
            if name in recording.head:
                texts.set_attribute(file, name, recording.head[name])


def _states(source: Sample) -> tuple[dict[str, Rows], dict[str, int]]:
    """The states by their names in the trace, and where a sweep ends that covers only the first tokens."""
    capture = source.capture
    own = is_trace(capture)
    states: dict[str, Rows] = {slot.name if own else f"aux/{k}": slot.rows for k, slot in enumerate(capture.slots)}
    if capture.embed is not None:
        states["embed"] = capture.embed.rows
    if capture.last is not None:
        states["last"] = capture.last.rows
    ends: dict[str, int] = {}
    for k, rows in capture.boundaries.items():
        end = covered(source, k)
        scattered = int((source.index < len(rows)).sum()) - end
        if scattered:
            what = f"{scattered} rows of B{k}"
            refuse(
                source, "boundaries", "A trace", f"{what} come after a token that has none", f"{what} after a gap"
            )
        if end:
            states[f"boundary/{k}"], ends[f"boundary/{k}"] = rows, end
    return states, ends


def _about(source: Sample) -> dict[str, Any]:
    """The blocks of a trace as they are; of a dump, the wiring, and where its declaration stands."""
    capture = source.capture
    agrees = capture.last is None or capture.last.boundary in {None, source.layers}
    if is_trace(capture):
        recorded = dict(capture.about)
        wiring = recorded.get("wiring")
        told = isinstance(wiring, dict) and source.layers is not None and wiring.get("n") is None
        if isinstance(wiring, dict) and (told or not agrees):
            recorded["wiring"] = {**wiring, "n": source.layers if agrees else None}
        return recorded
    sources = dict.fromkeys(slot.source for slot in capture.slots)
    return {
        "wiring": {
            "boundaries": list(capture.wiring),
            "source": f"converted from {capture.format}: " + "; ".join(sources),
            "last_norm": str(capture.last.norm) if capture.last is not None else str(Norm.UNKNOWN),
            "n": source.layers if agrees else None,
        }
    }


def _piece(source: Sample, rows: Rows, start: int, stop: int) -> Array:
    part = dataclasses.replace(source, index=source.index[start:stop])
    return np.ascontiguousarray(np.concatenate([block for _start, _stop, block in blocks(part, rows)]))
