"""What is to be compared with what: one job per sample of the dump. A plan: tokens are read, no state is."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.dumps.folder import Collection, open_collection
from drafttrace.tracer.dumps.registry import FieldMap, FolderLayout, Request, SampleRef
from drafttrace.tracer.dumps.token_index import (
    LENGTHS,
    STARTS,
    Entry,
    common_prefix,
    entries,
    known_tokens,
    prefix_hashes,
    sample_tokens,
)
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat, UnreadableFile
from drafttrace.tracer.open import is_trace_file
from drafttrace.tracer.trace.reader import read_tokens


@dataclass(frozen=True)
class Source:
    """Where one capture lies: a trace, or sample ``number`` of a dump at ``path`` of layout ``format``."""

    path: str
    format: str | None = None
    number: int | None = None

    @property
    def name(self) -> str:
        """As a user writes it: ``PATH`` or ``PATH#i``."""
        return self.path if self.number is None else f"{self.path}#{self.number}"


@dataclass(frozen=True)
class Job:
    """One sample of the dump, and what was served for its tokens: a capture, or (url) a server to ask.

    stamp: changes whenever a file of either side does. problem: why there is nothing to compare with.
    """

    reference: Source
    left: Source | None
    url: str | None
    stamp: str
    problem: str | None = None


@dataclass(frozen=True)
class Served:
    """One capture of the served side: its place, its file, its tokens, and the hashes of their prefixes."""

    source: Source
    file: Path
    tokens: Callable[[], Ints]
    hashes: frozenset[tuple[int, int]]


def is_url(text: str) -> bool:
    """Whether ``--against`` names a server."""
    return text.startswith(("http://", "https://"))


def plan(folder: str, against: str, format_id: str | None, request: Request) -> Iterator[Job]:
    """A job for every sample below ``folder``, in their order.

    Raises UnreadableFile, UnknownFormat and DrafttraceError where a side holds nothing that can be read.
    """
    dump = open_collection(Path(folder), format_id, request)
    places = Places(dump)
    dump = with_fields(dump, request.fields)
    if is_url(against):
        for ref in dump.refs:
            yield Job(places.of(ref), None, against, _stamp(ref.file))
        return
    served = served_side(Path(against), request)
    if not served:
        raise UnreadableFile(
            f"'{against}' holds no trace that can be read; record one there, or give another --against."
        )
    known = entries(dump)
    matcher = Matcher(served, known)
    for ref, entry in zip(dump.refs, known, strict=True):
        reference = places.of(ref)
        found, problem = matcher.match(entry, lambda ref=ref: sample_tokens(dump, ref), ref.number)  # type: ignore[misc]
        stamp = _stamp(ref.file, *([found.file] if found is not None else []))
        yield Job(reference, found.source if found is not None else None, None, stamp, problem)


@dataclass(frozen=True)
class _Named(Collection):
    """Samples of a layout of the user's own: whoever reads one, if only its tokens, needs the names of its fields."""

    fields: FieldMap = field(default_factory=FieldMap)

    def read(self, ref: SampleRef, request: Request) -> Capture:
        return super().read(ref, replace(request, fields=self.fields))


def with_fields(dump: Collection, fields: FieldMap) -> Collection:
    """The dump, to be read by the named fields where it has no layout of its own.

    Its layout's id tells them, so that the index of tokens is not taken for that of other fields.
    """
    layout = dump.layout
    if layout.id != "MAPPED" or isinstance(layout, FolderLayout):
        return dump
    named = replace(layout, id=f"MAPPED {fields}")
    return _Named(dump.path, named, dump.why, dump.refs, dump.left_out, dump.overruled, fields)


