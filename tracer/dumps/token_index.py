"""Finds the sample with given tokens among thousands of files, by hashes of token prefixes kept in a user cache.

A sample and a trace rarely have equal tokens: one goes on where the other stops, one is padded, one lost its first
token. So the hashes of several prefix lengths are kept, and the sample that shares the longest prefix wins.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.dumps.folder import Collection
from drafttrace.tracer.dumps.registry import Request, SampleRef
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare

LENGTHS = (
    4,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    3072,
    4096,
    6144,
    8192,
)
STARTS = (0, 1)
_RIVALS = 8  # other samples that are held against the tokens
_OWN = 4  # tokens of a text that it shares with no other
_ASKED = 8  # samples of an unreadable folder that are asked why
_VERSION = 4
_MULTIPLIER = 6364136223846793005  # Knuth's MMIX generator
_WORD = (1 << 64) - 1

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Entry:
    """What is known of one sample without reading it again; length 0 for one that cannot be read, or has no tokens.

    stamp: size, time of the content and time of the directory entry of its file, as :func:`_stamp` gives them.
    """

    stamp: tuple[int, int, int]
    length: int
    readable: bool
    hashes: Hashes  # [len(STARTS), len(LENGTHS)], 0 where the sample is shorter; all 0 for an unreadable file


def find_sample(spec: str, like: Capture, *, format: str | None = None) -> int:
    """The number of the sample of ``spec`` whose tokens match those of ``like``.

    Raises NothingToCompare where none shares even four tokens from its start, or several share equally many.
    """
    from drafttrace.tracer.dumps.folder import open_collection
    from drafttrace.tracer.open import split_spec

    path, number = split_spec(spec)
    return number if number is not None else find_in(open_collection(path, format), like)


def find_in(collection: Collection, like: Capture) -> int:
    """As :func:`find_sample`, in an open collection."""
    known = known_tokens(like.tokens)
    if len(known) < LENGTHS[0]:
        held = f"keeps {len(known)} token ids at its start" if len(known) else "keeps no token ids at its start"
        raise NothingToCompare(
            f"'{like.path}' {held}, too few to find its sample in '{collection.path}' by them; name the sample as "
            f"'{collection.path}#{collection.refs[0].number}'."
        )
    number, sure = _matching(collection, known, like, entries(collection))
    if not sure:
        # The index is older than the files, whatever their times say.
        number, sure = _matching(collection, known, like, entries(collection, anew=True))
    if not sure:
        raise NothingToCompare(
            f"Sample #{number} of '{collection.path}' changes while it is read; wait until the dump is written."
        )
    return number


def _matching(collection: Collection, known: Ints, like: Capture, listed: list[Entry]) -> tuple[int, bool]:
    """The number of the sample that an index names, and whether the sample holds the tokens that the index says."""
    wanted = {(start, column): value for start in STARTS for column, value in prefix_hashes(known, start).items()}
    best: dict[int, int] = {}
    for (_start, column), value in wanted.items():
        for index, entry in enumerate(listed):
            if (entry.hashes[:, column] == np.uint64(value)).any():
                best[index] = max(best.get(index, 0), LENGTHS[column])
    if not best:
        _refuse_one_reason(collection, listed)
        _refuse_nameless(collection, like, listed)
        raise NothingToCompare(
            f"None of the {len(listed)} samples of '{collection.path}' starts with the tokens of '{like.path}'"
            f"{_unreadable(collection, listed)}; give the dump of the same text and chat template."
        )
    top = max(best.values())
    finalists = [index for index, length in best.items() if length == top]
    if len(finalists) > 1:
        finalists = _most_alike(collection, finalists, known)
    if len(finalists) > 1:
        _refuse_other_text(collection, finalists[0], best, known, like)
        numbers = ", ".join(f"#{collection.refs[index].number}" for index in finalists[:5])
        raise NothingToCompare(
            f"Samples {numbers} of '{collection.path}' share equally many tokens with '{like.path}'; name one of them."
        )
    found = collection.refs[finalists[0]]
    _refuse_other_text(collection, finalists[0], best, known, like)
    return found.number, _still_holds(collection, found, listed[finalists[0]])


def _refuse_other_text(
    collection: Collection, nearest: int, best: Mapping[int, int], known: Ints, like: Capture
) -> None:
    """Raise NothingToCompare where the nearest sample goes on otherwise than the tokens do, and shares no more with them
    than another sample does: what a system prompt gives every text. Then they are in no sample, or all of the template is
    another one."""
    try:
        tokens = sample_tokens(collection, collection.refs[nearest])
    except DrafttraceError:  # it became unreadable since it was indexed, which whoever reads it next says
        return
    common = _common(tokens, known)
    if common >= min(len(tokens), len(known)) - 1:
        return
    others = sorted((index for index in best if index != nearest), key=lambda index: -best[index])[:_RIVALS]
    shared: list[int] = []
    for index in others:
        with contextlib.suppress(DrafttraceError):
            shared.append(_common(sample_tokens(collection, collection.refs[index]), known))
    if not shared or common - max(shared) >= _OWN:
        return
    number = collection.refs[nearest].number
    raise NothingToCompare(
        f"No sample of '{collection.path}' holds the tokens of '{like.path}': the nearest, #{number}, shares the first "
        f"{common} of {len(known)}, and another {max(shared)}; give the dump of this text, or, where only the chat "
        f"template differs, name the sample, as '{collection.path}#{number}'."
    )


def _common(tokens: Ints, known: Ints) -> int:
    return max(common_prefix(tokens[a:], known[b:]) for a in STARTS for b in STARTS)


def _still_holds(collection: Collection, ref: SampleRef, entry: Entry) -> bool:
    """Whether a sample holds the tokens that its entry was made of: a copied file may keep its size and times."""
    try:
        tokens = sample_tokens(collection, ref)
    except DrafttraceError:
        return False
    return len(tokens) == entry.length and bool((_hashes(tokens) == entry.hashes).all())


def _is_nameless(entry: Entry) -> bool:
    return entry.readable and entry.length < LENGTHS[0]


def _refuse_nameless(collection: Collection, like: Capture, listed: list[Entry]) -> None:
    """Raise NothingToCompare where no sample that can be read has tokens to be found by."""
    readable = [entry for entry in listed if entry.readable]
    if not readable or not all(map(_is_nameless, readable)):
        return
    raise NothingToCompare(
        f"None of the {len(listed)} samples of '{collection.path}' keeps the token ids of its start"
        f"{_unreadable(collection, listed)}, so none can be found by those of '{like.path}'; name the sample as "
        f"'{collection.path}#{collection.refs[0].number}', or dump it with the ids of the prompt."
    )


def _refuse_one_reason(collection: Collection, listed: list[Entry]) -> None:
    """Raise NothingToCompare where no sample can be read, and a spread of them says why in the same words: a field that the
    user named is in none of them, or they are of a format that the user did not mean."""
    if any(entry.readable for entry in listed) or not listed:
        return
    step = max(1, len(listed) // _ASKED)
    said: list[str] = []
    for ref in (*collection.refs[::step][:_ASKED], collection.refs[-1]):
        try:
            sample_tokens(collection, ref)
        except DrafttraceError as error:
            said.append(str(error))
            if said[0].replace(str(collection.refs[0].file), "") != said[-1].replace(str(ref.file), ""):
                return
    if said:
        raise NothingToCompare(f"None of the {len(listed)} samples of '{collection.path}' can be read: {said[0]}")


def _unreadable(collection: Collection, listed: list[Entry]) -> str:
    """What to say of the files that may hold the sample, and that nobody can read or find by tokens."""
    broken = [ref for ref, entry in zip(collection.refs, listed, strict=True) if not entry.readable]
    if not broken:
        nameless = sum(map(_is_nameless, listed))
        keep = "keeps no token ids of its start" if nameless == 1 else "keep no token ids of their start"
        return f" ({nameless} of them {keep})" if 0 < nameless < len(listed) else ""
    first = f"'{broken[0].file.name}'" if collection.spec(broken[0]) is None else f"#{broken[0].number}"
    return (
        f" ({first} could not be read)"
        if len(broken) == 1
        else f" ({len(broken)} could not be read, first {first})"
    )


def _most_alike(collection: Collection, finalists: list[int], known: Ints) -> list[int]:
    """Those of the finalists with the longest common prefix; among equal ones, those of the nearest length."""
    scores: dict[int, tuple[int, int]] = {}
    for index in finalists[:200]:
        tokens = sample_tokens(collection, collection.refs[index])
        common = max(common_prefix(tokens[a:], known[b:]) for a in STARTS for b in STARTS)
        scores[index] = common, -abs(len(tokens) - len(known))
    top = max(scores.values())
    return [index for index, score in scores.items() if score == top]


def common_prefix(left: Ints, right: Ints) -> int:
    """How many tokens two sequences share from their starts."""
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    return int(differing[0]) if len(differing) else length


def known_tokens(tokens: Ints) -> Ints:
    """The tokens up to the first unknown one (-1), without the leading one where a layout does not keep that."""
    start = 1 if len(tokens) and tokens[0] < 0 else 0
    unknown = np.flatnonzero(tokens[start:] < 0)
    return tokens[start : start + int(unknown[0])] if len(unknown) else tokens[start:]


def sample_tokens(collection: Collection, ref: SampleRef) -> Ints:
    """The known tokens of one sample, without padding."""
    capture = collection.read(ref, Request(tokens_only=True))
    return known_tokens(capture.tokens[: capture.valid_length or None])


def prefix_hashes(tokens: Ints, start: int) -> dict[int, int]:
    """Column -> 64-bit hash of ``tokens[start : start + LENGTHS[column]]``, for the lengths that there are."""
    found: dict[int, int] = {}
    state, position = 1469598103934665603, 0
    values = tokens[start : start + LENGTHS[-1]].tolist()
    for column, length in enumerate(LENGTHS):
        if length > len(values):
            break
        for value in values[position:length]:
            state = ((state ^ (value + 0x9E3779B97F4A7C15)) * _MULTIPLIER) & _WORD
            state ^= state >> 29
        position = length
        found[column] = state or 1
    return found


def entries(collection: Collection, *, anew: bool = False) -> list[Entry]:
    """One entry per sample, in the collection's order; from the cache where nothing has changed, and not with anew."""
    cache = _cache_file(collection)
    known = _load(cache) if cache is not None and not anew else {}
    found: list[Entry] = []
    fresh: dict[str, Entry] = {}
    changed = False
    stats: dict[Path, os.stat_result] = {}
    for ref in collection.refs:
        stat = stats.get(ref.file) or stats.setdefault(ref.file, os.stat(ref.file))
        key = f"{ref.file}#{ref.inner}.{ref.part}"
        entry = known.get(key)
        if entry is None or entry.stamp != _stamp(stat):
            entry, changed = _make(collection, ref, stat), True
        fresh[key] = entry
        found.append(entry)
    if changed and cache is not None:
        _save(cache, fresh)
    return found


