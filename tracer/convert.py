"""Writes a trace or dump in another layout: trace, safetensors, SpecForge, speculators v1 or current.

What the other layout cannot hold is refused by name, never dropped: a training sample without its layer ids or its
mask is how the faults that this tool looks for begin. What is given up on purpose, the result names.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.convert_journal import said_of_dump
from drafttrace.tracer.convert_layouts import OUT_LAYOUTS, OutLayout
from drafttrace.tracer.convert_many import Progress, Run, convert_all
from drafttrace.tracer.convert_place import (
    refuse_ending,
    refuse_in_place,
    refuse_no_folder,
    refuse_taken_file,
    refuse_taken_folder,
    write_folder,
)
from drafttrace.tracer.convert_prefill import prefill_remedy
from drafttrace.tracer.convert_recording import left_out_of, refuse_recording
from drafttrace.tracer.convert_refuted import ByValue
from drafttrace.tracer.convert_sample import LaterRows, Sample, one_row_per_token, refuse_other_fields
from drafttrace.tracer.declared_checks import refuse_beyond, with_declared_notes
from drafttrace.tracer.dumps.contradiction import refuse_other_target
from drafttrace.tracer.dumps.folder import Collection, open_collection
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError, OutputExists
from drafttrace.tracer.grammar import in_number
from drafttrace.tracer.open import is_trace_file, open_capture, read_sample, split_spec
from drafttrace.tracer.output import refuse_device
from drafttrace.tracer.target_weights import said_of

SCHEMA = "drafttrace.conversion/1"
# What may be given up on purpose, with ``lose``.
LOSSES = (
    "layer-ids",
    "loss-mask",
    "last-state",
    "boundaries",
    "first-token",
    "recording",
    "sample-numbers",
    "later-passes",
    "other-fields",
    "value-checks",
)
# Of these, what says which samples there are or may be believed, and nothing of how one is written: a conversion that
# stopped for want of one goes on with it.
_OF_SAMPLES = frozenset(("sample-numbers", "later-passes", "value-checks"))


@dataclass(frozen=True)
class Converted:
    """What was read and written. paths: the files of one sample, or the folder of several. samples: how many are there.

    source: what was read, as ``PATH`` or ``PATH#i``; format, recognised_by: what it is, and why. layout: of ``paths``.
    left_out: what was given up, by name, the padding, and the samples that were left out. notes: what the readers
    say of the files, such as which of a folder are none of its samples.
    """

    paths: tuple[Path, ...]
    left_out: tuple[str, ...]
    source: str
    format: str
    recognised_by: str
    layout: str
    notes: tuple[str, ...]
    samples: int = 1

    def to_json(self) -> dict[str, Any]:
        """The machine form, ``drafttrace.conversion/1``."""
        return {
            "schema": SCHEMA,
            "source": {"path": self.source, "format": self.format, "recognised_by": self.recognised_by},
            "layout": self.layout,
            "paths": [str(path) for path in self.paths],
            "samples": self.samples,
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class _Asked:
    """How every sample is cut down."""

    layout: OutLayout
    request: Request
    lose: frozenset[str]
    target: Path | None
    ones: bool
    by_value: ByValue

    def cut(self, capture: Capture) -> Sample:
        """One row per token, or a DrafttraceError for what the layout cannot hold."""
        capture.need_real_tokens("train or compare")
        hidden = self.request.hidden_size
        if self.target is not None and hidden is not None and self.request.inferred:
            refuse_other_target(capture, hidden, self.target)
        if "layer-ids" not in self.lose:
            refuse_beyond(capture, self.request.layers)
            capture = with_declared_notes(capture, self.request.layers)
        capture = self.by_value.placed(capture)
        source = one_row_per_token(capture, self.request, self.lose, self.target, self.layout.id)
        refuse_recording(source, self.layout.id)
        refuse_other_fields(source, self.layout.id)
        if source.mask is None and self.ones:
            source = dataclasses.replace(source, mask=np.ones(len(source.tokens), np.int64))
        self.layout.check(source)
        return self.by_value.held(source, self.layout.id)


def convert(
    spec: str,
    out: Path,
    to: str,
    *,
    format: str | None = None,
    sample: int | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
    lose: Sequence[str] = (),
    mask: str | None = None,
    target: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Read ``spec`` (``PATH`` or ``PATH#i``) and write it to ``out`` in the layout ``to``.

    to: "trace", "safetensors" (what ``drafttrace reference`` writes), "specforge", "speculators-v1" or
    "speculators". The last two are folders. mapping: the names of the fields of a file of no known
    layout. lose: which of :data:`LOSSES` may be given up. mask: "ones" makes a loss mask where the source has none.
    target: the target's folder; its final norm turns a last state before the norm into one after it, which SpecForge
    stores. What its values refute is not written as declared, unless "value-checks" are among the losses; of a dump of many
    samples the first eight and every hundredth are held against them. "recording" among the losses is what only a recorder
    knows: draft rows, rejected rows, probes, the server.
    "other-fields": tensors of a dump that are no tokens, states or mask, such as logits.

    A ``PATH`` of several samples is converted whole, as ``drafttrace reference --from`` takes all of them: whoever
    converts a dump means the dump, and the first sample alone would look like it. ``out`` is a folder then, with one file
    per sample under the sample's own number, so that ``PATH#i`` and ``OUT#i`` are the same. It is there when all of it
    is there. The first sample that cannot be converted ends the run; those before it are kept beside ``out`` and not made
    again by the same call (see :mod:`drafttrace.tracer.convert_many`). With "later-passes" among the losses, passes that
    begin after token 0, such as decode steps, are left out instead, and named in the answer. progress: called with
    (samples done, samples).

    Raises DrafttraceError naming what the layout cannot hold, OutputExists where ``out`` is taken.
    """
    layout = _layout(to, lose, mask)
    asked = said_of(target, request or Request())
    how = _Asked(layout, asked, frozenset(lose), target, mask == "ones", ByValue(target))
    refuse_in_place(split_spec(spec)[0], out)
    refuse_device(out)
    if layout.folder:
        refuse_no_folder(out, f"the layout {to} is a folder ({layout.holds})")
    several = _several(spec, format, sample, mapping, asked)
    if several is not None:
        read = asked if mapping is None else dataclasses.replace(asked, fields=mapping)
        return _write_all(several, how, read, _facts(several, how, read, format), out, force, progress)
    _refuse_place(layout, out, force)
    capture = open_capture(spec, format=format, sample=sample, mapping=mapping, request=asked)
    try:
        source = how.cut(capture)
    except LaterRows as error:
        path, number = split_spec(spec)
        raise prefill_remedy(
            error,
            open_collection(path, "MAPPED" if mapping is not None and format is None else format, asked),
            sample if number is None else number,
        ) from None
    return Converted(
        _write_one(source, layout, out),
        tuple(map(in_number, left_out_of(source, to))),
        source=capture.spec or capture.path,
        format=capture.format,
        recognised_by=capture.recognised_by,
        layout=to,
        notes=source.capture.notes,
    )


