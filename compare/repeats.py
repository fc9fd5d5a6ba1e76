"""Rows that hold, bit for bit, what a row of another token holds: in the same capture, or in another request's trace.

A hidden state depends on every token up to its own, so rows of different tokens never agree in all their bits, unless
one was copied from the other, or both from a third. States that depend on the token alone (the embedding) are left out:
vocabularies have tokens that share a vector. Rows that are not finite are no copies (NaN is NaN), and nothing is said
of rows whose token is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drafttrace.compare.kernels.blocks import hash_rows
from drafttrace.compare.kernels.hashes import plain_hashes
from drafttrace.compare.measure import BLOCK_BYTES, Bools
from drafttrace.tracer.capture import Accepted, Capture, Ints, RowTable
from drafttrace.tracer.rows import Rows

LAST = -1
_NEAR = 0.03  # relative L2 below which a row of another pass counts as the same state (bf16 kernels lie below it)
_MOST_ODD = 128
_MOST_TOLD = 64


@dataclass(frozen=True)
class RowAt:
    """One row of a capture. padded: it was computed in a batch that held padding rows. place: its number in the pass."""

    row: int
    position: int
    token_id: int
    round: int
    frame: int
    place: int
    padded: bool
    accepted: bool


@dataclass(frozen=True)
class Repeat:
    """Rows of one state with the same bits and different tokens, in the order of their passes (64 of them at most).

    slot: number of the slot, LAST for the last state. count: how many rows there are; of: rows of the state at all.
    """

    slot: int
    rows: tuple[RowAt, ...]
    count: int
    of: int

    @property
    def copies(self) -> tuple[RowAt, ...]:
        """The rows of the text that came after the first one."""
        return tuple(row for row in self.rows[1:] if row.accepted)


@dataclass(frozen=True)
class Borrowed:
    """A row of this capture that another request's trace holds too. rel_l2: 0 where all bits agree."""

    slot: int
    row: RowAt
    path: str
    theirs: RowAt
    rel_l2: float


