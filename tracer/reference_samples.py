"""The token sequences that a reference is made for: of traces, of one sample of a dump, or of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import is_trace_file, open_capture, read_sample, split_spec
from drafttrace.tracer.reference import LossMask, mask_of, tokens_of


@dataclass(frozen=True)
class Source:
    """What one ``--from`` holds. masks: the loss mask of every sample that has one. numbers: of the samples, as the dump
    numbers them. trace: None for a dump. notes: why samples have no mask, where their readers say it."""

    tokens: tuple[Ints, ...]
    masks: tuple[LossMask | None, ...]
    numbers: tuple[int, ...]
    trace: Capture | None
    notes: tuple[str, ...] = ()


def read_source(
    spec: str,
    *,
    format: str | None = None,
    sample: int | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
) -> Source:
    """The tokens of ``PATH#i``, or of every sample of ``PATH``.

    Arguments and errors as :func:`drafttrace.tracer.open.open_capture`.
    """
    path, number = split_spec(spec)
    if format is None and mapping is None and is_trace_file(path):
        capture = open_capture(spec, sample=sample)
        return Source((tokens_of(capture),), (mask_of(capture),), (0,), capture)
    asked = dataclasses.replace(request or Request(), lenient=True, tokens_only=True, with_mask=True)
    if number is not None or sample is not None:
        capture = open_capture(spec, format=format, sample=sample, mapping=mapping, request=asked)
        chosen = number if number is not None else sample
        return Source((tokens_of(capture),), (mask_of(capture),), (chosen or 0,), None, _about_masks(capture))
    if mapping is not None:
        asked = dataclasses.replace(asked, fields=mapping)
    collection = open_collection(path, "MAPPED" if mapping is not None and format is None else format, asked)
    tokens: dict[int, Ints] = {}
    masks: list[LossMask | None] = []
    notes: dict[str, None] = {}
    for ref in collection.refs:
        found = read_sample(collection, ref.number, None, asked)
        try:
            tokens[ref.number] = tokens_of(found)
        except DrafttraceError as error:
            if found.redacted or not tokens:
                raise
            raise DrafttraceError(
                f"Sample #{ref.number} of '{path}' does not keep every token, as a decode step does not, so the target "
                f"cannot be run on it; name one that does, as '{path}#{next(iter(tokens))}'."
            ) from error
        masks.append(mask_of(found))
        notes.update(dict.fromkeys(_about_masks(found)))
    return Source(tuple(tokens.values()), tuple(masks), tuple(tokens), None, tuple(notes))


def _about_masks(capture: Capture) -> tuple[str, ...]:
    return tuple(note for note in capture.notes if "loss mask" in note)


def numbers_of(sources: Sequence[Source], more: int) -> list[int]:
    """The i of every ``hs_{i}`` file: the dump's own numbers where one dump is all there is. more: further samples."""
    if len(sources) == 1 and not more:
        return list(sources[0].numbers)
    return list(range(sum(len(source.tokens) for source in sources) + more))
