"""Passes that begin after token 0: which sample is the prefill that one goes on from, and which were left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from drafttrace.tracer.convert_sample import LaterRows
from drafttrace.tracer.dumps.folder import Collection
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError


def prefill_remedy(
    error: LaterRows, collection: Collection, number: int | None, *, whole: bool = False
) -> DrafttraceError:
    """The refusal of sample ``number`` with its remedy: the prefill before it, or another recording.

    whole: every sample is converted, so that this one and its like can be left out.
    """
    found = None if number is None else _prefill_before(collection, number, error.first)
    alone = "record it again with a cold cache, and give its prefill"
    if found is not None:
        alone = f"convert the prefill alone, as '{collection.path}#{found}'"
    if whole:
        return DrafttraceError(f"{error.what}; leave such passes out with --lose later-passes, or {alone}.")
    return DrafttraceError(f"{error.what}; {alone}.")


def passes_left_out(left: Mapping[int, LaterRows], total: int) -> Iterator[str]:
    """The passes that were left out of ``total`` samples, as the answer says it: decode steps, verify passes, and others.

    left: by the number of the sample.
    """
    verified = [number for number, error in left.items() if error.drafted]
    steps = [number for number, error in left.items() if error.rows == 1 and not error.drafted]
    others = [number for number, error in left.items() if error.rows > 1 and not error.drafted]
    if steps:
        what = "one row, as a decode step has" if len(steps) == 1 else "one row each, as decode steps have"
        yield f"{len(steps)} of {total} samples: {what} ({_ranges(steps)})"
    if verified:
        what = "a verify pass" if len(verified) == 1 else "verify passes"
        yield f"{len(verified)} of {total} samples: {what}, whose rows are of drafted tokens ({_ranges(verified)})"
    if others:
        what = "rows from a later token on, as after a prefix-cache hit"
        yield f"{len(others)} of {total} samples: {what} ({_ranges(others)})"


_MOST_RANGES = 16


def _ranges(numbers: Sequence[int]) -> str:
    """``#1 to #3, #7``: what is named, and how many more where it would be endless."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    named = [f"#{a}" if a == b else f"#{a}{' to ' if b > a + 1 else ', '}#{b}" for a, b in ranges[:_MOST_RANGES]]
    more = sum(b - a + 1 for a, b in ranges[_MOST_RANGES:])
    return ", ".join(named) + (f" and {more} more" if more else "")


def _prefill_before(collection: Collection, number: int, first: int) -> int | None:
    """The nearest sample before ``number`` that begins at token 0 and has no more than ``first`` tokens.

    The tokens of a decode step do not tell their request; passes are written in the order in which they ran.
    """
    before = [ref for ref in collection.refs if ref.number < number]
    for ref in reversed(before):
        try:
            capture = collection.read(ref, Request(tokens_only=True, lenient=True))
        except DrafttraceError:  # one that cannot be read is no remedy
            continue
        if 1 < len(capture.tokens) <= first and capture.tokens[0] >= 0:
            return ref.number
    return None
