"""From the frames of one scheduler step to the arrays that the trace writer takes: pure, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.hooks.host import Array, HostFrame, HostPart
from drafttrace.hooks.identity import Verdict, accepted_rows, outside_output
from drafttrace.tracer.capture import Accepted
from drafttrace.tracer.row_hash import row_hashes
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec


def records_of(frame: HostFrame, verdict: Verdict | None, total: int | None) -> schema.Records:
    """The row records of one frame. total: tokens of the text after the step, where that is known."""
    accepted = accepted_rows(frame.group, frame.rows, verdict)
    if total is not None:
        accepted[outside_output(frame.position, total) & (accepted == Accepted.ACCEPTED)] = Accepted.REJECTED
    fields: dict[str, Any] = {
        "position": frame.position,
        "token_id": frame.token_id,
        "phase": int(frame.group.phase),
        "round": frame.round,
        "accepted": accepted,
        "frame": frame.frame,
        "graph": schema.GRAPH_REPLAY if frame.graph else schema.EAGER,
        "source": max((part.source for part in frame.parts.values()), default=schema.SOURCE_HOOK),
        "live_rows": frame.live_rows,
        "padded_rows": frame.padded_rows or frame.live_rows,
        "cached_prefix": frame.cached_prefix,
        "rank": frame.rank,
    }
    if frame.side == "target":
        return schema.records(schema.TARGET_ROW, frame.rows, **fields)
    return schema.records(schema.DRAFT_ROW, frame.rows, step=frame.group.step, **fields)


def tensors_of(
    frames: Sequence[tuple[HostFrame, Verdict | None]], specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, Array], dict[str, npt.NDArray[np.bool_]]]:
    """The taps of all frames (of one side, in their order, each with what the verifier said of its step) as arrays over
    all their rows, and the rows without one.

    Narrower rows (a recycled state where fc's wide input is declared) stand at the front of the declared width.
    Boundaries are left out: they cover the first rows of a trace only.
    """
    total = sum(frame.rows for frame, _ in frames)
    names = dict.fromkeys(name for frame, _ in frames for name in frame.parts if not specs[name].is_boundary)
    tensors: dict[str, Array] = {}
    absent: dict[str, npt.NDArray[np.bool_]] = {}
    for name in names:
        spec = specs[name]
        only = frames[0][0].parts[name].array if len(frames) == 1 else None
        if only is not None and only.shape == (total, spec.width):
            tensors[name] = only
            continue
        whole, missing, at = np.zeros((total, spec.width), spec.storage), np.ones(total, bool), 0
        for frame, verdict in frames:
            part = frame.parts.get(name)
            if part is not None:
                start = at + _offset(part, verdict)
                array = part.array
                whole[start : start + len(array), : array.shape[1]] = array
                missing[start : start + len(array)] = False
            at += frame.rows
        tensors[name] = whole
        if missing.any():
            absent[name] = missing
    return tensors, absent


def padding_of(frame: HostFrame, specs: Mapping[str, TensorSpec]) -> schema.Records:
    """One record per tap whose batch was padded: the hash of the first padding row, in the width of the tap's tensor."""
    rows = schema.records(schema.PADDED, len(frame.padding), frame=frame.frame)
    for record, (name, array) in zip(rows, frame.padding.items(), strict=True):
        whole = np.zeros((1, specs[name].width), specs[name].storage)
        whole[:, : array.shape[1]] = array
        record["tap"], record["hash"] = name.encode(), row_hashes(whole)[0]
    return rows


def _offset(part: HostPart, verdict: Verdict | None) -> int:
    if part.offset is not None:
        return part.offset
    return verdict.count - 1 if verdict is not None else 0
