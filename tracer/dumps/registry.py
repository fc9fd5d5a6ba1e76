"""The list of dump layouts. A new layout is one module that calls :func:`register`, and one test.

A layout says whether a document is its own (:attr:`Layout.detect`, by content) and makes a capture of it
(:attr:`Layout.read`). Layouts that live in a whole folder use :class:`FolderLayout`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile

# Widths that no hidden size and no three hidden sizes of a public target reach, but vocabularies do.
VOCABULARY = 50_000
# Every sample of a collection is listed, and a damaged file can claim any number of them.
MOST_SAMPLES = 2_000_000


def refuse_too_many(path: Path, count: int) -> None:
    """Raise UnreadableFile where a file or folder claims more samples than anybody has."""
    if count > MOST_SAMPLES:
        raise UnreadableFile(
            f"'{path}' claims {count:,} samples, and {MOST_SAMPLES:,} is the most that drafttrace lists; dump fewer into "
            "one file or folder."
        )


def refuse_runs(folder: Path, runs: Sequence[Path]) -> None:
    """Raise DrafttraceError where a folder holds the folders of several runs."""
    if len(runs) > 1:
        named = ", ".join(f"'{run.name}'" for run in runs[:5]) + (", ..." if len(runs) > 5 else "")
        raise DrafttraceError(
            f"The folder '{folder}' holds {len(runs)} runs ({named}); give one, such as '{runs[-1]}'."
        )


@dataclass(frozen=True)
class FieldMap:
    """Which names of a file that has no layout of its own hold what; ``name[i]`` picks entry i of a list or of
    the second axis. boundaries: one per slot, or None where they are unknown."""

    slots: tuple[str, ...] = ()
    tokens: str | None = None
    last: str | None = None
    last_norm: str = "unknown"
    mask: str | None = None
    boundaries: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Request:
    """What a reader may need and a file may not say.

    hidden_size: width H of one slot. inferred: H is the other side's or the target's, which the file may contradict;
    what the user says, it may not (see ``contradiction``). layers: decoder layers n of the target. vocabulary: how many
    tokens it has, which is the width of its logits. layer_ids: what the user says the layer ids were, in the numbering of
    the file's own project, or in the one that ``numbering`` names: "O" for O(id), "B" for B(id). lenient: where the hidden
    size is missing, hand out the slots side by side as one instead of failing. tokens_only: the caller wants nothing but
    tokens; with_mask: and the loss mask, which may lie in another file.
    """

    hidden_size: int | None = None
    inferred: bool = False
    layers: int | None = None
    layer_ids: tuple[int, ...] | None = None
    numbering: str = ""
    fields: FieldMap = field(default_factory=FieldMap)
    lenient: bool = False
    tokens_only: bool = False
    with_mask: bool = False
    vocabulary: int | None = None

    def told(self, hidden_size: int | None, layers: int | None, vocabulary: int | None = None) -> Request:
        """The same request with what is known from elsewhere, in the place of what the user leaves open."""
        unsaid = self.hidden_size is None and hidden_size is not None
        return replace(
            self,
            hidden_size=hidden_size if unsaid else self.hidden_size,
            inferred=unsaid or self.inferred,
            layers=layers if self.layers is None else self.layers,
            vocabulary=vocabulary if self.vocabulary is None else self.vocabulary,
        )

    def is_vocabulary(self, width: int) -> bool:
        """Whether a lone state of that width is logits: it is as wide as the target's vocabulary, or wider than any state.

        One that is merely wider than the target's hidden states is a state of another target.
        """
        hidden = self.hidden_size
        if hidden is not None and width in {hidden, 3 * hidden}:
            return False
        return width >= VOCABULARY or width == self.vocabulary

    def hidden_for(self, width: int) -> int | None:
        """The hidden size, as far as it can tell what a lone state of that width is: one state, or three side by side.

        Where it is only inferred and the state is neither, the file is of another target: None, as if nobody had told it.
        """
        hidden = self.hidden_size
        return None if hidden is None or (self.inferred and width not in {hidden, 3 * hidden}) else hidden


@dataclass(frozen=True)
class Layout:
    """A layout of one file. project: who writes it; the README groups the layouts by it. detect gives the reason why a
    document is of it, or None. count: samples in it. several: there may be more than one, so that every file of a folder
    has to be opened to number its samples. ids: what a layer id of the user means in it, as ``O(id)`` or ``B(id)``; empty
    where there are no slots, or the file names them. of_run: those of the files of a folder that one run of one process
    wrote; raises DrafttraceError where the folder holds several runs."""

    id: str
    project: str
    title: str
    detect: Callable[[Document, Request], str | None]
    read: Callable[[Document, int, Request], Capture]
    count: Callable[[Document], int] = lambda _document: 1
    several: bool = False
    ids: str = ""
    of_run: Callable[[Path, Sequence[Path]], Sequence[Path]] = lambda _folder, files: files


@dataclass(frozen=True)
class SampleRef:
    """Where one sample lies: its number as the user writes it, its file, and its place inside the file. part: which of
    several at that place, where a layout has such, as the requests of one step."""

    number: int
    file: Path
    inner: int = 0
    part: int = 0


def _files_of_samples(_folder: Path, samples: Sequence[SampleRef]) -> Collection[Path]:
    return {ref.file for ref in samples}


@dataclass(frozen=True)
class FolderLayout:
    """A layout of a whole folder, with files that mean nothing alone. many_runs: its writer is told a base folder, and
    makes one such folder in it for each run. parts: the files that hold its samples; others in it are none of it.
    project, ids: as of a Layout."""

    id: str
    project: str
    title: str
    detect: Callable[[Path], str | None]
    samples: Callable[[Path], Sequence[SampleRef]]
    read: Callable[[Path, SampleRef, Request], Capture]
    many_runs: bool = False
    ids: str = ""
    parts: Callable[[Path, Sequence[SampleRef]], Collection[Path]] = _files_of_samples


_LAYOUTS: dict[str, Layout] = {}
_FOLDERS: dict[str, FolderLayout] = {}
_loaded = False


def register(layout: Layout | FolderLayout) -> None:
    """Add a layout. Raises ValueError for an id that is taken."""
    taken = layout.id in (_LAYOUTS if isinstance(layout, Layout) else _FOLDERS)
    if taken:
        raise ValueError(f"the format id {layout.id} is registered twice")
    if isinstance(layout, Layout):
        _LAYOUTS[layout.id] = layout
    else:
        _FOLDERS[layout.id] = layout


def layouts() -> Mapping[str, Layout]:
    """Every layout of one file, by id."""
    _load()
    return _LAYOUTS


def folder_layouts() -> Mapping[str, FolderLayout]:
    """Every layout of a folder, by id."""
    _load()
    return _FOLDERS


def format_ids() -> list[str]:
    """Every id that ``--format`` takes, sorted."""
    return sorted({*layouts(), *folder_layouts()})


def _load() -> None:
    """Import every module whose name starts with ``from_``: each registers its layouts.

    Their order is that of the modules' names, whichever was imported first; layouts from elsewhere come last.
    """
    global _loaded
    if _loaded:
        return
    from drafttrace.tracer import dumps

    names = sorted(info.name for info in pkgutil.iter_modules(dumps.__path__) if info.name.startswith("from_"))
    modules = [f"{dumps.__name__}.{name}" for name in names]
    for module in modules:
        importlib.import_module(module)
    for table in (_LAYOUTS, _FOLDERS):
        _order(table, modules)
    _loaded = True


def _order(table: dict[str, Any], modules: Sequence[str]) -> None:
    place = {module: k for k, module in enumerate(modules)}
    ordered = sorted(table.items(), key=lambda item: place.get(item[1].read.__module__, len(place)))
    table.clear()
    table.update(ordered)
