"""A dump with fewer rows than tokens: which tokens have them?

A server with a prefix cache computes nothing for the tokens that it holds, so its states are those of the last tokens,
beside the ids of all (vLLM's connector, issue 44485). A dump that was cut off has those of the first. No number in the file
tells one from the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drafttrace.tracer.capture import Capture, Ints, RowTable
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import Floats, Rows

_LEAST = 2  # the token that was sampled last was never read: one row fewer is no gap
_FEWEST, _MOST = 4, 32  # rows that are held against another capture's
_SAME, _CLEARER = 0.5, 2.0  # relative L2 of rows without their mean; how many times as far all other places are
REMEDY = "dump it again with the prefix cache off (vLLM: --no-enable-prefix-caching; SGLang: --disable-radix-cache)"


def missing_rows(capture: Capture) -> int:
    """How many tokens of a dump have no row, where it is open which; 0 where there is at most one, or where those at the
    end are one token repeated, which is padding."""
    table, valid = capture.table, capture.valid_length or len(capture.tokens)
    count = len(table)
    if capture.format.startswith("drafttrace.trace") or not 0 < count <= valid - _LEAST:
        return 0
    if not np.array_equal(table.position, np.arange(count)):
        return 0
    rest = capture.tokens[count:valid]
    return 0 if bool((rest == rest[0]).all()) else valid - count


def starts(capture: Capture) -> tuple[int, ...]:
    """The tokens that row 0 may be of: the first, or the one from which on all of them, or all but the last, have rows."""
    missing = missing_rows(capture)
    return (0, missing, missing - 1) if missing else (0,)


def placed(capture: Capture, start: int) -> Capture:
    """The capture with row 0 at token ``start``."""
    if start == 0:
        return capture
    count = len(capture.table)
    table = replace(
        RowTable.of_tokens(capture.tokens, count),
        position=np.arange(start, start + count, dtype=np.int64),
        token_id=capture.tokens[start : start + count].astype(np.int64),
    )
    note = (
        f"the {count} rows are those of the tokens from {start} on: the others have none, as after a prefix-cache hit, "
        "and whoever reads row t as that of token t trains on the wrong ones"
    )
    return replace(capture, table=table, notes=(*capture.notes, note))


def unplaced(capture: Capture) -> str:
    """What is said of a dump of which nothing tells the places of its rows."""
    valid, count = capture.valid_length or len(capture.tokens), len(capture.table)
    return (
        f"'{capture.path}' has {count} rows for {valid} tokens, and nothing tells whether they are those of the first "
        "tokens or of the last, as where a prefix cache held the others"
    )


def refuse_unplaced(capture: Capture) -> None:
    """Raise DrafttraceError where it is open which tokens the rows are of."""
    if missing_rows(capture):
        raise DrafttraceError(f"{unplaced(capture)}; {REMEDY}.")


def placed_beside(capture: Capture, other: Capture, at: Ints) -> Capture:
    """The dump with its rows where they are nearest to the slots of another capture of the same tokens. at: the row of
    ``other`` of every token, -1 where there is none. Raises DrafttraceError where no place is."""
    if not missing_rows(capture):
        return capture
    both = np.arange(min(len(capture.tokens), len(at)))
    both = both[(at[both] >= 0) & (capture.tokens[both] == other.tokens[both])]
    far = {start: _distance(capture, other, both, at, start) for start in starts(capture)}
    ranked = sorted(far, key=lambda start: far[start])
    if far[ranked[0]] > _SAME or far[ranked[1]] < _CLEARER * far[ranked[0]]:
        raise DrafttraceError(f"{unplaced(capture)}; '{other.path}' does not tell either; {REMEDY}.")
    return placed(capture, ranked[0])


def _distance(capture: Capture, other: Capture, both: Ints, at: Ints, start: int) -> float:
    """How far the nearest pair of slots is, with row 0 at token ``start``."""
    there = both[(both >= max(1, start)) & (both < start + len(capture.table))]
    if len(there) < _FEWEST:
        return np.inf
    there = there[np.unique(np.linspace(0, len(there) - 1, _MOST).round().astype(np.int64))]
    pairs = [(mine.rows, theirs.rows) for mine in capture.slots for theirs in other.slots]
    if capture.last is not None and other.last is not None:
        pairs.append((capture.last.rows, other.last.rows))
    found = [_apart(one, there - start, two, at[there]) for one, two in pairs if one.width == two.width]
    return min(found, default=np.inf)


def _apart(one: Rows, here: Ints, two: Rows, there: Ints) -> float:
    x, y = _centred(one.take(here)), _centred(two.take(there))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        distance = np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)
    distance = distance[np.isfinite(distance)]
    return float(np.median(distance)) if len(distance) >= _FEWEST else np.inf


def _centred(rows: Floats) -> Floats:
    """Without what all rows share, by which rows of different tokens are alike, too."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: Floats = rows - np.median(rows, axis=0, keepdims=True)
    return found
