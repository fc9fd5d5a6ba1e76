"""Converts every sample of a dump: sample by sample into a folder that takes its name only when it is whole.

Nothing half-written is ever taken for whole: the samples gather in the hidden folder ``.OUT.unfinished``, which no command
reads as a dump, and every file in it appears under its name only when it is complete. A run that was killed, or that met
a sample that cannot be converted, is continued by the same command; samples whose source has changed meanwhile are
written again, those that have gone are removed. No more than one sample is open at a time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafttrace.tracer.convert_journal import MARK, Done, Journal, is_converted, put_mark
from drafttrace.tracer.convert_layouts import OutLayout
from drafttrace.tracer.convert_recording import left_out_of
from drafttrace.tracer.convert_sample import Sample
from drafttrace.tracer.dumps.folder import Collection
from drafttrace.tracer.dumps.registry import SampleRef
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnreadableFile

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Run:
    """One conversion of a whole dump.

    cut: the sample of a number, cut down for the layout. facts: what tells this run from another with the same OUT,
    as JSON takes it. lose_numbers: samples may be numbered anew where the layout's numbers have no gaps.
    """

    collection: Collection
    layout: OutLayout
    out: Path
    cut: Callable[[int], Sample]
    facts: Mapping[str, Any]
    lose_numbers: bool
    force: bool


def convert_all(run: Run, progress: Progress | None = None) -> list[str]:
    """Write ``run.out``; gives what was left out, of all samples together.

    Raises DrafttraceError naming the sample that cannot be converted (those before it are kept for the next time), and
    OutputExists where OUT is taken or cannot be written.
    """
    numbers = _numbers(run)
    out = Path(os.path.realpath(run.out))
    _refuse_taken(run, out)
    folder = out.with_name(f".{out.name}.unfinished")
    try:
        with Journal(folder, run.facts, anew=run.force) as journal:
            left_out = _write(run, folder, numbers, journal, progress)
            put_mark(folder, run.facts, len(numbers))
            _take_place(folder, out)
        (out / Journal.NAME).unlink(missing_ok=True)
    except OSError as error:
        raise OutputExists(
            f"The folder '{folder}', which becomes '{run.out}', cannot be written ({error.strerror or error}); make room "
            "or choose another, the same command goes on from there."
        ) from None
    return left_out


def _numbers(run: Run) -> dict[int, SampleRef]:
    """Samples by their numbers in OUT, which are those of the source."""
    refs = run.collection.refs
    own = [ref.number for ref in refs]
    if not run.layout.rows or own == list(range(len(own))):
        return {ref.number: ref for ref in refs}
    if not run.lose_numbers:
        gap = next(k for k, number in enumerate(own) if number != k)
        raise DrafttraceError(
            f"The layout {run.layout.id} numbers its samples by the rows of a table, and '{run.collection.path}' has no "
            f"sample {gap} (its samples are {min(own)} to {max(own)}, {len(own)} of them); number them anew with --lose "
            "sample-numbers, or choose another layout."
        )
    return dict(enumerate(refs))


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


def _write(
    run: Run, folder: Path, numbers: Mapping[int, SampleRef], journal: Journal, progress: Progress | None
) -> list[str]:
    companions = run.layout.companions(folder)
    left_out: list[str] = []
    count = 0
    try:
        for number, ref in numbers.items():
            if progress is not None:
                progress(count, len(numbers))
            try:
                source = run.cut(ref.number)
                companions.add(number, source)
                left_out += left_out_of(source, run.layout.id)
                _write_one(run.layout, folder, number, source, ref, journal)
            except DrafttraceError as error:
                kept = (
                    f" after {count} of {len(numbers)} samples, which are kept for the same command"
                    if count
                    else ""
                )
                raise type(error)(
                    f"Sample #{ref.number} of '{run.collection.path}' stops the conversion{kept}: {error}"
                ) from error
            count += 1
        made = {MARK, Journal.NAME, *companions.finish(), *map(run.layout.name, numbers)}
    finally:
        companions.close()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if str(path.relative_to(folder)) not in made:  # of samples that the source no longer has
            path.unlink()
    if progress is not None:
        progress(count, len(numbers))
    return list(_added(left_out))


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
        [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, ref.inner],
        capture.wiring,
        None if last is None else (str(last.norm), last.boundary),
        source.layers,
        len(source),
        None if source.mask is None else hashlib.sha256(source.mask.tobytes()).hexdigest(),
        hashlib.sha256(source.all_tokens.tobytes()).hexdigest(),
    )
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def _added(left_out: Iterable[str]) -> Iterator[str]:
    """``4 rows that ...`` of many samples as one line with their sum."""
    counts: dict[str, list[int]] = {}
    for text in left_out:
        number, rest = re.fullmatch(r"(?:(\d+) )?(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        counts.setdefault(rest, []).append(int(number or 0))
    for rest, numbers in counts.items():
        total = f"{sum(numbers)} " if any(numbers) else ""
        yield f"{total}{rest} ({len(numbers)} {'sample' if len(numbers) == 1 else 'samples'})"
