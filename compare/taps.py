"""Every tensor that a capture holds, in the order in which a forward pass computes them, and what each is made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.measure import Bools
from drafttrace.tracer.capture import Accepted, Capture, DraftRows, Ints, Phase, RowTable
from drafttrace.tracer.rows import Rows

TARGET, DRAFT = "target", "draft"
EMBED, LAST = -2, -1
"""Slot numbers of the embedding and of the last state, as in a result."""
_DEEPEST = 10_000.0


@dataclass(frozen=True)
class Tap:
    """One tensor, or one slot's columns of a wide one.

    name: as in a trace. slot: the slot whose state it is; EMBED and LAST; None for the rest. level: its place within a
    forward pass of its model. index: the rows that count, which ``table`` describes. by_token: it depends on the row's
    token alone. recycled: the state that a draft step took over from the step before.
    """

    name: str
    model: str
    slot: int | None
    level: float
    rows: Rows
    columns: slice
    table: RowTable
    index: Ints
    by_token: bool = False
    recycled: bool = False


def taps(capture: Capture) -> Iterator[Tap]:
    """All of them, those that were computed first coming first. Rejected rows of the target and padding do not count."""
    yield from _target(capture)
    if capture.draft is not None and len(capture.draft.table):
        yield from _draft(capture, capture.draft)


def _target(capture: Capture) -> Iterator[Tap]:
    kept = (capture.table.accepted != Accepted.REJECTED) & capture.in_text(len(capture.table))

    def tap(name: str, slot: int | None, level: float, rows: Rows, by_token: bool = False) -> Tap:
        usable = kept[: len(rows)]
        present = capture.present.get(name)
        usable = usable if present is None else usable & present[: len(usable)]
        index = np.flatnonzero(usable)
        return Tap(name, TARGET, slot, level, rows, slice(None), capture.table, index, by_token)

    states = []
    if capture.embed is not None:
        states.append(tap("embed", EMBED, -0.5, capture.embed.rows, by_token=True))
    states += [tap(f"boundary/{k}", None, float(k), rows, k == 0) for k, rows in capture.boundaries.items()]
    for number, slot in enumerate(capture.slots):
        level = _DEEPEST - 1 if slot.boundary is None else slot.boundary + 0.5
        states.append(tap(slot.name, number, level, slot.rows, slot.boundary == 0))
    if capture.last is not None:
        name = "last" if "last" in capture.present else capture.last.name
        states.append(tap(name, LAST, _DEEPEST, capture.last.rows))
    yield from sorted(states, key=lambda one: one.level)


def _draft(capture: Capture, draft: DraftRows) -> Iterator[Tap]:
    table = draft.table
    decode = table.phase == Phase.DRAFT_DECODE
    # A draft step's row was computed whatever became of its token; what an extend pass made of a rejected one is unused.
    extend = ~decode & (table.accepted != Accepted.REJECTED)
    count, width = len(capture.slots), capture.hidden_size or 0

    def tap(name: str, level: float, where: Bools, slot: int | None = None, columns: slice = slice(None)) -> Tap:
        rows = draft.tensors[name]
        usable = (where & (table.position >= 0))[: len(rows)]
        present = draft.present.get(name)
        usable = usable if present is None else usable & present[: len(usable)]
        recycled = name == "hidden_in" and where is decode
        index = np.flatnonzero(usable)
        return Tap(name, DRAFT, slot, level, rows, columns, table, index, name == "embed_in", recycled)

    for level, name in enumerate(("embed_in", "hidden_in", "fc_in", "fc_out", "hidden_out", "topk_logits")):
        if name not in draft.tensors:
            continue
        if name not in {"hidden_in", "fc_in"}:
            yield tap(name, level, extend | decode)
            continue
        wide = draft.tensors[name].width
        parts = count if count and wide == count * width else 1
        for part in range(parts):
            columns = slice(part * (wide // parts), (part + 1) * (wide // parts))
            slot = part if parts == count else None
            yield tap(name, level, extend if name == "hidden_in" else extend | decode, slot, columns)
        if name == "hidden_in":
            yield tap(name, level, decode, None, slice(0, _state_width(draft, wide)))


def _state_width(draft: DraftRows, wide: int) -> int:
    """The channels that hold something where a draft step takes up one state in a tensor made for several."""
    out = draft.tensors.get("hidden_out")
    return wide if out is None else min(wide, out.width)


def feeds(source: Tap, tap: Tap, everywhere: bool) -> bool:
    """Whether ``tap`` is computed from ``source``. everywhere: by way of any number of layers, else directly, so that a
    row of zeros over there is one here."""
    if source.model == TARGET and tap.model == TARGET:
        return source.level < tap.level and (everywhere or int(source.level) == int(tap.level))
    if source.model == DRAFT and tap.model == TARGET:
        return False
    if source.model == TARGET:
        handed_over = source.slot is not None and source.slot >= 0 and tap.name in {"hidden_in", "fc_in"}
        if everywhere:
            return not tap.by_token and (not handed_over or tap.slot is None or source.slot == tap.slot)
        return handed_over and not tap.recycled and source.slot == tap.slot
    if tap.by_token:
        return False
    if tap.recycled:
        return source.name == "hidden_out"
    if tap.name in {"hidden_in", "fc_in"}:
        return (
            source.name == "hidden_in" and not source.recycled and tap.name == "fc_in" and source.slot == tap.slot
        )
    if everywhere:
        return source.level < tap.level
    return (source.name, tap.name) in {("fc_in", "fc_out"), ("hidden_out", "topk_logits"), ("hidden_in", "fc_out")}
