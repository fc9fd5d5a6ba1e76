"""A path as a numbered set of samples: one file, a list inside a file, or a folder of sample files."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps import build, state_fields
from drafttrace.tracer.dumps.document import Document, is_gzip, open_document
from drafttrace.tracer.dumps.folder_files import (
    SUFFIXES,
    data_files,
    every_file,
    is_folder,
    natural,
    others_than,
    sample_files,
    samples_below,
)
from drafttrace.tracer.dumps.inflated_files import keeps_more
from drafttrace.tracer.dumps.no_samples import (
    WEIGHTS,
    refuse_format_of_trace,
    refuse_no_samples,
    refuse_unfinished,
)
from drafttrace.tracer.dumps.numbering import counted, inside, numbered
from drafttrace.tracer.dumps.registry import (
    FieldMap,
    FolderLayout,
    Layout,
    Request,
    SampleRef,
    folder_layouts,
    layouts,
    refuse_runs,
)
from drafttrace.tracer.dumps.unread_fields import with_unread
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat, UnreadableFile
from drafttrace.tracer.grammar import in_number

_PROBES = 12
_MOST_NAMED = 6


@dataclass(frozen=True)
class Collection:
    """The samples of a path. layout: the id; why: how it was recognised.

    left_out: names of the files of the folder that are none of its samples, such as those of another format than the one
    asked for, traces, and parts of folders that are dumps by themselves. overruled: no file is of the format asked for by
    its content, so all are read as if they were. fields: the names that the user gave, without which a sample of no known
    layout cannot be read, whoever asks for it.
    """

    path: Path
    layout: Layout | FolderLayout
    why: str
    refs: Sequence[SampleRef]
    left_out: tuple[str, ...] = ()
    overruled: bool = False
    fields: FieldMap = field(default_factory=FieldMap)

    def read(self, ref: SampleRef, request: Request) -> Capture:
        """One sample. Raises DrafttraceError with what is wrong with it."""
        if request.fields == FieldMap():
            request = replace(request, fields=self.fields)
        capture = self._read(ref, request)
        notes = tuple(in_number(note) for note in (*self.notes, *capture.notes))
        return replace(capture, notes=notes) if notes != capture.notes else capture

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of the folder, whichever of its samples is read."""
        if not self.left_out:
            return ()
        named = ", ".join(f"'{name}'" for name in self.left_out[:_MOST_NAMED])
        more = len(self.left_out) - _MOST_NAMED
        files = "1 file" if len(self.left_out) == 1 else f"{len(self.left_out)} files"
        named += f" and {more} more" if more > 0 else ""
        return (f"{files} of the folder left out, of another format than {self.layout.id}: {named}",)

    def _read(self, ref: SampleRef, request: Request) -> Capture:
        if isinstance(self.layout, FolderLayout):
            return self.layout.read(self.path, ref, request)
        document = open_document(ref.file)
        among_others = len(self.refs) > 1 and self.path.is_dir() and not self.overruled
        if among_others and self.layout.detect(document, request) is None:
            layout, _why = detect(document, request)
            raise UnknownFormat(
                f"The folder '{self.path}' mixes formats: '{ref.file.name}' is {layout.id}, the others are "
                f"{self.layout.id}; give one file, or move the others away."
            )
        capture = self.layout.read(document, ref.inner, request)
        return with_unread(capture, document, ref.inner, request)

    def refuse_strangers(self, request: Request) -> None:
        """Raise UnknownFormat naming the files of a folder that are of another format, for whoever reads all of them.

        Opening a folder looks at a few of its files. One that cannot be read is none: its reader says why.
        """
        if isinstance(self.layout, FolderLayout) or not self.path.is_dir() or self.overruled or len(self.refs) < 2:
            return
        strangers = []
        for file in dict.fromkeys(ref.file for ref in self.refs):
            with contextlib.suppress(DrafttraceError):
                if is_gzip(file) and not keeps_more():  # its reader inflates it and says it, instead of twice
                    continue
                if not is_of(self.layout, file, request):
                    strangers.append(file)
        if strangers:
            names = _names(self.path, strangers)
            listed = ", ".join(f"'{name}'" for name in names[:_MOST_NAMED]) + (
                ", ..." if names[_MOST_NAMED:] else ""
            )
            raise UnknownFormat(
                f"The folder '{self.path}' mixes formats: {len(names)} of its {len(self.refs)} files are not "
                f"{self.layout.id} as the others ({listed}); leave them out with --format {self.layout.id}, or move "
                "them away."
            )

    def spec(self, ref: SampleRef) -> str | None:
        """``PATH#i`` of one of several samples, where the path of its file would name others, too; else None."""
        shared = ref.file == self.path or ref.file in self._shared
        return f"{self.path}#{ref.number}" if len(self.refs) > 1 and shared else None

    @functools.cached_property
    def _shared(self) -> frozenset[Path]:
        """The files that hold several samples."""
        return frozenset(file for file, count in Counter(ref.file for ref in self.refs).items() if count > 1)

    def ref(self, number: int) -> SampleRef:
        """The sample of that number. Raises DrafttraceError naming what there is."""
        for ref in self.refs:
            if ref.number == number:
                return ref
        numbers = [ref.number for ref in self.refs]
        raise DrafttraceError(
            f"'{self.path}' has no sample {number}: it holds {len(numbers)}, numbered {counted(numbers)}; choose one "
            "of these."
        )