def _layout(to: str, lose: Sequence[str], mask: str | None) -> OutLayout:
    layout = OUT_LAYOUTS.get(to)
    if layout is None:
        raise DrafttraceError(f"There is no layout '{to}' to convert to; choose one of {', '.join(OUT_LAYOUTS)}.")
    unknown = sorted(set(lose) - set(LOSSES))
    if unknown:
        raise DrafttraceError(f"'{unknown[0]}' is nothing that can be given up; choose from {', '.join(LOSSES)}.")
    if mask not in {None, "ones"}:
        raise DrafttraceError(f"A loss mask can be made of 'ones', not of '{mask}'; leave it out or give 'ones'.")
    return layout


def _several(
    spec: str, format: str | None, sample: int | None, mapping: FieldMap | None, asked: Request
) -> Collection | None:
    """The dump, where ``spec`` names more than one sample of it."""
    path, number = split_spec(spec)
    if number is not None or sample is not None or (format is None and mapping is None and is_trace_file(path)):
        return None
    if mapping is not None:
        asked = dataclasses.replace(asked, fields=mapping)
    collection = open_collection(path, "MAPPED" if mapping is not None and format is None else format, asked)
    return collection if len(collection.refs) > 1 else None


def _facts(collection: Collection, how: _Asked, read: Request, format: str | None) -> dict[str, Any]:
    """What tells one conversion of a dump from another: with other facts, what is there already is of no use."""
    from drafttrace import __version__

    weights = None
    if how.target is not None:
        from drafttrace.tracer.reference_files import target_hash

        weights = target_hash(how.target)
    return {
        "source": os.path.realpath(collection.path),
        "layout": how.layout.id,
        "format": format or collection.layout.id,
        "lose": sorted(how.lose - _OF_SAMPLES),
        "mask_of_ones": how.ones,
        "target": weights,
        "options": said_of_dump(read),
        "version": __version__,
    }


