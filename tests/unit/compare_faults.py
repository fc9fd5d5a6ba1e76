"""Faults put into a training dump, one function each: Capture in, Capture with the fault out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from compare_world import bf16, rms

from drafttrace.tracer.capture import Capture, LastState, Slot
from drafttrace.tracer.rows import ArrayRows, DType, Rows

Floats = npt.NDArray[Any]
Fault = Callable[[Capture], Capture]


def over_slots(change: Callable[[Floats], Floats], which: tuple[int, ...] | None = None) -> Fault:
    """Change the values of some slots (all by default)."""

    def put_in(dump: Capture) -> Capture:
        return replace(dump, slots=tuple(_changed(s, i, change, which) for i, s in enumerate(dump.slots)))

    return put_in


def _changed(slot: Slot, index: int, change: Callable[[Floats], Floats], which: tuple[int, ...] | None) -> Slot:
    if which is not None and index not in which:
        return slot
    return replace(slot, rows=bf16(change(slot.rows.floats())))


def over_last(change: Callable[[Floats], Floats]) -> Fault:
    """Change the values of the last state."""

    def put_in(dump: Capture) -> Capture:
        assert dump.last is not None
        return replace(dump, last=replace(dump.last, rows=bf16(change(dump.last.rows.floats()))))

    return put_in


def shifted_states(by: int) -> Fault:
    """The states of token t stand in the row of token t + by, for slots and last alike."""

    def moved(rows: Rows) -> ArrayRows:
        return bf16(np.roll(rows.floats(), by, axis=0))

    def put_in(dump: Capture) -> Capture:
        last = None if dump.last is None else replace(dump.last, rows=moved(dump.last.rows))
        return replace(dump, slots=tuple(replace(s, rows=moved(s.rows)) for s in dump.slots), last=last)

    return put_in


def shifted_ids(by: int) -> Fault:
    """The ids are shifted left by ``by``, the states are not."""

    def put_in(dump: Capture) -> Capture:
        tokens = np.roll(dump.tokens, -by)
        tokens[-by:] = 0
        return replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens))

    return put_in


def permuted(order: tuple[int, ...]) -> Fault:
    def put_in(dump: Capture) -> Capture:
        return replace(dump, slots=tuple(dump.slots[i] for i in order))

    return put_in


def reread_as_fp16(dump: Capture) -> Capture:
    """bf16 bytes viewed as fp16."""

    def view(slot: Slot) -> Slot:
        return replace(
            slot, rows=ArrayRows(np.asarray(slot.rows.raw(0, len(slot.rows))).view(np.float16), DType.FP16)
        )

    return replace(dump, slots=tuple(view(s) for s in dump.slots))


def rotated(dump: Capture) -> Capture:
    width = dump.slots[0].rows.width
    q = np.linalg.qr(np.random.default_rng(5).standard_normal((width, width)))[0]
    return over_slots(lambda x: x @ q)(dump)


def zeroed(which: tuple[int, ...]) -> Fault:
    return over_slots(lambda x: x * 0, which)


def zero_rows(rows: tuple[int, ...]) -> Fault:
    def change(x: Floats) -> Floats:
        x = x.copy()
        x[list(rows)] = 0
        return x

    return over_slots(change)


def nan_at(row: int) -> Fault:
    def change(x: Floats) -> Floats:
        x = x.copy()
        x[row, 1] = np.nan
        return x

    return over_slots(change, (1,))


def one_wrong_row(row: int) -> Fault:
    """One row replaced by another token's."""

    def change(x: Floats) -> Floats:
        x = x.copy()
        x[row] = x[row - 7]
        return x

    return over_slots(change)


def one_unknown_row(row: int) -> Fault:
    """One row that is no state of anything."""

    def change(x: Floats) -> Floats:
        x = x.copy()
        x[row] = np.random.default_rng(4).permutation(x[row])
        return x

    return over_slots(change)


def scaled(factor: float, which: tuple[int, ...] | None = None) -> Fault:
    return over_slots(lambda x: x * factor, which)


def gain(weight: Floats, which: tuple[int, ...] | None = None) -> Fault:
    return over_slots(lambda x: x * weight, which)


def normed(weight: Floats, which: tuple[int, ...] | None = None) -> Fault:
    return over_slots(lambda x: rms(x) * weight, which)


def fp8(dump: Capture) -> Capture:
    """One scale per token over all slots, as hs_connectors 0.9.0 writes."""
    import torch

    held = np.stack([s.rows.floats() for s in dump.slots])
    scale = np.abs(held).max(axis=(0, 2)) / 448.0
    slots = []
    for slot, values in zip(dump.slots, held, strict=True):
        raw = torch.from_numpy((values / scale[:, None]).astype(np.float32)).to(torch.float8_e4m3fn)
        rows = ArrayRows(raw.view(torch.uint8).numpy(), DType.FP8_E4M3, scale.astype(np.float32))
        slots.append(replace(slot, rows=rows))
    return replace(dump, slots=tuple(slots))


def without_first(dump: Capture) -> Capture:
    """The embedding left out: one slot fewer."""
    return replace(dump, slots=dump.slots[1:])


def extra_tokens(count: int, at: int = 0) -> Fault:
    """Other tokens put in (another chat template)."""

    def put_in(dump: Capture) -> Capture:
        tokens = np.insert(dump.tokens, at, np.arange(count) + 401)
        table = dump.table.of_tokens(tokens)
        slots = tuple(
            replace(s, rows=bf16(np.insert(s.rows.floats(), at, np.zeros((count, 1)), axis=0))) for s in dump.slots
        )
        last = dump.last
        if last is not None:
            last = replace(last, rows=bf16(np.insert(last.rows.floats(), at, np.zeros((count, 1)), axis=0)))
        return replace(dump, tokens=tokens, table=table, slots=slots, last=last, valid_length=len(tokens))

    return put_in


def truncated(length: int) -> Fault:
    def put_in(dump: Capture) -> Capture:
        def cut(rows: Rows) -> ArrayRows:
            return bf16(rows.floats()[:length])

        last: LastState | None = None if dump.last is None else replace(dump.last, rows=cut(dump.last.rows))
        tokens = dump.tokens[:length]
        return replace(
            dump,
            tokens=tokens,
            table=dump.table.of_tokens(tokens),
            slots=tuple(replace(s, rows=cut(s.rows)) for s in dump.slots),
            last=last,
            valid_length=length,
        )

    return put_in