def open_collection(path: Path, format_id: str | None = None, request: Request | None = None) -> Collection:
    """Find out what ``path`` holds. Raises UnreadableFile, or UnknownFormat where it is nothing or more than one."""
    asked = request or Request()
    found = _open_folder(path, format_id, asked) if is_folder(path) else _open_file(path, format_id, asked)
    return replace(found, fields=asked.fields)


def _open_file(path: Path, format_id: str | None, asked: Request) -> Collection:
    if format_id is not None:
        _refuse_folder_format(path, format_id)
        refuse_format_of_trace(path, format_id)
    document = open_document(path)
    layout, why = recognise(document, format_id, asked)
    return Collection(path, layout, why, inside(layout, document))


def _refuse_folder_format(path: Path, format_id: str) -> None:
    """Raise UnknownFormat where the format that the user named is that of a whole folder, and ``path`` is none of it."""
    layout = folder_layouts().get(format_id.upper())
    if layout is None or layout.id in layouts():
        return
    if path.is_dir():
        raise UnknownFormat(
            f"The folder '{path}' is no {layout.title} ({layout.id}), nor are the folders in it; give the folder that its "
            "files stand in, or leave --format out."
        )
    raise UnknownFormat(
        f"{layout.id} is the format of a folder, and '{path}' is a file; give the folder '{path.parent}'."
    )


def recognise(document: Document, format_id: str | None, request: Request) -> tuple[Layout, str]:
    """The layout that the user named, else the one that the content shows."""
    return detect(document, request) if format_id is None else forced(document, format_id, request)


def detect(document: Document, request: Request) -> tuple[Layout, str]:
    """The one layout that a document is of, and why. Raises UnknownFormat naming the candidates."""
    found = _candidates(document, request)
    if len(found) == 1:
        return found[0]
    if not found:
        said = request.hidden_size if not request.inferred else None
        if said is not None and (without := _candidates(document, replace(request, hidden_size=None))):
            names = " or ".join(layout.id for layout, _why in without)
            raise UnknownFormat(
                f"--hidden-size is {said}, and '{document.path}', which is {names} without it, has no state of that width"
                f"{_widths(document)}; leave the option out, or correct it."
            )
        refuse_no_samples(document)
        raise UnknownFormat(
            f"The file '{document.path}' holds {_contents(document)}, which is no dump format that drafttrace knows; "
            "name its fields with --slots and --tokens, or the format with --format."
        )
    names = " or ".join(layout.id for layout, _why in found)
    widths = state_fields.state_widths(document).values()
    if request.hidden_size is not None and all(request.hidden_for(width) is None for width in widths):
        raise UnknownFormat(
            f"The file '{document.path}' is of another target, whichever of {names} it is: the hidden size is "
            f"{request.hidden_size}, and none of its states has that width{_widths(document)}; give the target that the "
            "dump was made with, or say with --format which it is."
        )
    raise UnknownFormat(f"The file '{document.path}' could be {names}; say which with --format.")