def _write_all(
    several: Collection,
    how: _Asked,
    read: Request,
    facts: dict[str, Any],
    out: Path,
    force: bool,
    progress: Progress | None,
) -> Converted:
    first, count = several.refs[0].number, len(several.refs)
    refuse_no_folder(
        out,
        f"the {count} samples of '{several.path}' become a folder ({how.layout.holds}), where one alone would be named as "
        f"'{several.path}#{first}'",
    )
    several.refuse_strangers(read)
    run = Run(
        collection=several,
        layout=how.layout,
        out=out,
        cut=lambda number: _cut_of(several, number, how, read),
        facts=facts,
        lose_numbers="sample-numbers" in how.lose,
        force=force,
    )
    written = convert_all(run, progress)
    return Converted(
        (out,),
        tuple(map(in_number, written.left_out)),
        source=str(several.path),
        format=several.layout.id,
        recognised_by=several.why,
        layout=how.layout.id,
        notes=written.notes,
        samples=written.samples,
    )


def _cut_of(several: Collection, number: int, how: _Asked, read: Request) -> Sample:
    """Raises LaterRows where such passes may be left out, DrafttraceError for everything else that stops."""
    try:
        return how.cut(read_sample(several, number, None, read))
    except LaterRows as error:
        if "later-passes" in how.lose:
            raise
        raise prefill_remedy(error, several, number, whole=True) from None


def _refuse_place(layout: OutLayout, out: Path, force: bool) -> None:
    """Raise OutputExists where one sample has no place at ``out``, before anything is read."""
    if layout.folder:
        refuse_taken_folder(out, layout.id, force)
        return
    if out.is_dir():
        raise OutputExists(
            f"The output '{out}' is a folder, and the layout {layout.id} is one file; give a file name such as "
            f"'{out / Path(layout.name(0)).name}'."
        )
    refuse_ending(out, layout.id, layout.endings)
    refuse_taken_file(out, force)


def _write_one(source: Sample, layout: OutLayout, out: Path) -> tuple[Path, ...]:
    if not layout.folder:
        layout.write(source, out)
        return (out,)
    return tuple(write_folder(out, layout.id, lambda folder: _fill(source, layout, folder)))


def _fill(source: Sample, layout: OutLayout, folder: Path) -> list[Path]:
    """The files of a folder of one sample, the sample first."""
    companions = layout.companions(folder)
    try:
        companions.add(0, source)
        place = folder / layout.name(0)
        place.parent.mkdir(parents=True, exist_ok=True)
        layout.write(source, place)
        return [place, *(folder / name for name in companions.finish())]
    finally:
        companions.close()
