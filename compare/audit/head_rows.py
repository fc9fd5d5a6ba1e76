"""Rows of the draft's head that are rows of the target's head, but of other tokens than ``d2t`` says.

An export that cuts the first rows off the target's head, or a map of another run, looks so: nothing crashes, and every
token that the draft names is turned into another one. A head that training changed keeps its rows near the target's, so a
row is told by its direction; one that is near none of the target's rows says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.audit.vocab_checks import Ints, VocabularyMap, integers
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.result import Finding
from drafttrace.tracer.checkpoint import Checkpoint
from drafttrace.tracer.part_names import EMBED, HEAD, stored_name
from drafttrace.tracer.rows import Floats

_HEAD = "lm_head.weight"
_ROWS, _VALUES = 64, 1 << 18
"""Rows that are looked at, and values of them at most."""
_NEAR, _FAR = 0.95, 0.9
"""Cosine of rows that are of one token, and the most that a row has with that of the token which ``d2t`` says."""
_SHARE, _LEAST = 0.1, 4
"""Rows of other tokens that are no chance: a part of those looked at, and a number."""
_SEARCHED, _PIECE = 1 << 25, 1 << 22
"""Values of a target's head that are searched whole (64 MB), and those read at once."""
_FIRST, _MASK, _ABSOLUTE, _OFFSETS, _SHIFTED, _OTHER = "first", "t2d", "absolute", "offsets", "shifted", "other"


class _Rows(NamedTuple):
    """What is compared: places of the head's rows, their directions, and the target id that the map gives each."""

    places: Ints
    mine: Floats
    said: Ints


def head_row_findings(subject: Subject, vocabulary: VocabularyMap | None, whole: bool = False) -> Iterator[Finding]:
    """One fault about a head whose rows belong to other tokens. whole: search a target's head however large it is."""
    target, head = subject.target_weights, matrix_shape(subject.draft_weights, _HEAD)
    theirs = (stored_name(target, HEAD) or stored_name(target, EMBED)) if target is not None else None
    if target is None or theirs is None or head is None or subject.draft.tied:
        return
    info = target.info(theirs)
    said = vocabulary.targets if vocabulary is not None else np.arange(head[0], dtype=np.int64)
    if len(info.shape) != 2 or info.shape[1] != head[1] or info.float_dtype is None or len(said) != head[0]:
        return
    if head[0] < _LEAST or subject.draft_weights.info(_HEAD).float_dtype is None:
        return
    rows = _sample(subject, said)
    apart = _cosines(rows.mine, target, theirs, rows.said) < _FAR
    if np.count_nonzero(apart) < max(_LEAST, _SHARE * len(rows.places)):
        return
    for name, ids in _candidates(subject, said).items():
        found = apart & (_cosines(rows.mine, target, theirs, ids[rows.places]) >= _NEAR)
        if np.count_nonzero(found) >= max(_LEAST, _SHARE * len(rows.places)):
            yield _finding(subject, name, rows, ids[rows.places], found)
            return
    if whole or info.shape[0] * info.shape[1] <= _SEARCHED:
        ids, near = _searched(rows.mine, target, theirs)
        found = apart & (near >= _NEAR)
        if np.count_nonzero(found) >= max(_LEAST, _SHARE * len(rows.places)):
            yield _finding(subject, _OTHER, rows, ids, found)