def _widths(document: Document) -> str:
    """The width of every state on the top level, in brackets."""
    said = ", ".join(
        f"'{name}' is {width} wide" for name, width in sorted(state_fields.state_widths(document).items())
    )
    return f" ({said})" if said else ""


def _candidates(document: Document, request: Request) -> list[tuple[Layout, str]]:
    return [(layout, why) for layout in layouts().values() if (why := layout.detect(document, request)) is not None]


def forced(document: Document, format_id: str, request: Request) -> tuple[Layout, str]:
    """The layout that the user named, and why. Raises UnknownFormat for an id that there is not."""
    layout = named_layout(format_id)
    return layout, layout.detect(document, request) or build.FORCED


def named_layout(format_id: str) -> Layout:
    """The layout of a file with that id. Raises UnknownFormat where there is none."""
    by_name = {name.upper(): layout for name, layout in layouts().items()}
    layout = by_name.get(format_id.upper())
    if layout is None:
        raise UnknownFormat(
            f"There is no format '{format_id}' for a file; choose one of {', '.join(sorted(layouts()))}."
        )
    return layout


def _contents(document: Document) -> str:
    value = document.value
    if isinstance(value, dict):
        names = sorted(document.keys)
        if document.container.startswith("hdf5"):
            from drafttrace.tracer.dumps.hdf5_file import field_names

            names = field_names(document.path) if document.container == "hdf5" else []
        nothing = {str(name) for name, item in value.items() if item is None}
        names = sorted(names, key=lambda name: name not in nothing)  # these explain most
        named = [repr(name[:40]) + (" (None)" if name in nothing else "") for name in names[:8]]
        shown = ", ".join(named) + (", ..." if len(names) > 8 else "")
        return f"the fields {shown}" if names else f"no fields ({document.container})"
    if isinstance(value, list):
        return f"a list of {len(value)} entries"
    return f"a single {type(value).__name__}"


def _run_folder(path: Path, format_id: str | None) -> Path:
    """The one run below a base folder, into which SGLang's dumper writes each run as a folder; else ``path`` itself.

    Raises DrafttraceError naming the runs where there are several.
    """
    runs = [
        folder
        for layout in folder_layouts().values()
        if layout.many_runs
        and (format_id is None or format_id.upper() == layout.id)
        and layout.detect(path) is None
        for name in sorted(next(os.walk(path), ("", [], []))[1])  # of one that may not be read, none
        if layout.detect(folder := path / name) is not None
    ]
    if not runs or any(not any(run in file.parents for run in runs) for file in sample_files(path)):
        return path
    refuse_runs(path, runs)
    return runs[0]


def _open_folder(path: Path, format_id: str | None, request: Request) -> Collection:
    refuse_unfinished(path)
    given, path = path, _run_folder(path, format_id)
    found = [
        (layout, why)
        for layout in folder_layouts().values()
        if (format_id is None or format_id.upper() == layout.id) and (why := layout.detect(path)) is not None
    ]
    if len(found) > 1:
        names = " or ".join(layout.id for layout, _why in found)
        raise UnknownFormat(f"The folder '{path}' could be {names}; say which with --format.")
    if found:
        folder_layout, why = found[0]
        samples = folder_layout.samples(path)
        if not samples:
            raise UnreadableFile(f"The folder '{path}' holds no samples of {folder_layout.id}; dump it again.")
        known, unread = data_files(given)
        others = [*others_than(known, folder_layout.parts(path, samples)), *unread]
        return Collection(path, folder_layout, why, samples, _names(given, others))
    if format_id is not None:
        _refuse_folder_format(path, format_id)
    files, others = samples_below(path)
    if not files:
        model = next((file.name for file in every_file(path) if WEIGHTS.fullmatch(file.name)), None)
        if model is not None:
            raise UnknownFormat(
                f"The folder '{path}' holds weights ('{model}') and no samples: it looks like a model, which is given with "
                "--target or --draft; give the folder of the dump that the trainer wrote."
            )
        raise UnknownFormat(
            f"The folder '{path}' holds no file that could be a dump ({', '.join(SUFFIXES[:7])}); give the folder that "
            "the trainer wrote."
        )
    if format_id is not None:
        asked_for = _asked_for(path, files, format_id, request)
        return replace(asked_for, left_out=asked_for.left_out + _names(path, others))
    layout, reason, alone = _common_layout(path, files, request)
    if not alone:
        asked_for = _asked_for(path, files, layout.id, request)
        return replace(asked_for, why=reason, left_out=asked_for.left_out + _names(path, others))
    return Collection(path, layout, reason, numbered(path, layout, files), _names(path, others))


