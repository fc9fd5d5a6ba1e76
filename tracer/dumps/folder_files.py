"""The files of a folder: which of them may hold samples of a dump, and which do not belong to it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from drafttrace.tracer.dumps.no_samples import is_sidecar
from drafttrace.tracer.dumps.registry import MOST_SAMPLES, folder_layouts
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile

SUFFIXES = (".pt", ".ckpt", ".ckpt.gz", ".pt.gz", ".pth", ".bin", ".safetensors", ".npz", ".h5", ".hdf5")
_TEXT = ".json"
# Names of files that may hold states or tokens, and that no folder is searched for; one of them may be read by itself.
_UNREAD = (".pkl", ".pickle", ".npy", ".gz", ".parquet", ".zst")
_MAYBE_TRACES = (".h5", ".hdf5")


def is_folder(path: Path) -> bool:
    """Whether a path is a folder that may be read, or a file. Raises UnreadableFile for what is neither."""
    try:
        if path.is_dir():
            with os.scandir(path):
                return True
        if path.is_file():
            return False
        if path.exists():
            raise UnreadableFile(f"'{path}' is a device or pipe and no file; copy what it gives into a file first.")
        if path.is_symlink():
            raise UnreadableFile(
                f"'{path}' is a link to '{os.readlink(path)}', and nothing is behind it; check the link."
            )
        raise UnreadableFile(f"There is no file or folder '{path}'; check the path.")
    except PermissionError as error:
        raise UnreadableFile(f"'{path}' cannot be read ({error.strerror}); check its permissions.") from None
    except OSError as error:
        raise UnreadableFile(f"The path '{path}' cannot be followed ({error.strerror}); check the link.") from None


def sample_files(folder: Path) -> list[Path]:
    """Every file below a folder that could be a sample, in natural order; links to folders are followed once."""
    return _samples_among(folder, data_files(folder)[0])


def samples_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Those of :func:`sample_files` that are samples of one dump, and the files besides that are none: traces, the parts
    of a folder that is a dump by itself, and JSON beside tensors. Where no tensors are there besides, they are all that
    there is."""
    from drafttrace.tracer.open import is_trace_file

    files, unread = data_files(folder)
    parts = {place for place in {path.parent for path in files} - {folder} if _is_one_dump(place)}
    kept = [p for p in files if p.parent not in parts and not (p.suffix in _MAYBE_TRACES and is_trace_file(p))]
    if len(kept) < len(files) and all(path.suffix == _TEXT for path in kept):
        kept = files
    samples = _samples_among(folder, kept)
    return samples, [*others_than(files, samples), *unread]


def others_than(files: Sequence[Path], some: Collection[Path]) -> list[Path]:
    """The files that are none of ``some``."""
    own = frozenset(some)
    return [path for path in files if path not in own]


def _is_one_dump(folder: Path) -> bool:
    try:
        return any(layout.detect(folder) is not None for layout in folder_layouts().values())
    except DrafttraceError:  # whoever reads its files says so
        return False


def data_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Every file below a folder that may hold samples, by its name, and the data files that are not looked into; none that
    stands beside samples or is of a model."""
    files = [path for path in every_file(folder) if not is_sidecar(path)]
    known = [path for path in files if path.name.endswith((*SUFFIXES, _TEXT))]
    return known, [path for path in files if path.name.endswith(_UNREAD) and not path.name.endswith(SUFFIXES)]


def _samples_among(folder: Path, files: Sequence[Path]) -> list[Path]:
    tensors = [path for path in files if path.suffix != _TEXT]  # beside these, JSON says something of them
    return sorted(tensors or files, key=lambda path: natural(str(path.relative_to(folder))))


def every_file(folder: Path) -> Iterator[Path]:
    """Every readable file below. A link to a folder is followed (dumps live on other disks), once, and never one to a
    folder above, which would be a loop."""
    count = 0
    root = os.path.realpath(folder)
    seen = {root}

    def enters(where: str, name: str) -> bool:
        if name.startswith((".", "__pycache__")):
            return False
        real = os.path.realpath(os.path.join(where, name))
        if real in seen or os.path.join(root, "").startswith(os.path.join(real, "")):
            return False
        seen.add(real)
        return True

    for where, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in sorted(folders) if enters(where, name)]
        for name in names:
            path = Path(where, name)
            if name.startswith(".") or not os.path.isfile(path):
                continue
            count += 1
            if count > MOST_SAMPLES:
                raise UnreadableFile(
                    f"The folder '{folder}' holds more than {MOST_SAMPLES} files; give one below it."
                )
            yield path


def natural(text: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts]
