"""Opens whatever a user names, a trace or a training dump, as one :class:`Capture`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.declared_checks import layers_of
from drafttrace.tracer.dumps.contradiction import held_against
from drafttrace.tracer.dumps.folder import Collection, open_collection
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.log import say


def open_capture(
    spec: str,
    *,
    format: str | None = None,
    sample: int | None = None,
    mapping: FieldMap | None = None,
    like: Capture | None = None,
    request: Request | None = None,
) -> Capture:
    """The capture that ``spec`` names: ``PATH`` or ``PATH#i``.

    format: the id of a dump layout, to overrule recognition. sample: the number of the sample, as ``#i``.
    mapping: the names of the fields, for a file of no known layout. like: the other side of a comparison; among
    several samples the one with its tokens is taken, and its hidden size is used where a file does not tell its own.
    request: hidden size, layer count and layer ids, where the user knows them.

    Raises UnreadableFile, UnknownFormat, or DrafttraceError where a sample must be chosen, or where the file contradicts
    what the user says of it.
    """
    return _told(_open(spec, format, sample, mapping, like, request, first=False)[0])


def open_numbered(
    spec: str,
    *,
    format: str | None = None,
    sample: int | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
) -> tuple[Capture, int]:
    """The capture that ``spec`` names, the first one where it names several, and how many samples there are.

    Arguments and errors as :func:`open_capture`.
    """
    capture, count = _open(spec, format, sample, mapping, None, request, first=True)
    return _told(capture), count


def names_several(
    spec: str, *, format: str | None = None, mapping: FieldMap | None = None, request: Request | None = None
) -> bool:
    """Whether ``spec`` is a dump of several samples and names none of them. Arguments and errors as
    :func:`open_capture`."""
    return several_in(spec, format=format, mapping=mapping, request=request) is not None


def several_in(
    spec: str, *, format: str | None = None, mapping: FieldMap | None = None, request: Request | None = None
) -> Collection | None:
    """The samples of a ``spec`` that names none of several; None for everything else. Arguments and errors as
    :func:`open_capture`."""
    path, number = split_spec(spec)
    if number is not None or (format is None and mapping is None and is_trace_file(path)):
        return None
    found = _collection(path, format, mapping, _request(request, mapping, None))
    return found if len(found.refs) > 1 else None


def open_some(
    spec: str,
    choose: Callable[[Sequence[int]], Iterable[int]],
    *,
    format: str | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
) -> Iterator[Capture]:
    """The sample that ``spec`` names; of several those whose numbers ``choose`` picks of all of them.

    Arguments and errors as :func:`open_capture`.
    """
    several = several_in(spec, format=format, mapping=mapping, request=request)
    if several is None:
        yield open_capture(spec, format=format, mapping=mapping, request=request)
        return
    asked = _request(request, mapping, None)
    for number in choose([ref.number for ref in several.refs]):
        yield _told(read_sample(several, number, None, asked))


def _collection(path: Path, format: str | None, mapping: FieldMap | None, asked: Request) -> Collection:
    return open_collection(path, "MAPPED" if mapping is not None and format is None else format, asked)


def _told(capture: Capture) -> Capture:
    say(
        "%s: %s (%s), %d tokens, %d rows, slots %s",
        capture.path,
        capture.format,
        capture.recognised_by,
        len(capture.tokens),
        len(capture.table),
        wiring_name(capture.wiring),
    )
    return capture


def _open(
    spec: str,
    format: str | None,
    sample: int | None,
    mapping: FieldMap | None,
    like: Capture | None,
    request: Request | None,
    first: bool,
) -> tuple[Capture, int]:
    path, number = split_spec(spec)
    if sample is not None:
        if number is not None and number != sample:
            raise DrafttraceError(
                f"'{spec}' names sample {number} and --sample says {sample}; give one of the two."
            )
        number = sample
    if format is None and mapping is None and is_trace_file(path):
        return held_against(_open_trace(path, number), request or Request()), 1
    asked = _request(request, mapping, like)
    collection = _collection(path, format, mapping, asked)
    if number is None:
        number = collection.refs[0].number if first else _choose(collection, like)
    return _read(collection, number, asked), len(collection.refs)


def read_sample(collection: Collection, number: int, like: Capture | None, request: Request) -> Capture:
    """Sample ``number`` of an open collection; like, request: as for :func:`open_capture`, and the same errors."""
    return _read(collection, number, _request(request, None, like))


def _read(collection: Collection, number: int, asked: Request) -> Capture:
    ref = collection.ref(number)
    capture = held_against(collection.read(ref, asked), asked)
    if len(collection.refs) == 1:
        return capture
    return dataclasses.replace(capture, sample=number, spec=collection.spec(ref))


def split_spec(spec: str) -> tuple[Path, int | None]:
    """``("PATH", i)`` for ``PATH#i``; a file whose own name ends so is taken as it is."""
    head, mark, tail = spec.rpartition("#")
    if mark and tail.isascii() and tail.isdigit() and len(tail) <= 12 and not os.path.lexists(spec):
        return Path(head), int(tail)
    if not spec or "\0" in spec:
        raise UnreadableFile("The path is empty; give the file or folder of a trace or dump.")
    return Path(spec), None


def is_trace_file(path: Path) -> bool:
    """Whether a path is a trace, told by its content. False for one that cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            if stream.read(8) != b"\x89HDF\r\n\x1a\n":
                return False
    except OSError:  # a name too long, no right to read: whoever opens it next says so
        return False
    from drafttrace.tracer.trace.reader import is_trace

    return bool(is_trace(path))


def _open_trace(path: Path, number: int | None) -> Capture:
    if number:
        raise DrafttraceError(
            f"'{path}' is a trace of one request and has no sample {number}; leave '#{number}' out."
        )
    from drafttrace.tracer.trace.reader import read_trace

    capture: Capture = read_trace(path)
    return capture


def _request(request: Request | None, mapping: FieldMap | None, like: Capture | None) -> Request:
    asked = request or Request()
    if mapping is not None:
        asked = dataclasses.replace(asked, fields=mapping)
    if like is not None:
        asked = asked.told(like.hidden_size, layers_of(like), _vocabulary_of(like))
    return asked


def _vocabulary_of(capture: Capture) -> int | None:
    """How many tokens the target of a trace has."""
    config = capture.about.get("target_config")
    inner = config.get("text_config", config) if isinstance(config, dict) else None
    declared = inner.get("vocab_size") if isinstance(inner, dict) else None
    return declared if type(declared) is int and declared > 0 else None


def _choose(collection: Collection, like: Capture | None) -> int:
    """The number of the only sample, or of the one with the other side's tokens."""
    if len(collection.refs) == 1:
        return collection.refs[0].number
    if like is None:
        numbers = [ref.number for ref in collection.refs]
        raise DrafttraceError(
            f"'{collection.path}' holds {len(numbers)} samples; name one as '{collection.path}#{numbers[0]}'."
        )
    from drafttrace.tracer.dumps.token_index import find_in

    return find_in(collection, like)
