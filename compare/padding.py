"""Live rows that hold, bit for bit, what the padding of their own forward pass held.

A trace keeps the hash of the first padding row of every padded pass (``/padding``). A state depends on every token up
to its own, so a live row and a padding row never agree in all their bits unless one was read in the other's place. Left
out: all-zero rows, rows at position 0 (a token alone, as padding often is) and rows that were fed the padding's token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.measure import Bools
from drafttrace.compare.repeats import Places, RowAt, depends_on_the_token, state_keys, states
from drafttrace.tracer.capture import Capture, Ints, RowTable
from drafttrace.tracer.row_hash import Hashes, row_hashes
from drafttrace.tracer.rows import Rows

_DRAFT = ("hidden_in", "fc_in", "fc_out", "hidden_out")
_MOST_TOLD = 64
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Leak:
    """Rows of one tap that hold the padding row of their pass (64 at most).

    tap: its name in the trace. slot: number of the slot, LAST for the last state, None for a tensor of the draft.
    count: how many rows; of: rows of padded passes that were looked at.
    """

    tap: str
    slot: int | None
    rows: tuple[RowAt, ...]
    count: int
    of: int


def find_leaks(capture: Capture) -> tuple[Leak, ...]:
    """Every tap of a trace in which a live row is a padding row."""
    if not capture.padding:
        return ()
    found: list[Leak] = []
    embedded = capture.embed.rows if capture.embed is not None else None
    for slot, rows, present in states(capture):
        tap = "last" if slot < 0 else capture.slots[slot].name
        target = _Tap(tap, slot, rows, present, capture.table, embedded, "embed")
        leak = _leak(target, capture.padding)
        if leak is not None and not depends_on_the_token(capture, state_keys(rows, present)):
            found.append(leak)
    found += [leak for tap in _draft_taps(capture) if (leak := _leak(tap, capture.padding)) is not None]
    return tuple(found)


@dataclass(frozen=True)
class _Tap:
    """One tap and the rows that have it. embedded, embed_tap: what the rows were fed, and its own tap."""

    name: str
    slot: int | None
    rows: Rows
    present: Bools
    table: RowTable
    embedded: Rows | None
    embed_tap: str


def _draft_taps(capture: Capture) -> Iterator[_Tap]:
    draft = capture.draft
    if draft is None:
        return
    for name in _DRAFT:
        rows = draft.tensors.get(name)
        if rows is None:
            continue
        count = min(len(rows), len(draft.table))
        present = draft.present.get(name, np.ones(count, np.bool_))[:count]
        yield _Tap(name, None, rows, present, draft.table, draft.tensors.get("embed_in"), "embed_in")


def _leak(tap: _Tap, padding: Mapping[str, Mapping[int, int]]) -> Leak | None:
    known = padding.get(tap.name)
    if not known:
        return None
    table = tap.table
    count = len(tap.present)
    here = tap.present & (table.position[:count] > 0) & np.isin(table.frame[:count], list(known))
    looked_at = np.flatnonzero(here)
    equal = _equal_rows(tap.rows, looked_at, table, known)
    fed = padding.get(tap.embed_tap)
    if tap.embedded is not None and fed and len(equal):
        equal = np.setdiff1d(equal, _equal_rows(tap.embedded, equal, table, fed))
    if not len(equal):
        return None
    places = Places(table, None)
    return Leak(
        tap.name, tap.slot, tuple(places.at(int(row)) for row in equal[:_MOST_TOLD]), len(equal), len(looked_at)
    )


def _equal_rows(rows: Rows, wanted: Ints, table: RowTable, known: Mapping[int, int]) -> Ints:
    """Which of the wanted rows have the hash that is known of their frame; rows of zeros, or not finite, never."""
    if not len(wanted):
        return wanted
    zero = row_hashes(np.zeros((1, rows.width), rows.dtype.storage))[0]
    expected = np.array([known.get(int(frame), 0) for frame in table.frame[wanted]], np.uint64)
    hashes = np.concatenate([_hashes(rows, run) for run in _runs(wanted)])
    found: Ints = wanted[(hashes == expected) & (hashes != zero)]
    finite = np.array([np.isfinite(rows.floats(row, row + 1)).all() for row in found.tolist()], np.bool_)
    return found[finite]


def _runs(wanted: Ints) -> list[Ints]:
    """Consecutive row numbers, in blocks that fit memory."""
    runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
    return [run[start : start + _BLOCK_ROWS] for run in runs for start in range(0, len(run), _BLOCK_ROWS)]


def _hashes(rows: Rows, run: Ints) -> Hashes:
    return row_hashes(np.asarray(rows.raw(int(run[0]), int(run[-1]) + 1)))
