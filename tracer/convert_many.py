"""Converts every sample of a dump: sample by sample into a folder that takes its name only when it is whole.

Nothing half-written is ever taken for whole: the samples gather in the hidden folder ``.OUT.unfinished``, which no command
reads as a dump, and every file in it appears under its name only when it is complete. A run that was killed, or that met
a sample that cannot be converted, is continued by the same command; samples whose source has changed meanwhile are
written again, those that have gone are removed. No more than one sample is open at a time.

A pass that begins after token 0 is no training sample; where the user says so, it is left out, and counted.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafttrace.tracer.convert_companions import Companions
from drafttrace.tracer.convert_journal import MARK, Done, Journal, is_converted, put_mark
from drafttrace.tracer.convert_layouts import OutLayout
from drafttrace.tracer.convert_prefill import passes_left_out
from drafttrace.tracer.convert_recording import left_out_of
from drafttrace.tracer.convert_sample import LaterRows, Sample
from drafttrace.tracer.dumps.folder import Collection
from drafttrace.tracer.dumps.registry import SampleRef
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnreadableFile

_MOST_NOTES = 100
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Run:
    """One conversion of a whole dump.

    cut: the sample of a number, cut down for the layout; raises LaterRows for one that is to be left out. facts: what
    tells this run from another with the same OUT, as JSON takes it. lose_numbers: samples may be numbered anew where the
    layout's numbers have no gaps.
    """

    collection: Collection
    layout: OutLayout
    out: Path
    cut: Callable[[int], Sample]
    facts: Mapping[str, Any]
    lose_numbers: bool
    force: bool


@dataclass(frozen=True)
class Written:
    """How many samples were written, what was left out, and what their readers say, of all samples together."""

    samples: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def convert_all(run: Run, progress: Progress | None = None) -> Written:
    """Write ``run.out``.

    Raises DrafttraceError naming the sample that cannot be converted (those before it are kept for the next time), and
    OutputExists where OUT is taken or cannot be written.
    """
    _refuse_gaps(run)
    out = Path(os.path.realpath(run.out))
    _refuse_taken(run, out)
    folder = out.with_name(f".{out.name}.unfinished")
    try:
        with Journal(folder, run.facts, anew=run.force) as journal:
            told = _write(run, folder, journal, progress)
            put_mark(folder, run.facts, len(told.places), list(told.later))
            _take_place(folder, out)
        (out / Journal.NAME).unlink(missing_ok=True)
    except OSError as error:
        raise OutputExists(
            f"The folder '{folder}', which becomes '{run.out}', cannot be written ({error.strerror or error}); make room "
            "or choose another, the same command goes on from there."
        ) from None
    return Written(
        len(told.places),
        (*_added(told.left_out), *passes_left_out(told.later, len(run.collection.refs))),
        tuple(_counted(told.notes, len(told.places))),
    )


def _refuse_gaps(run: Run) -> None:
    """Raise DrafttraceError where the samples' numbers, which are those of the source, are no rows of a table."""
    own = [ref.number for ref in run.collection.refs]
    if run.layout.rows and not run.lose_numbers and own != list(range(len(own))):
        gap = next(k for k, number in enumerate(own) if number != k)
        raise DrafttraceError(
            f"The layout {run.layout.id} numbers its samples by the rows of a table, and '{run.collection.path}' has no "
            f"sample {gap} (its samples are {min(own)} to {max(own)}, {len(own)} of them); number them anew with --lose "
            "sample-numbers, or choose another layout."
        )


def _number(run: Run, ref: SampleRef, told: _Told) -> int:
    """The number of a sample in OUT. Raises DrafttraceError where those before it leave a gap in a table."""
    if not run.layout.rows or ref.number == len(told.places):
        return ref.number
    if not run.lose_numbers:
        raise DrafttraceError(
            f"The layout {run.layout.id} numbers its samples by the rows of a table, and #{len(told.places)}, which begins "
            "after token 0, is none; number them anew with --lose sample-numbers, too, or choose another layout."
        )
    return len(told.places)


def _refuse_taken(run: Run, out: Path) -> None:
    """--force replaces a folder that a conversion wrote, and nothing else: a dump may not be there to be made again."""
    if not out.is_dir():
        return
    if out.samefile(Path.cwd()):
        raise OutputExists(
            f"The output '{run.out}' is the folder that you are in, which a whole new one would replace; give it another "
            "name, or start from elsewhere."
        )
    if not any(out.iterdir()):
        return
    if not run.force:
        raise OutputExists(
            f"The output '{run.out}' exists already; give another name, or --force to replace it where a conversion of "
            "several samples wrote it."
        )
    if not is_converted(out):
        raise OutputExists(
            f"The folder '{run.out}' was not written by a conversion of several samples, so --force does not replace it; "
            "give another name."
        )
    own = re.compile(_pattern(run.layout))
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_file() and name not in {MARK, Journal.NAME} and not own.fullmatch(name):
            raise OutputExists(
                f"The folder '{run.out}' holds '{name}', which is nothing of the layout {run.layout.id}, so --force does "
                "not replace it; give another name."
            )


