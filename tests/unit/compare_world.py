"""A small residual stream for tests of compare/: boundaries that behave like a model's, without one.

Every layer adds a causal, non-linear increment, so that neighbouring boundaries are alike and others are not; two
massive channels and a massive row 0 stand in for what real models have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Accepted, Capture, LastState, Norm, Phase, RowTable, Slot
from drafttrace.tracer.rows import ArrayRows, DType

Floats = npt.NDArray[np.float32]


def bf16(values: npt.NDArray[Any]) -> ArrayRows:
    """Rows rounded to bf16 (to nearest even), stored as their 16 bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return ArrayRows(rounded, DType.BF16)


@dataclass(frozen=True)
class World:
    """tokens ``[T]``; streams[k] = B(k) ``[T, H]``, k = 0..n; attention[k]: the part of layer k that is not its MLP."""

    tokens: npt.NDArray[np.int64]
    streams: list[Floats]
    attention: list[Floats]
    norm_weight: Floats

    @property
    def n(self) -> int:
        return len(self.streams) - 1

    @property
    def last(self) -> Floats:
        """The state after the final norm."""
        return rms(self.streams[-1]) * self.norm_weight

    def noisy(self, level: float, seed: int = 9) -> World:
        """The same stream computed by other kernels: relative noise of ``level`` per element of every boundary."""
        rng = np.random.default_rng(seed)
        streams = []
        for stream in self.streams:
            size = np.linalg.norm(stream, axis=1, keepdims=True) / np.sqrt(stream.shape[1])
            noise = rng.standard_normal(stream.shape) * level * size
            streams.append((stream + (0 if stream is self.streams[0] else noise)).astype(np.float32))
        return replace(self, streams=streams)


def rms(rows: Floats) -> Floats:
    return (rows / np.sqrt((rows.astype(np.float64) ** 2).mean(1, keepdims=True))).astype(np.float32)


def make_world(layers: int = 61, tokens: int = 48, width: int = 64, seed: int = 0, massive: bool = True) -> World:
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 400, tokens)
    table = rng.standard_normal((400, width)).astype(np.float32)
    stream = table[ids].astype(np.float32)
    streams, attentions = [stream], []
    for k in range(layers):
        w1, w2 = rng.standard_normal((2, width, width)) / np.sqrt(width)
        past = np.cumsum(stream, axis=0) / np.arange(1, tokens + 1)[:, None]
        size = 0.12 * np.linalg.norm(stream, axis=1, keepdims=True) / np.sqrt(width)
        attention = (np.tanh(rms(past.astype(np.float32)) @ w1) * size).astype(np.float32)
        mlp = (1.5 * np.tanh(rms(stream) @ w2) * size).astype(np.float32)
        if massive and k == 1:
            mlp[:, 3] += 30.0
            mlp[:, 17] -= 20.0
            mlp[0] *= 100.0
        attentions.append(attention)
        stream = (stream + attention + mlp).astype(np.float32)
        streams.append(stream)
    weight = (1 + 0.3 * rng.standard_normal(width)).astype(np.float32)
    return World(ids, streams, attentions, weight)


def served(
    world: World,
    wiring: tuple[int, ...],
    *,
    prompt: int | None = None,
    sweep: tuple[int, ...] | None = None,
    sweep_rows: int | None = None,
    about: dict[str, Any] | None = None,
    declared: tuple[int | None, ...] | None = None,
) -> Capture:
    """A trace of a request: prompt in prefill, then verify rounds of two accepted rows and one rejected one."""
    count = len(world.tokens)
    prompt = count if prompt is None else prompt
    index, table = _rows(world.tokens, prompt)
    names = declared if declared is not None else wiring
    slots = tuple(
        Slot(f"aux/{i}", bf16(_at(world.streams[k], index, table)), d, "the live server")
        for i, (k, d) in enumerate(zip(wiring, names, strict=True))
    )
    boundaries = tuple(range(world.n + 1)) if sweep is None else sweep
    rows = len(table) if sweep_rows is None else sweep_rows
    block: dict[str, Any] = {"n": world.n, "source": "draft config eagle_config.eagle_aux_hidden_state_layer_ids"}
    return Capture(
        path="trace.h5",
        format="drafttrace.trace/1",
        recognised_by="test",
        tokens=world.tokens,
        table=table,
        slots=slots,
        embed=Slot("embed", bf16(_at(world.streams[0], index, table)), 0, "the embedding's output"),
        last=LastState("last", bf16(_at(world.last, index, table)), Norm.POST, "recorded", world.n),
        boundaries={k: bf16(_at(world.streams[k], index, table)[:rows]) for k in boundaries},
        valid_length=count,
        prompt_length=prompt,
        about={"wiring": block | (about or {})},
    )


def _rows(tokens: npt.NDArray[np.int64], prompt: int) -> tuple[npt.NDArray[np.int64], RowTable]:
    """Row order of a trace: (token index, table); a rejected row has a token that is not the request's."""
    count = len(tokens)
    records = [(p, int(tokens[p]), Phase.PREFILL, -1, Accepted.ACCEPTED, 0) for p in range(prompt)]
    number, position = 0, prompt
    while position < count:
        for p in range(position, min(position + 2, count)):
            records.append((p, int(tokens[p]), Phase.VERIFY, number, Accepted.ACCEPTED, number + 1))
        position += 2
        if position < count:
            records.append((position, 3, Phase.VERIFY, number, Accepted.REJECTED, number + 1))
        number += 1
    columns = np.array(records, np.int64).T
    step = np.full(len(records), -1, np.int64)
    table = RowTable(columns[0], columns[1], columns[2], columns[3], columns[4], step, columns[5])
    return columns[0], table


def _at(stream: Floats, index: npt.NDArray[np.int64], table: RowTable) -> Floats:
    rows = stream[index].copy()
    rows[table.accepted == Accepted.REJECTED] *= -0.7
    return rows


def dumped(
    world: World,
    wiring: tuple[int, ...],
    *,
    last: int | str | None = "post",
    declared: tuple[int | None, ...] | None = None,
    last_declared: int | None = None,
    slots: list[Floats] | None = None,
    last_rows: Floats | None = None,
) -> Capture:
    """A training dump: one row per token. last: "post", "pre", a boundary, or None."""
    count = len(world.tokens)
    held = [world.streams[k] for k in wiring] if slots is None else slots
    names = (None,) * len(held) if declared is None else declared
    state = None
    if last is not None:
        rows = world.last if last == "post" else world.streams[world.n if last == "pre" else int(last)]
        rows = rows if last_rows is None else last_rows
        norm = Norm.POST if last == "post" else Norm.PRE
        state = LastState("last", bf16(rows), norm, "format", last_declared)
    return Capture(
        path="dump.pt",
        format="SPEC-V1",
        recognised_by="test",
        tokens=world.tokens,
        table=RowTable.of_tokens(world.tokens),
        slots=tuple(
            Slot(f"hidden_states[{i}]", bf16(rows), d, "the test")
            for i, (rows, d) in enumerate(zip(held, names, strict=True))
        ),
        last=state,
        valid_length=count,
    )
