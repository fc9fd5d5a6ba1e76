"""A scheduler step as plain tuples and the arrays beside them: what goes between two processes costs little to take apart.

Pickled as they are, the forty small arrays of a round and the records around them take longer than to write them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from drafttrace.hooks.host import Array, HostFrame, HostPart, Step
from drafttrace.hooks.identity import RowGroup, Verdict
from drafttrace.hooks.messages import aligned
from drafttrace.tracer.capture import Phase

Plain = tuple[Any, ...]


def packed(step: Step) -> tuple[Plain, list[Array]]:
    """The step without its arrays, and these, contiguous and in their order."""
    arrays: list[Array] = []

    def put(array: Array) -> Plain:
        whole = np.ascontiguousarray(array)
        arrays.append(whole)
        return whole.dtype.str, whole.shape

    frames = tuple(
        (
            frame.side,
            (int(frame.group.phase), frame.group.step, frame.group.first, frame.group.branches),
            (frame.rows, frame.round, frame.frame),
            put(frame.position),
            put(frame.token_id),
            (frame.graph, frame.live_rows, frame.padded_rows, frame.cached_prefix, frame.rank),
            tuple((name, put(part.array), part.offset, part.source) for name, part in frame.parts.items()),
            tuple((name, put(array)) for name, array in frame.padding.items()),
        )
        for frame in step.frames
    )
    verdict = None if step.verdict is None else (put(step.verdict.nodes), step.verdict.count)
    return (frames, verdict, step.total), arrays


def unpacked(plain: Plain, data: memoryview) -> Step:
    """The step again: its arrays lie in ``data``, one behind the other as a message has them."""
    at = 0

    def take(form: Plain) -> Array:
        nonlocal at
        kind, shape = form
        count = math.prod(shape)
        array = np.frombuffer(data, kind, count, at) if count else np.zeros(0, kind)
        at += aligned(array.nbytes)
        return array.reshape(shape)

    frames, verdict, total = plain
    return Step(
        tuple(_frame(frame, take) for frame in frames),
        None if verdict is None else Verdict(take(verdict[0]), verdict[1]),
        total,
    )


def _frame(plain: Plain, take: Callable[[Plain], Array]) -> HostFrame:
    side, (phase, step, first, branches), (rows, round_, number), position, token_id, counts, parts, padding = plain
    graph, live_rows, padded_rows, cached_prefix, rank = counts
    return HostFrame(
        side=side,
        group=RowGroup(Phase(phase), step, first, branches),
        rows=rows,
        round=round_,
        frame=number,
        position=take(position),
        token_id=take(token_id),
        graph=graph,
        live_rows=live_rows,
        padded_rows=padded_rows,
        cached_prefix=cached_prefix,
        rank=rank,
        parts={name: HostPart(take(form), offset, source) for name, form, offset, source in parts},
        padding={name: take(form) for name, form in padding},
    )