def _take_place(folder: Path, out: Path) -> None:
    """Give the whole folder its name. What is replaced goes last: there is always one whole folder."""
    old = out.with_name(f".{out.name}.replaced")
    if old.is_dir() and not is_converted(old):
        raise OutputExists(f"The folder '{old}', which the old output would become, is there; move it away.")
    if out.is_dir() and any(out.iterdir()):
        if old.is_dir():
            shutil.rmtree(old)
        os.rename(out, old)
    os.rename(folder, out)  # an empty folder gives way
    if old.is_dir():
        shutil.rmtree(old)


def _pattern(layout: OutLayout) -> str:
    """The names of all files of a folder of ``layout``."""
    named = re.sub(r"\d+", r"\\d+", re.escape(layout.name(0)).replace(r"\-", "-"))
    return "|".join((named, *(re.escape(name) for name in layout.companions.FILES)))


@dataclass
class _Told:
    """What is known of a run so far. later: the samples that were left out; places: the files of the others. notes: how
    many of these have each."""

    notes: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    later: dict[int, LaterRows] = field(default_factory=dict)


def _write(run: Run, folder: Path, journal: Journal, progress: Progress | None) -> _Told:
    companions = run.layout.companions(folder)
    told = _Told()
    refs = run.collection.refs
    try:
        for done, ref in enumerate(refs):
            if progress is not None:
                progress(done, len(refs))
            try:
                _write_next(run, folder, ref, companions, told, journal)
            except DrafttraceError as error:
                kept = (
                    f" after {len(told.places)} of {len(refs)} samples, which are kept for the same command"
                    if told.places
                    else ""
                )
                raise type(error)(
                    f"Sample #{ref.number} of '{run.collection.path}' stops the conversion{kept}: {error}"
                ) from error
        if not told.places:
            raise DrafttraceError(
                f"All {len(refs)} samples of '{run.collection.path}' begin after token 0, and --lose later-passes leaves "
                "none to convert; give the passes of their prefills, too."
            )
        made = {MARK, Journal.NAME, *companions.finish(), *told.places}
    finally:
        companions.close()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if str(path.relative_to(folder)) not in made:  # of samples that the source no longer has
            path.unlink()
    if progress is not None:
        progress(len(refs), len(refs))
    return told


def _write_next(
    run: Run, folder: Path, ref: SampleRef, companions: Companions, told: _Told, journal: Journal
) -> None:
    """One sample; or a note that it is left out."""
    try:
        source = run.cut(ref.number)
    except LaterRows as later:
        told.later[ref.number] = later
        return
    number = _number(run, ref, told)
    companions.add(number, source)
    told.notes.update(dict.fromkeys(source.capture.notes, 1))
    told.left_out += left_out_of(source, run.layout.id)
    _write_one(run.layout, folder, number, source, ref, journal)
    told.places.append(run.layout.name(number))


def _write_one(
    layout: OutLayout, folder: Path, number: int, source: Sample, ref: SampleRef, journal: Journal
) -> None:
    place = folder / layout.name(number)
    digest = _digest(source, ref)
    if journal.has(place, Done(number, digest)):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    layout.write(source, place)
    journal.add(place, Done(number, digest))


def _digest(source: Sample, ref: SampleRef) -> str:
    """What a sample is made of: its file's state, and what is said of it in files beside it."""
    capture = source.capture
    last = capture.last
    try:
        stat = os.stat(ref.file)
    except OSError as error:
        raise UnreadableFile(
            f"The file '{ref.file}' cannot be read ({error.strerror}); leave the dump alone until it is converted."
        ) from None
    said = (
        [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, ref.inner, ref.part],
        capture.wiring,
        None if last is None else (str(last.norm), last.boundary),
        source.layers,
        len(source),
        None if source.mask is None else hashlib.sha256(source.mask.tobytes()).hexdigest(),
        hashlib.sha256(source.all_tokens.tobytes()).hexdigest(),
    )
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def _counted(notes: Mapping[str, int], samples: int) -> Iterator[str]:
    """Each note once, and of how many samples it is told where not of all."""
    for note, count in itertools.islice(notes.items(), _MOST_NOTES):
        yield note if count == samples else f"{note} ({count} {'sample' if count == 1 else 'samples'})"
    if (more := len(notes) - _MOST_NOTES) > 0:
        yield f"{more} more notes of single samples; drafttrace inspect shows those of each"


def _added(left_out: Iterable[str]) -> Iterator[str]:
    """``4 rows that ...`` of many samples as one line with their sum."""
    counts: dict[str, list[int]] = {}
    for text in left_out:
        number, rest = re.fullmatch(r"(?:(\d+) )?(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        counts.setdefault(rest, []).append(int(number or 0))
    for rest, numbers in counts.items():
        total = f"{sum(numbers)} " if any(numbers) else ""
        yield f"{total}{rest} ({len(numbers)} {'sample' if len(numbers) == 1 else 'samples'})"