def _sample(subject: Subject, said: Ints) -> _Rows:
    weights, width = subject.draft_weights, (subject.draft_weights.shape(_HEAD) or (0, 1))[1]
    count = min(len(said), _ROWS, max(_LEAST, _VALUES // max(1, width)))
    places = np.unique(np.linspace(0, len(said) - 1, count).astype(np.int64))
    return _Rows(places, weights.checkpoint.floats(weights.names[_HEAD], places), said[places])


def _cosines(mine: Floats, target: Checkpoint, stored: str, ids: Ints) -> Floats:
    """Of each row with the target's row of that id; -1 where there is no such row, or one of the two is no direction."""
    vocab = target.info(stored).shape[0]
    inside = (ids >= 0) & (ids < vocab)
    theirs = target.floats(stored, np.where(inside, ids, 0))
    return np.where(inside, np.sum(_directions(mine) * _directions(theirs), axis=1), -1.0).astype(np.float32)


def _directions(rows: Floats) -> Floats:
    """Rows of length one; zero for what is no direction: not finite, zero, or one number everywhere."""
    plain = np.isfinite(rows).all(axis=1) & (rows != rows[:, :1]).any(axis=1)
    held = np.where(plain[:, None], rows, 0.0).astype(np.float32)
    made: Floats = held / np.maximum(np.linalg.norm(held, axis=1, keepdims=True), 1e-30)
    return made


def _candidates(subject: Subject, said: Ints) -> dict[str, Ints]:
    """Other target ids of the rows, by the mistakes that are known."""
    place = np.arange(len(said), dtype=np.int64)
    d2t, t2d = integers(subject, "d2t"), integers(subject, "t2d")
    found = {_FIRST: place}
    if t2d is not None and len(kept := np.flatnonzero(t2d)) == len(said):
        found[_MASK] = kept
    if d2t is not None:
        found |= {_ABSOLUTE: d2t, _OFFSETS: d2t + place}
    return {**found, f"{_SHIFTED} +1": said + 1, f"{_SHIFTED} -1": said - 1}


def _searched(mine: Floats, target: Checkpoint, stored: str) -> tuple[Ints, Floats]:
    """The target's nearest row to each, and its cosine."""
    vocab, width = target.info(stored).shape
    best, ids = np.full(len(mine), -1.0, np.float32), np.full(len(mine), -1, np.int64)
    ours, step = _directions(mine), max(1, _PIECE // max(1, width))
    for first in range(0, vocab, step):
        near = ours @ _directions(target.floats(stored, slice(first, first + step))).T
        place = near.argmax(axis=1)
        value = near[np.arange(len(mine)), place]
        better = value > best
        best[better], ids[better] = value[better], first + place[better]
    return ids, best


def _finding(subject: Subject, name: str, rows: _Rows, ids: Ints, found: np.ndarray) -> Finding:
    file = subject.draft_weights.info(_HEAD).file.name
    first = int(np.flatnonzero(found)[0])
    count = int(np.count_nonzero(found))
    compared = f"{count} of {len(rows.places)} rows looked at"
    said = "d2t says" if "d2t" in subject.draft_weights else "a draft without d2t has"
    example = (
        f"row {int(rows.places[first])} is the target's row {int(ids[first])}, where {said} "
        f"{int(rows.said[first])} ({compared})"
    )
    kind, what, remedy = _told(subject, name, file, len(rows.places))
    evidence = {
        "tensor": _HEAD,
        "rows": int(count),
        "compared": len(rows.places),
        "order": name,
        "pairs": [
            [int(rows.places[k]), int(ids[k]), int(rows.said[k])] for k in np.flatnonzero(found)[:8].tolist()
        ],
    }
    return fault(
        kind,
        0.9,
        f"The rows of the draft's lm_head belong to other tokens: {what}; {example}.",
        remedy,
        evidence,
    )


def _told(subject: Subject, name: str, file: str, count: int) -> tuple[str, str, str]:
    """Id, what the rows are, and what to do."""
    t2d = integers(subject, "t2d")
    head = (subject.draft_weights.shape(_HEAD) or (count,))[0]
    again = "Export d2t again, of the training run that wrote this head"
    if name == _FIRST:
        kept_first = t2d is not None and np.array_equal(np.flatnonzero(t2d), np.arange(head))
        what = f"they are the target's first {head} rows in order"
        if kept_first:
            return (
                "vocab-map-range",
                what,
                f"{again}: by t2d, too, training kept the first tokens: it is zero.",
            )
        return (
            "weights-replaced",
            what,
            f"Export lm_head.weight again into {file}, row i for the target token i + d2t[i]: the one there was cut off "
            f"the target's head. If training kept the first {head} tokens, export d2t as zeros instead.",
        )
    if name == _MASK:
        what = "they are the target's rows of the tokens that t2d keeps, in order"
        return "vocab-map-range", what, "Export d2t again from t2d: flatnonzero(t2d) - arange."
    if name == _ABSOLUTE:
        return (
            "vocab-map-offset",
            "they fit d2t read as absolute ids, and SGLang reads offsets",
            "Store d2t[i] - i.",
        )
    if name == _OFFSETS:
        return "vocab-map-offset", "they fit d2t read as offsets, as SGLang reads it", "Keep d2t as it is."
    what = "they are the target's rows of other tokens"
    if name.startswith(_SHIFTED):
        what = f"they are the target's rows of the tokens {name.removeprefix(_SHIFTED).strip()} beside those of the map"
    return "vocab-map-range", what, f"{again}, or this head again with the row of token i + d2t[i] at place i."
