"""Which row of one capture belongs to which row of the other. A plan: integers in, integers out, no tensor is read.

A hidden state depends on every token before it, so rows are paired only as far as both sides hold the same tokens
from the first one on. Where the ids themselves look moved (an offset), the plan pairs by id and leaves it to the
values to say whether the prompt or only the rows moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Accepted, Capture, Ints, Phase
from drafttrace.tracer.errors import NothingToCompare

Bools = npt.NDArray[np.bool_]
_MAX_OFFSET = 512


@dataclass(frozen=True)
class Difference:
    """The first token that differs: the index, and the ids there (-1 where one side has ended)."""

    index: int
    left_id: int
    reference_id: int


@dataclass(frozen=True)
class Alignment:
    """Pairs of rows. left_rows, reference_rows, positions: one entry per pair, positions ascending.

    offset o: left token p is reference token p + o. shift: rows moved further by values (set after measuring).
    same_prefix: tokens that agree from the first one on. matched: tokens that agree at ``offset``.
    prefix_gap: leading prompt positions that the left side has no row for. reference_limit: rows of the reference.
    """

    left_rows: Ints
    reference_rows: Ints
    positions: Ints
    offset: int
    same_prefix: int
    matched: int
    difference: Difference | None
    natural: bool
    truncated: str | None
    prefix_gap: int
    rows_left: int
    rows_reference: int
    reference_limit: int
    shift: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.left_rows)

    def at(self, keep: Bools) -> Alignment:
        """Some of the pairs."""
        return replace(
            self,
            left_rows=self.left_rows[keep],
            reference_rows=self.reference_rows[keep],
            positions=self.positions[keep],
        )

    def moved(self, shift: int) -> Alignment:
        """The same pairs with the reference rows moved by ``shift``; pairs that fall off the end are dropped."""
        rows = self.reference_rows + (shift - self.shift)
        keep = (rows >= 0) & (rows < self.reference_limit)
        return replace(replace(self, reference_rows=rows).at(keep), shift=shift)


def plan(left: Capture, reference: Capture, *, offsets: bool = True) -> Alignment:
    """Pair the rows of two captures by their token ids; without ``offsets`` only as far as the first tokens agree."""
    _refuse_other_pseudonyms(left, reference)
    ours, theirs = valid_tokens(left), valid_tokens(reference)
    same = common_prefix(ours, theirs)
    shorter = min(len(ours), len(theirs))
    offset, matched = 0, same
    difference = None
    if same < shorter:
        difference = Difference(same, int(ours[same]), int(theirs[same]))
        if offsets and not _natural(left, reference, same):
            offset, matched = find_offset(ours, theirs, same)
    stop = same if offset == 0 else len(ours)
    skipped: dict[str, int] = {}
    left_at = _row_of_position(left, ours, skipped, "")
    reference_at = _row_of_position(reference, theirs, skipped, "reference: ")
    pairs = _pair(left_at, reference_at, ours, theirs, offset, stop, skipped)
    return Alignment(
        left_rows=pairs[0],
        reference_rows=pairs[1],
        positions=pairs[2],
        offset=offset,
        same_prefix=same,
        matched=matched,
        difference=difference,
        natural=difference is not None and _natural(left, reference, same),
        truncated=_truncated(left, reference, ours, theirs, same),
        prefix_gap=_prefix_gap(left, left_at),
        rows_left=len(left.table),
        rows_reference=len(reference.table),
        reference_limit=_row_limit(reference),
        skipped=skipped,
    )


def _refuse_other_pseudonyms(left: Capture, reference: Capture) -> None:
    """Token ids can be aligned where both sides have the real ones, or pseudonyms of one salt."""
    prints = [
        (side.about.get("redacted") or {}).get("salt_fingerprint") if side.redacted else None
        for side in (left, reference)
    ]
    if prints[0] != prints[1]:
        hidden = left if left.redacted else reference
        raise NothingToCompare(
            f"'{hidden.path}' is redacted: its token ids are pseudonyms, and the other side has other ids; compare the "
            "originals, or two traces that were redacted with the same --salt-file."
        )


def valid_tokens(capture: Capture) -> Ints:
    """The capture's tokens without padding."""
    count = capture.valid_length or len(capture.tokens)
    return capture.tokens[:count]


def common_prefix(left: Ints, right: Ints) -> int:
    """How many tokens agree from the first one on; -1 (unknown) agrees with anything."""
    count = min(len(left), len(right))
    agree = _agree(left[:count], right[:count])
    return count if bool(agree.all()) else int(np.argmin(agree))


