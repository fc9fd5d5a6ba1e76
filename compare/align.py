"""Which row of one capture belongs to which row of the other. A plan: integers in, integers out, no tensor is read.

A hidden state depends on every token before it, so rows are paired only as far as both sides hold the same tokens
from the first one on. Where the ids themselves look moved (an offset), the plan pairs by id and leaves it to the
values to say whether the prompt or only the rows moved. A token whose id is not known (-1) can be any other: its row is
paired with none, but for the leading one, which some layouts do not keep and the tokens after it vouch for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from drafttrace.compare.about import config_number
from drafttrace.compare.unrelated import MIN_RUN, Unrelated, unrelated
from drafttrace.tracer.capture import Accepted, Capture, Ints, Phase
from drafttrace.tracer.errors import NothingToCompare

Bools = npt.NDArray[np.bool_]
_MAX_OFFSET = 512
_SAID = 4  # tokens that server and dump say alike behind the prompt: it is the same answer
_TAIL, _HEADER = 2, 6  # tokens that end the header of a turn, and those of a whole one


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
    same_prefix: known tokens that agree before the first that differs. matched: tokens that agree at ``offset``.
    prefix_gap: leading prompt positions that the left side has no row for. reference_limit: rows of the reference.
    unknown: positions with a row on both sides, left out because a side does not know its token.
    unrelated: why nothing is paired although tokens agree.
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
    unknown: int = 0
    unrelated: Unrelated | None = None
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


def plan(
    left: Capture, reference: Capture, *, offsets: bool = True, opens: Collection[int] = frozenset()
) -> Alignment:
    """Pair the rows of two captures by their token ids; without ``offsets`` only as far as the first tokens agree.

    opens: the ids that open a turn of the target's chat template, where they are known.
    """
    _refuse_other_pseudonyms(left, reference)
    ours, theirs = valid_tokens(left), valid_tokens(reference)
    first = _first_difference(ours, theirs)
    proven = _proven(ours, theirs, first)
    same = int(proven.sum())
    offset, matched, whole = 0, same, same == first
    difference, apart = None, None
    natural = _natural(left, reference, first)
    if first < min(len(ours), len(theirs)):
        difference = Difference(first, int(ours[first]), int(theirs[first]))
        if offsets and not natural:
            offset, matched = find_offset(ours, theirs, same)
        if not offset and not natural:
            apart = unrelated(ours, theirs, first, _vocabulary(left, reference))
    if apart is not None:
        first, proven = 0, np.zeros(len(ours), np.bool_)
    elif offset:
        first, proven = len(ours), _agreeing(ours, theirs, offset)
    skipped: dict[str, int] = {}
    left_at = _row_of_position(left, ours, skipped, "")
    reference_at = _row_of_position(reference, theirs, skipped, "reference: ")
    pairs = _pair(left_at, reference_at, ours, theirs, offset, first, proven, skipped)
    return Alignment(
        left_rows=pairs.left,
        reference_rows=pairs.reference,
        positions=pairs.positions,
        offset=offset,
        same_prefix=same,
        matched=matched,
        difference=difference,
        natural=difference is not None and natural,
        truncated=_truncated(left, reference, ours, theirs, same, opens) if whole else None,
        prefix_gap=_prefix_gap(left, left_at),
        rows_left=len(left.table),
        rows_reference=len(reference.table),
        reference_limit=_row_limit(reference),
        unknown=pairs.unknown,
        unrelated=apart,
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


def _vocabulary(left: Capture, reference: Capture) -> int | None:
    """Tokens of the served target; None where nothing says so, or the ids are pseudonyms."""
    return (
        None if left.redacted or reference.redacted else config_number(left, "target_config", "vocab_size") or None
    )


def valid_tokens(capture: Capture) -> Ints:
    """The capture's tokens without padding."""
    count = capture.valid_length or len(capture.tokens)
    return capture.tokens[:count]


def common_prefix(left: Ints, right: Ints) -> int:
    """How many tokens are known to agree from the first one on."""
    proven = _proven(left, right, _first_difference(left, right))
    return len(proven) if bool(proven.all()) else int(np.argmin(proven))


def _first_difference(left: Ints, right: Ints) -> int:
    """The first index with two known ids that differ; the length of the shorter side where there is none."""
    count = min(len(left), len(right))
    alike = _compatible(left[:count], right[:count])
    return count if bool(alike.all()) else int(np.argmin(alike))


def _proven(left: Ints, right: Ints, first: int) -> Bools:
    """Which of the tokens before ``first``, where the sides differ or one ends, are known to agree, ``[first]``.

    The sides may have parted among unknown tokens: a few that agree between those and the difference prove nothing.
    """
    proven = _agreeing(left[:first], right[:first], 0)
    if first < min(len(left), len(right)) and not proven.all():
        behind = int(np.flatnonzero(~proven)[-1]) + 1
        if first - behind < MIN_RUN:
            proven[behind:] = False
    known = _known(left[:first]) & _known(right[:first])
    return proven if bool((proven & known).any()) else np.zeros(first, np.bool_)