def _make(collection: Collection, ref: SampleRef, stat: os.stat_result) -> Entry:
    try:
        tokens, readable = sample_tokens(collection, ref), True
    except DrafttraceError:
        # One damaged file among thousands must not hide the others: it just never matches.
        tokens, readable = np.empty(0, np.int64), False
    return Entry(_stamp(stat), len(tokens), readable, _hashes(tokens))


def _hashes(tokens: Ints) -> Hashes:
    hashes = np.zeros((len(STARTS), len(LENGTHS)), np.uint64)
    for row, start in enumerate(STARTS):
        for column, value in prefix_hashes(tokens, start).items():
            hashes[row, column] = value
    return hashes


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file does. Its time of content can be kept (cp -p, rsync -t), that of its entry cannot."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def cache_folder() -> Path | None:
    """The folder for what can be computed again: ``$XDG_CACHE_HOME/drafttrace`` or ``~/.cache/drafttrace``; None for a
    user without a home, as containers have them."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "drafttrace"
    try:
        return Path.home() / ".cache" / "drafttrace"
    except RuntimeError:
        return None


def _cache_file(collection: Collection) -> Path | None:
    folder = cache_folder()
    if len(collection.refs) < 8 or folder is None:
        return None
    key = f"{_VERSION}|{collection.path.resolve()}|{collection.layout.id}|{collection.fields}"
    return folder / "tokens" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"


def _load(path: Path) -> dict[str, Entry]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            keys, numbers, hashes = stored["keys"], stored["numbers"], stored["hashes"]
    except (OSError, ValueError, KeyError, EOFError, _bad_zip()):
        return {}
    if hashes.shape != (len(keys), len(STARTS), len(LENGTHS)) or numbers.shape != (len(keys), 5):
        return {}
    return {
        str(key): Entry((int(row[0]), int(row[1]), int(row[2])), int(row[3]), bool(row[4]), value)
        for key, row, value in zip(keys.tolist(), numbers.tolist(), hashes, strict=True)
    }


def _bad_zip() -> type[Exception]:
    import zipfile

    return zipfile.BadZipFile


def _save(path: Path, entries: dict[str, Entry]) -> None:
    """Write the cache, whole or not at all. A cache that cannot be written is no error."""
    arrays: dict[str, Any] = {
        "keys": np.array(list(entries)),
        "numbers": np.array([(*e.stamp, e.length, e.readable) for e in entries.values()], np.int64),
        "hashes": np.stack([entry.hashes for entry in entries.values()]),
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, **arrays)
        os.replace(part, path)