def _names(folder: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """The files' names below the folder, in natural order."""
    return tuple(sorted((os.path.relpath(path, folder) for path in files), key=natural))


def _asked_for(folder: Path, files: Sequence[Path], format_id: str, request: Request) -> Collection:
    """The files of a folder that are of the format that the user named; all of them where none is.

    Every file is looked at. One that cannot be opened stays: it may be a sample, and whoever asks for it learns why.
    """
    layout = named_layout(format_id)

    def is_other(path: Path) -> bool | None:
        try:
            return not is_of(layout, path, request)
        except DrafttraceError as error:
            problems.append(error)
            return None

    problems: list[DrafttraceError] = []
    others = [is_other(path) for path in files]
    if set(others) == {False}:
        return Collection(folder, layout, layout.title, numbered(folder, layout, files))
    if False in others:
        chosen = [path for path, other in zip(files, others, strict=True) if other is not True]
        refs = numbered(folder, layout, chosen)
        left_out = _names(folder, others_than(files, chosen))
        return Collection(folder, layout, layout.title, refs, left_out)
    if True not in others:
        raise problems[0]
    refuse_format_of_trace(files[0], format_id)
    return Collection(folder, layout, build.FORCED, numbered(folder, layout, files), overruled=True)


def is_of(layout: Layout, path: Path, request: Request) -> bool:
    """Whether a file of a folder is of ``layout`` by its content. Raises DrafttraceError where it cannot be opened."""
    try:
        stat = path.stat()
    except OSError:  # whoever opens it says why
        return layout.detect(open_document(path), request) is not None
    return _recognised(layout.id, path, (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino), request)


@functools.lru_cache(maxsize=1 << 16)
def _recognised(layout: str, path: Path, _stamp: tuple[int, ...], request: Request) -> bool:
    """As :func:`is_of`, once for a command that opens a folder several times."""
    return layouts()[layout].detect(open_document(path), request) is not None


def _spread(files: Sequence[Path]) -> list[Path]:
    """A dozen of the files, and the last one."""
    step = max(1, len(files) // _PROBES)
    return [*files[::step][:_PROBES], files[-1]]


def _common_layout(folder: Path, files: Sequence[Path], request: Request) -> tuple[Layout, str, bool]:
    """The layout that a spread of the files shares, why it is that, and whether every file that can be opened is of it."""
    seen: dict[str, tuple[Layout, str, Path]] = {}
    problems: list[DrafttraceError] = []
    strangers = False
    for path in _spread(files):
        document = None
        try:
            document = open_document(path)
            layout, why = detect(document, request)
        except DrafttraceError as error:
            problems.append(error)
            strangers = strangers or document is not None
            continue
        seen.setdefault(layout.id, (layout, why, path))
    if not seen:
        raise problems[0]
    if len(seen) > 1:
        listed = ", ".join(f"{name} (e.g. '{path.name}')" for name, (_layout, _why, path) in sorted(seen.items()))
        raise UnknownFormat(
            f"The folder '{folder}' mixes formats: {listed}; give one file, or say which with --format."
        )
    layout, why, _path = next(iter(seen.values()))
    return layout, why, not strangers