class Places:
    """Where the samples of a collection lie: by their own files where they have some, so that nobody needs to list
    the folder again."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._samples = Counter(ref.file for ref in collection.refs)

    def of(self, ref: SampleRef) -> Source:
        """The place of one sample."""
        layout = self._collection.layout
        if isinstance(layout, FolderLayout):
            single = len(self._collection.refs) == 1
            return Source(str(self._collection.path), layout.id, None if single else ref.number)
        several = ref.inner > 0 or self._samples[ref.file] > 1
        return Source(str(ref.file), layout.id, ref.inner if several else None)


def served_side(path: Path, request: Request) -> list[Served]:
    """The traces at a path, else the samples of the dump that it is."""
    traces = _traces(path)
    if traces:
        return [found for file in traces if (found := _served_trace(file)) is not None]
    dump = _open_served(path, request)
    places = Places(dump)
    dump = with_fields(dump, request.fields)
    return [
        Served(
            places.of(ref),
            ref.file,
            lambda ref=ref: sample_tokens(dump, ref),  # type: ignore[misc]
            _hashes_of(entry),
        )
        for ref, entry in zip(dump.refs, entries(dump), strict=True)
    ]


def passed_over(jobs: Sequence[Job], against: str) -> list[str]:
    """The traces of the served side that no job takes: of other texts, or of one that another capture fits better."""
    if is_url(against):
        return []
    taken = {job.left.path for job in jobs if job.left is not None}
    return [str(file) for file in _traces(Path(against)) if str(file) not in taken]


def _traces(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in sorted(path.rglob("*.h5")) if is_trace_file(file)]
    return [path] if path.is_file() and is_trace_file(path) else []


def _open_served(path: Path, request: Request) -> Collection:
    """The dump that was served, whose fields are the ones that were named where it is of no known layout."""
    try:
        return open_collection(path, None, request)
    except UnknownFormat:
        if request.fields == FieldMap():
            raise
        return open_collection(path, "MAPPED", request)


def _served_trace(file: Path) -> Served | None:
    with contextlib.suppress(DrafttraceError):  # a damaged trace among thousands matches nothing
        tokens = known_tokens(read_tokens(file))
        hashes = {(c, h) for start in STARTS for c, h in prefix_hashes(tokens, start).items()}
        return Served(Source(str(file)), file, lambda: tokens, frozenset(hashes))
    return None


def _hashes_of(entry: Entry) -> frozenset[tuple[int, int]]:
    return frozenset((c, int(h)) for row in entry.hashes for c, h in enumerate(row) if h)


class Matcher:
    """Finds the capture with a sample's tokens: the longest common prefix wins, then the same number.

    A capture belongs to the samples that share most with it: samples of one system prompt all begin alike, and the others
    of them are not what it was recorded for.
    """

    def __init__(self, served: Sequence[Served], samples: Sequence[Entry]) -> None:
        if not served:
            raise UnreadableFile("The served side holds no trace that can be read; record one first.")
        self._served = served
        self._by_hash: dict[tuple[int, int], list[int]] = {}
        for place, one in enumerate(served):
            for key in one.hashes:
                self._by_hash.setdefault(key, []).append(place)
        self._most: dict[int, int] = {}  # by place: the longest hashed prefix that some sample shares with it
        for column, value in {key for sample in samples for key in _hashes_of(sample)}:
            for place in self._by_hash.get((column, value), ()):
                self._most[place] = max(column, self._most.get(place, -1))

    def match(self, entry: Entry, tokens: Callable[[], Ints], number: int) -> tuple[Served | None, str | None]:
        """The capture, or None and the reason. tokens: of the sample, read only where several captures are alike."""
        if entry.length == 0:
            return None, None  # the sample cannot be read: its job says why
        mine, others = _hashes_of(entry), False
        for column in reversed(range(len(LENGTHS))):
            alike = sorted({p for key in mine if key[0] == column for p in self._by_hash.get(key, ())})
            found = [place for place in alike if self._most[place] == column]
            if found:
                return self._best(found, tokens, number)
            others = others or bool(alike)
        if others:
            return None, "every capture that starts with its first tokens shares more of them with another sample"
        return None, "no capture of the served side starts with its tokens"

    def _best(self, found: list[int], tokens: Callable[[], Ints], number: int) -> tuple[Served | None, str | None]:
        if len(found) > 1:
            known = tokens()
            scores = {}
            for place in found[:200]:
                theirs = self._served[place].tokens()
                common = max(common_prefix(known[a:], theirs[b:]) for a in STARTS for b in STARTS)
                scores[place] = common, -abs(len(theirs) - len(known))
            top = max(scores.values())
            found = [place for place, score in scores.items() if score == top]
        if len(found) > 1:
            same = [p for p in found if _number(self._served[p].source) == number]
            found = same if len(same) == 1 else found
        if len(found) > 1:
            names = ", ".join(self._served[place].source.name for place in found[:3])
            said = f"{len(found)} captures share equally many tokens with it: {names}"
            return None, f"{said}; none is guessed: give --against a folder that holds one of them"
        return self._served[found[0]], None


def _number(source: Source) -> int | None:
    if source.number is not None:
        return source.number
    digits = "".join(c if c.isdigit() else " " for c in Path(source.path).name.split(".", 1)[0]).split()
    return int(digits[0]) if len(digits) == 1 and len(digits[0]) <= 12 else None


def _stamp(*files: Path) -> str:
    parts = []
    for file in files:
        try:
            about = os.stat(file)
        except OSError:
            continue
        parts.append(f"{about.st_size}.{about.st_mtime_ns}")
    return "/".join(parts)
