"""Whether a loss mask stands where the answers are: one token early or late at both ends of an answer is a shift.

Masks may leave out the end mark of an answer, or take in the last token of its header, on purpose: an end by itself
proves nothing. A chat template writes the same header in front of every turn, so that the tokens alone tell how long it
is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.acceptance import end_tokens
from drafttrace.compare.align import common_prefix, valid_tokens
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.chat_marks import ChatMarks

MOST = 2
_HEADER = 6
_ROLES = ("assistant", "user", "system", "model", "tool", "developer", "human", "bot", "ai", "function", "ipython")
Decode = Callable[[int], str]
TEMPLATE, OTHER_MASK, PROMPT = "the chat template", "the other side's mask", "the request's prompt"


@dataclass(frozen=True)
class MaskShift:
    """A mask that stands ``shift`` tokens late (early where negative).

    side: whose. by: what says so. starts, wanted: first token of the first such answer in the mask, and as it should
    be. agreeing / answers: how many answers say so. both_ends: whether the end of an answer could be looked at too.
    """

    side: str
    shift: int
    by: str
    starts: int
    wanted: int
    agreeing: int
    answers: int
    both_ends: bool


def find_mask_shifts(
    left: Capture,
    reference: Capture | None,
    marks: ChatMarks | None,
    decode: Decode | None = None,
) -> tuple[MaskShift, ...]:
    """The masks of both sides that are moved. marks: what the tokenizer tells; without it only end marks are known."""
    found: list[MaskShift] = []
    judged: set[str] = set()
    for side, capture in (("left", left), ("reference", reference)):
        if capture is None or capture.mask is None:
            continue
        known = marks or ChatMarks(frozenset(), end_tokens(capture) | end_tokens(left))
        shift, seen = _by_template(side, capture, known, decode)
        if shift is not None:
            found.append(shift)
        if seen:
            judged.add(side)
    if not found and reference is not None:
        shift = _by_other_mask(left, reference) or _by_prompt(left, reference, judged)
        found += [shift] if shift is not None else []
    return tuple(found)


def spans(mask: Ints) -> list[tuple[int, int]]:
    """The runs of ones: (first, one past the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (mask > 0).astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _by_template(
    side: str, capture: Capture, marks: ChatMarks, decode: Decode | None
) -> tuple[MaskShift | None, int]:
    """(the shift that most answers show, answers that could be looked at)."""
    assert capture.mask is not None
    tokens = valid_tokens(capture)
    votes: list[tuple[int, int, bool]] = []
    for first, stop in spans(capture.mask[: len(tokens)]):
        vote = _vote(tokens, first, stop, marks, decode)
        if vote is not None:
            votes.append((first, *vote))
    if not votes:
        return None, 0
    shift, count = Counter(shift for _, shift, _ in votes).most_common(1)[0]
    if shift == 0 or 3 * count < 2 * len(votes):
        return None, len(votes)
    first = next(first for first, s, _ in votes if s == shift)
    both = any(ends for _, s, ends in votes if s == shift)
    return MaskShift(side, shift, TEMPLATE, first, first - shift, count, len(votes), both), len(votes)


def _vote(tokens: Ints, first: int, stop: int, marks: ChatMarks, decode: Decode | None) -> tuple[int, bool] | None:
    """(shift, whether both ends show it) of one answer; None where its start cannot be told."""
    start = _start_shift(tokens, first, marks, decode)
    if start is None:
        return None
    end = _end_shift(tokens, stop, marks, start)
    if start == 0:
        return 0, end is not None
    if end == start or (start < 0 and end == start - 1):  # the end mark itself may be left out
        return start, True
    if end is not None:
        return 0, True
    return (start, False) if decode is not None else None  # a header's length that was guessed proves nothing alone


def _start_shift(tokens: Ints, first: int, marks: ChatMarks, decode: Decode | None) -> int | None:
    """How far the mask's first token is from the first token after the header."""
    if first == 0:
        return None
    openers = [
        i for i in range(max(0, first - _HEADER), min(len(tokens), first + MOST + 1)) if tokens[i] in marks.opens
    ]
    if not openers:
        return -1 if tokens[first - 1] in marks.ends else None  # an answer without any header in front of it
    shift = first - (openers[-1] + _header_length(tokens, openers[-1], marks, decode))
    return shift if abs(shift) <= MOST else None


def _header_length(tokens: Ints, opener: int, marks: ChatMarks, decode: Decode | None) -> int:
    """Tokens from an opening mark to the first token of the turn: the role's name and the blank after it belong to it."""
    if decode is not None:
        return _header_by_text(tokens, opener, decode)
    same = [int(i) for i in np.flatnonzero(tokens == tokens[opener])]
    turns = same if len(same) > 1 else [i for i in range(1, len(tokens)) if tokens[i] in marks.opens]
    heads = [tokens[i + 1 : i + _HEADER].tolist() for i in turns if i + 1 < len(tokens)]
    if len(heads) < 2:
        return 1
    # Roles have names of different lengths; what stands behind each of them is the same token in all turns.
    mine = tokens[opener + 1 : opener + _HEADER].tolist()
    shared = [token for token in mine if all(token in head for head in heads)]
    return mine.index(shared[0]) + 2 if shared else 1


def _header_by_text(tokens: Ints, opener: int, decode: Decode) -> int:
    role, at = "", opener + 1
    while at < min(len(tokens), opener + 1 + _HEADER):
        piece = decode(int(tokens[at]))
        if not _is_blank(piece):
            role = (role + piece).strip().lower()
            if not any(name.startswith(role) for name in _ROLES):
                break
        elif role and role not in _ROLES:
            break
        else:
            while at < len(tokens) and _is_blank(decode(int(tokens[at]))):
                at += 1
            return at - opener
        at += 1
    return 1


def _is_blank(text: str) -> bool:
    """White space, as :func:`drafttrace.tracer.printable.printable` shows it."""
    return not text.replace("\\n", "").replace("\\t", "").strip()


def _end_shift(tokens: Ints, stop: int, marks: ChatMarks, start: int) -> int | None:
    """How far the mask's last token is from the nearest end mark; None where there is none, or the text was cut."""
    if stop == len(tokens) and start > 0:
        return None  # a mask that moved right runs into the end of the text
    near = [
        i for i in range(stop - 1 - MOST - 1, stop + MOST + 1) if 0 <= i < len(tokens) and tokens[i] in marks.ends
    ]
    return min((stop - 1 - i for i in near), key=abs, default=None)


def _by_other_mask(left: Capture, reference: Capture) -> MaskShift | None:
    """Two masks over the same tokens that agree only when one of them is moved."""
    if left.mask is None or reference.mask is None:
        return None
    same = common_prefix(valid_tokens(left), valid_tokens(reference))
    ours, theirs = (np.asarray(capture.mask)[:same] > 0 for capture in (left, reference))
    if not ours.any() or not theirs.any() or ours.all() or theirs.all():
        return None
    agreement = {s: _agreement(ours, theirs, s) for s in range(-MOST, MOST + 1)}
    shift = max(agreement, key=lambda s: (agreement[s], -abs(s)))
    if shift == 0 or agreement[shift] < 1 or agreement[0] == 1:
        return None
    starts, count = spans(theirs.astype(np.int64))[0][0], len(spans(theirs.astype(np.int64)))
    return MaskShift("reference", shift, OTHER_MASK, starts, starts - shift, count, count, True)


def _agreement(ours: Sequence[bool] | np.ndarray, theirs: Sequence[bool] | np.ndarray, shift: int) -> float:
    low, high = max(0, -shift), min(len(ours), len(theirs) - shift)
    a, b = np.asarray(ours)[low:high], np.asarray(theirs)[low + shift : high + shift]
    return float((a == b).mean()) if len(a) else 0.0


def _by_prompt(left: Capture, reference: Capture, judged: set[str]) -> MaskShift | None:
    """The request's prompt ends where the answer begins, as the server's own template wrote it."""
    prompt = left.prompt_length
    if prompt is None or reference.mask is None or "reference" in judged:
        return None
    if common_prefix(valid_tokens(left), valid_tokens(reference)) < prompt:
        return None
    answers = [(a, b) for a, b in spans(reference.mask[: len(valid_tokens(reference))]) if a > 0 and b - a > 1]
    near = [a for a, _ in answers if 0 < abs(a - prompt) <= MOST]
    if not near or any(a == prompt for a, _ in answers):
        return None
    return MaskShift("reference", near[0] - prompt, PROMPT, near[0], prompt, 1, 1, False)