def find_repeats(capture: Capture) -> tuple[Repeat, ...]:
    """Every group of equal rows in the slots and the last state of a capture."""
    found: list[Repeat] = []
    table = Places(capture.table, capture.padded)
    for slot, rows, there in states(capture):
        present = there & _named(capture, len(there))
        keys = state_keys(rows, present)
        own = keys[keys != 0]
        if len(np.unique(own)) == len(own):
            continue
        groups = [group for group in _grouped(keys).values() if len(group) > 1]
        groups = [g for g in groups if len(np.unique(capture.table.token_id[g])) > 1 and _is_one_state(rows, g)]
        most = [g for g in groups if len(g) > int(present.sum()) // 2]  # one row for most tokens
        if not most and (not groups or depends_on_the_token(capture, keys)):
            continue
        groups = most or groups
        for group in groups:
            at = sorted((table.at(int(i)) for i in group), key=lambda one: (one.frame, one.row))
            repeat = Repeat(slot, tuple(at[:64]), len(group), int(present.sum()))
            if repeat.copies:
                found.append(repeat)
    return tuple(found)


def find_borrowed(
    capture: Capture, others: Sequence[Capture], odd: Mapping[int, Iterable[int]]
) -> tuple[Borrowed, ...]:
    """Rows of the text that stand in another request's trace, at another token.

    odd: per slot the row numbers that do not fit the reference; for these a nearly equal row counts too.
    """
    found: list[Borrowed] = []
    held, table = list(states(capture)), Places(capture.table, capture.padded)
    for other in others:
        if _same_request(capture, other):
            continue
        there = Places(other.table, other.padded)
        theirs = {slot: (rows, here & _named(other, len(here))) for slot, rows, here in states(other)}
        for slot, rows, present in held:
            if slot not in theirs or theirs[slot][0].width != rows.width:
                continue
            mine = present & (capture.table.accepted[: len(present)] == Accepted.ACCEPTED)
            mine &= _named(capture, len(mine))
            equal = list(_equal_rows(capture, rows, mine, other, *theirs[slot]))
            if len(equal) > 1 and depends_on_the_token(capture, state_keys(rows, present)):
                continue
            pairs = [(a, b, 0.0) for a, b in equal]
            known = {a for a, _ in equal}
            wanted = np.array([r for r in odd.get(slot, ()) if r not in known][:_MOST_ODD], np.int64)
            pairs += _near_rows(capture, rows, wanted, other, *theirs[slot])
            found += [Borrowed(slot, table.at(a), other.path, there.at(b), d) for a, b, d in pairs[:_MOST_TOLD]]
    return tuple(found)


class Places:
    """Who the rows of a table are. padded: mask of those that were computed beside padding, where that is known."""

    def __init__(self, table: RowTable, padded: Bools | None) -> None:
        self._table, self._padded = table, padded
        frames, first = np.unique(table.frame, return_index=True)
        self._first = dict(zip(frames.tolist(), first.tolist(), strict=True))

    def at(self, row: int) -> RowAt:
        """One row."""
        table = self._table
        frame = int(table.frame[row])
        return RowAt(
            row=row,
            position=int(table.position[row]),
            token_id=int(table.token_id[row]),
            round=int(table.round[row]),
            frame=frame,
            place=row - self._first[frame],
            padded=bool(self._padded[row]) if self._padded is not None else False,
            accepted=bool(table.accepted[row] == Accepted.ACCEPTED),
        )


def states(capture: Capture) -> Iterator[tuple[int, Rows, Bools]]:
    """(slot, rows, which rows there are) of every state that depends on more than its own token."""
    states = [(i, s.name, s.rows) for i, s in enumerate(capture.slots) if s.boundary != 0]
    if capture.last is not None:
        states.append((LAST, "last" if "last" in capture.present else capture.last.name, capture.last.rows))
    for slot, name, rows in states:
        count = min(len(rows), len(capture.table))
        present = capture.in_text(count)
        mask = capture.present.get(name)
        yield slot, rows, present if mask is None else present & mask[:count]


def state_keys(rows: Rows, present: Bools) -> npt.NDArray[np.int64]:
    """A hash of every row's stored bytes, 0 for rows that are absent or all zero."""
    keys = hash_rows(rows, np.arange(len(present)), BLOCK_BYTES // 8, factors=False).view(np.int64)
    keys[keys == 0] = 1
    zero = plain_hashes(np.zeros((1, rows.width), rows.dtype.storage), None).view(np.int64)
    keys[(keys == zero[0]) | ~present] = 0
    return keys


def _grouped(keys: npt.NDArray[np.int64]) -> dict[int, Ints]:
    order = np.argsort(keys, kind="stable")
    values, starts = np.unique(keys[order], return_index=True)
    parts = np.split(order, starts[1:])
    return {int(v): part.astype(np.int64) for v, part in zip(values, parts, strict=True) if v != 0}


def _named(capture: Capture, count: int) -> Bools:
    """The first ``count`` rows, those whose token is known."""
    named: Bools = capture.table.token_id[:count] >= 0
    return named


def _is_state(rows: Rows, row: int) -> bool:
    """Whether a row is finite and holds more than zeros, which have a sign that the hashes see."""
    values = rows.floats(row, row + 1)
    return bool(np.isfinite(values).all() and values.any())


def _is_one_state(rows: Rows, group: Ints) -> bool:
    """Whether the hashes told the truth (of the first rows of a large group), and what is equal is a state at all."""
    first = rows.raw(int(group[0]), int(group[0]) + 1)
    return _is_state(rows, int(group[0])) and all(
        np.array_equal(first, rows.raw(int(i), int(i) + 1), equal_nan=False) for i in group[1:64]
    )


def depends_on_the_token(capture: Capture, keys: npt.NDArray[np.int64]) -> bool:
    """Whether rows of one token at different positions are equal throughout: then the state is an embedding."""
    known = np.flatnonzero(keys)
    token, position, key = capture.table.token_id[known], capture.table.position[known], keys[known]
    order = np.lexsort((key, position, token))
    token, position, key = token[order], position[order], key[order]
    pairs = (token[1:] == token[:-1]) & (position[1:] != position[:-1])
    equal = pairs & (key[1:] == key[:-1])
    return bool(pairs.any()) and 2 * int(equal.sum()) > int(pairs.sum())


def _same_request(one: Capture, two: Capture) -> bool:
    """The same recording, or one of the same text: its rows are meant to be equal."""
    count = min(len(one.tokens), len(two.tokens))
    ours, theirs = one.tokens[:count], two.tokens[:count]
    known = (ours >= 0) & (theirs >= 0)
    return one.path == two.path or (bool(known.any()) and np.array_equal(ours[known], theirs[known]))


def _equal_rows(
    capture: Capture, rows: Rows, mine: Bools, other: Capture, their_rows: Rows, their_present: Bools
) -> Iterator[tuple[int, int]]:
    """(row, their row) with equal bits and different tokens."""
    if rows.dtype != their_rows.dtype:
        return
    theirs = _grouped(state_keys(their_rows, their_present))
    for key, group in _grouped(state_keys(rows, mine)).items():
        for row in group:
            for there in theirs.get(key, ()):
                if capture.table.token_id[row] != other.table.token_id[there]:
                    equal = np.array_equal(rows.raw(row, row + 1), their_rows.raw(there, there + 1))
                    if equal and _is_state(rows, int(row)):
                        yield int(row), int(there)
                    break


def _near_rows(
    capture: Capture, rows: Rows, wanted: Ints, other: Capture, their_rows: Rows, their_present: Bools
) -> list[tuple[int, int, float]]:
    """(row, their row, relative L2) of the wanted rows that are the same state as another token's row over there."""
    if len(wanted) == 0:
        return []
    x = rows.take(wanted).astype(np.float64)
    best, where = np.full(len(wanted), np.inf), np.full(len(wanted), -1, np.int64)
    step = max(16, BLOCK_BYTES // (4 * max(1, their_rows.width)))
    for start in range(0, len(their_present), step):
        stop = min(start + step, len(their_present))
        distance = relative_distances(x, their_rows.floats(start, stop).astype(np.float64))
        tokens = other.table.token_id[start:stop]
        distance[:, ~their_present[start:stop]] = np.inf
        distance[capture.table.token_id[wanted][:, None] == tokens[None]] = np.inf
        near = distance.argmin(1)
        value = distance[np.arange(len(x)), near]
        better = value < best
        best, where = np.where(better, value, best), np.where(better, near + start, where)
    return [
        (int(row), int(there), float(d)) for row, there, d in zip(wanted, where, best, strict=True) if d < _NEAR
    ]


def relative_distances(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """|x - y| / |x| of every pair of rows, ``[m, n]``; infinite where a side is not finite or x is zero."""
    with np.errstate(all="ignore"):
        own = np.einsum("rh,rh->r", x, x)  # no squared copy of either side
        squares = own[:, None] + np.einsum("rh,rh->r", y, y)[None] - 2 * (x @ y.T)
        found: npt.NDArray[np.float64] = np.sqrt(np.maximum(0.0, squares)) / np.sqrt(own)[:, None]
    found[~np.isfinite(found)] = np.inf
    return found