def _agreeing(left: Ints, right: Ints, offset: int) -> Bools:
    """Which of the left tokens are known to be the reference's at ``offset``, ``[len(left)]``."""
    low, high = max(0, -offset), min(len(left), len(right) - offset)
    ours, theirs = slice(low, high), slice(low + offset, high + offset)
    agree = np.zeros(len(left), np.bool_)
    if high > low:
        agree[ours] = _vouched(left)[ours] & _vouched(right)[theirs] & _compatible(left[ours], right[theirs])
    return agree


def _known(tokens: Ints) -> Bools:
    known: Bools = tokens >= 0
    return known


def _vouched(tokens: Ints) -> Bools:
    """The tokens that are known, and the leading one where only that is not kept."""
    known = _known(tokens)
    if len(tokens) > 1 and known[1]:
        known[0] = True
    return known


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
        ours, theirs = left[low:high], right[low + offset : high + offset]
        run = _longest_run((ours == theirs) & _known(ours))
        if run > best_run:
            best, best_run = offset, run
    if best and best_run >= max(4, 2 * same, shorter // 2):
        return best, best_run
    return 0, same


def _compatible(left: Ints, right: Ints) -> Bools:
    """Where two ids can be those of one token: equal, or one of them not known."""
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


def _truncated(
    left: Capture, reference: Capture, ours: Ints, theirs: Ints, same: int, opens: Collection[int]
) -> str | None:
    """ "reference" or "left" where that side's prompt simply ends early, else None."""
    prompt = left.prompt_length
    if prompt is None:
        return None
    if same == len(theirs) and len(theirs) < prompt - 1:
        return "reference"
    answer, by_mask = reference.prompt_length, False
    if answer is None and reference.mask is not None and reference.mask.any() and not reference.mask.all():
        answer, by_mask = int(np.argmax(reference.mask > 0)), True
    if answer is None or not (prompt < answer - 1 and prompt - 1 <= same < min(answer - 1, len(theirs))):
        return None
    return None if by_mask and _answers_from(prompt, answer, ours, theirs, same, opens) else "left"


def _answers_from(prompt: int, answer: int, ours: Ints, theirs: Ints, same: int, opens: Collection[int]) -> bool:
    """Whether the text behind ``prompt`` is an answer, though the loss mask begins at ``answer`` only.

    Masks leave out reasoning, or all turns but the last. What shows it: the server said the same, its prompt ends as
    the text before the mask does, or in the header of a turn.
    """
    if same >= prompt + _SAID:
        return True
    tail = ours[max(0, prompt - _TAIL) : prompt]
    if len(tail) == _TAIL <= answer and bool((tail == theirs[answer - _TAIL : answer]).all()):
        return True
    return any(int(token) in opens for token in ours[max(0, prompt - _HEADER) : prompt])


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
    other = ~_compatible(table.token_id[:limit], expected)
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


@dataclass(frozen=True)
class _Pairs:
    """Row numbers of both sides and positions, one entry per pair; and how many were left out for an unknown token."""

    left: Ints
    reference: Ints
    positions: Ints
    unknown: int


def _pair(
    left_at: Ints,
    reference_at: Ints,
    ours: Ints,
    theirs: Ints,
    offset: int,
    stop: int,
    proven: Bools,
    skipped: dict[str, int],
) -> _Pairs:
    position = np.flatnonzero(left_at >= 0)
    other = position + offset
    exists = (other >= 0) & (other < len(theirs))
    row = np.full(len(position), -1, np.int64)
    row[exists] = reference_at[other[exists]]
    theirs_there = np.full(len(position), -1, np.int64)
    theirs_there[exists] = theirs[other[exists]]
    alike = exists & (position < stop) & _compatible(ours[position], theirs_there)
    agree = np.zeros(len(position), np.bool_)
    agree[alike] = proven[position[alike]]
    doubted, mine, its = alike & ~agree, _known(ours[position]), _known(theirs_there)
    keep = agree & (row >= 0)
    _count(skipped, "beyond the reference's tokens", ~exists)
    _count(skipped, "at or after the first token that differs", exists & ~alike)
    _count(skipped, "the token's id is not known", doubted & ~mine)
    _count(skipped, "the reference does not know the token's id", doubted & mine & ~its)
    _count(skipped, "behind tokens that are not known", doubted & mine & its)
    _count(skipped, "the reference has no row there", agree & (row < 0))
    nameless = (reference_at >= 0) & ~_vouched(theirs)
    _count(skipped, "reference: the token's id is not known", nameless)
    unpaired = int((reference_at >= 0).sum()) - int(nameless.sum()) - int(keep.sum())
    if unpaired > 0:
        skipped["reference: no row on the left"] = unpaired
    return _Pairs(
        left_at[position[keep]],
        row[keep],
        position[keep].astype(np.int64),
        int((doubted & (row >= 0)).sum()),
    )


def _prefix_gap(left: Capture, left_at: Ints) -> int:
    """Leading prompt positions without a row, where later ones have rows."""
    have = np.flatnonzero(left_at >= 0)
    return int(have[0]) if len(have) else 0
