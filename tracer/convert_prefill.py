"""Which sample of a dump is the prefill that a later pass of the same request goes on from."""

from __future__ import annotations

from drafttrace.tracer.convert_sample import LaterRows
from drafttrace.tracer.dumps.folder import Collection
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError


def prefill_remedy(error: LaterRows, collection: Collection, number: int | None) -> DrafttraceError:
    """The refusal of sample ``number`` with its remedy: the prefill before it, or another recording."""
    found = None if number is None else _prefill_before(collection, number, error.first)
    if found is None:
        return DrafttraceError(f"{error.what}; record it again with a cold cache, and give its prefill.")
    return DrafttraceError(f"{error.what}; convert the prefill alone, as '{collection.path}#{found}'.")


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