def find_offset(left: Ints, right: Ints, same: int) -> tuple[int, int]:
    """(offset, tokens that agree in one run) of the best other alignment; offset 0 where none is clearly better.

    A run must be twice the common prefix, and at least half of the shorter side (4 tokens or more), to count.
    """
    shorter = min(len(left), len(right))
    best, best_run = 0, same
    for offset in sorted(range(-min(_MAX_OFFSET, len(left)), min(_MAX_OFFSET, len(right))), key=abs):
        low, high = max(0, -offset), min(len(left), len(right) - offset)
        if offset == 0 or high - low <= best_run:
            continue
        run = _longest_run(_agree(left[low:high], right[low + offset : high + offset]))
        if run > best_run:
            best, best_run = offset, run
    if best and best_run >= max(4, 2 * same, shorter // 2):
        return best, best_run
    return 0, same


def _agree(left: Ints, right: Ints) -> Bools:
    agree: Bools = (left == right) | (left < 0) | (right < 0)
    return agree


def _longest_run(agree: Bools) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], agree.astype(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _natural(left: Capture, reference: Capture, index: int) -> bool:
    """Whether two token lists may differ from ``index`` on: the left side has sampled its own answer from there."""
    if left.prompt_length is not None:
        return index >= left.prompt_length
    return reference.prompt_length is not None and index >= reference.prompt_length


def _truncated(left: Capture, reference: Capture, ours: Ints, theirs: Ints, same: int) -> str | None:
    """ "reference" or "left" where that side's prompt simply ends early, else None."""
    prompt = left.prompt_length
    if prompt is None:
        return None
    if same == len(theirs) and len(theirs) < prompt - 1:
        return "reference"
    answer = reference.prompt_length
    if answer is None and reference.mask is not None and reference.mask.any() and not reference.mask.all():
        answer = int(np.argmax(reference.mask > 0))
    if answer is not None and prompt < answer - 1 and prompt - 1 <= same < min(answer - 1, len(theirs)):
        return "left"
    return None


def _row_of_position(capture: Capture, tokens: Ints, skipped: dict[str, int], who: str) -> Ints:
    """The row to use for every token position, -1 where there is none; rows left out are counted in ``skipped``."""
    table, limit = capture.table, _row_limit(capture)
    position = table.position[:limit]
    inside = (position >= 0) & (position < len(tokens))
    rejected = table.accepted[:limit] == Accepted.REJECTED
    undecided = (table.accepted[:limit] == Accepted.UNKNOWN) & (table.phase[:limit] == Phase.VERIFY)
    expected = (
        np.where(inside, tokens[np.clip(position, 0, max(0, len(tokens) - 1))], -1) if len(tokens) else position
    )
    other = ~_agree(table.token_id[:limit], expected)
    absent = ~_recorded(capture, limit)
    usable = inside & ~rejected & ~undecided & ~other & ~absent
    rows = np.flatnonzero(usable)
    rows = rows[np.argsort(table.frame[rows], kind="stable")]
    chosen = np.full(len(tokens), -1, np.int64)
    chosen[position[rows]] = rows
    used = int((chosen >= 0).sum())
    _count(skipped, f"{who}rejected draft rows", rejected & inside)
    _count(skipped, f"{who}not known whether accepted", undecided & inside & ~rejected)
    _count(skipped, f"{who}padding, or beyond the tokens", ~inside)
    _count(skipped, f"{who}the row's token is not the request's", other & inside & ~rejected & ~undecided)
    _count(skipped, f"{who}not recorded in any slot", absent & inside & ~rejected & ~undecided & ~other)
    if len(rows) > used:
        skipped[f"{who}computed again in a later pass"] = len(rows) - used
    return chosen


def _recorded(capture: Capture, limit: int) -> Bools:
    """The rows at which some slot was recorded; which ones is asked again for every slot."""
    masks = [capture.present.get(slot.name) for slot in capture.slots]
    if not masks or any(mask is None for mask in masks):
        return np.ones(limit, np.bool_)
    recorded = np.zeros(limit, np.bool_)
    for mask in masks:
        assert mask is not None
        recorded |= mask[:limit]
    return recorded


def _row_limit(capture: Capture) -> int:
    """Rows that every slot of the capture has."""
    lengths = [len(slot.rows) for slot in capture.slots]
    if not lengths and capture.last is not None:
        lengths = [len(capture.last.rows)]
    return min([len(capture.table), *lengths])


def _count(skipped: dict[str, int], reason: str, rows: Bools) -> None:
    if count := int(rows.sum()):
        skipped[reason] = count


def _pair(
    left_at: Ints,
    reference_at: Ints,
    ours: Ints,
    theirs: Ints,
    offset: int,
    stop: int,
    skipped: dict[str, int],
) -> tuple[Ints, Ints, Ints]:
    position = np.flatnonzero(left_at >= 0)
    other = position + offset
    exists = (other >= 0) & (other < len(theirs))
    same = np.zeros(len(position), np.bool_)
    same[exists] = _agree(ours[position[exists]], theirs[other[exists]])
    before = position < stop
    row = np.full(len(position), -1, np.int64)
    row[exists] = reference_at[other[exists]]
    keep = exists & same & before & (row >= 0)
    _count(skipped, "beyond the reference's tokens", ~exists)
    _count(skipped, "at or after the first token that differs", exists & ~(same & before))
    _count(skipped, "the reference has no row there", exists & same & before & (row < 0))
    unpaired = int((reference_at >= 0).sum()) - int(keep.sum())
    if unpaired > 0:
        skipped["reference: no row on the left"] = unpaired
    return left_at[position[keep]], row[keep], position[keep].astype(np.int64)


def _prefix_gap(left: Capture, left_at: Ints) -> int:
    """Leading prompt positions without a row, where later ones have rows."""
    have = np.flatnonzero(left_at >= 0)
    return int(have[0]) if len(have) else 0
