"""The samples of one file, and of the files of a folder, with their numbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from drafttrace.tracer.dumps.document import Document, open_document
from drafttrace.tracer.dumps.registry import Layout, SampleRef, layouts, refuse_too_many
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes

_FEW = 8  # numbers that are told one by one


def inside(layout: Layout, document: Document) -> list[SampleRef]:
    """The samples in one file. Raises UnreadableFile where there are none, or more than anybody has."""
    count = layout.count(document)
    if count == 0:
        raise UnreadableFile(f"The file '{document.path}' holds no samples; dump it again.")
    refuse_too_many(document.path, count)
    return [SampleRef(k, document.path, k) for k in range(count)]


def numbered(folder: Path, layout: Layout, files: Sequence[Path]) -> list[SampleRef]:
    """Samples numbered as the file names number them where those numbers are distinct, else by position; by position,
    too, where a file holds several."""
    files = layout.of_run(folder, files)
    if len(files) == 1:
        return inside(layout, open_document(files[0]))
    counts = [_count(layout, path) for path in files] if layout.several else [1]
    if max(counts) > 1:
        refuse_too_many(folder, sum(counts))
        places = [(path, k) for path, count in zip(files, counts, strict=True) for k in range(count)]
        return [SampleRef(number, path, k) for number, (path, k) in enumerate(places)]
    numbers = [_number(path) for path in files]
    if None not in numbers and len(set(numbers)) == len(numbers):
        return [SampleRef(number, path) for number, path in zip(numbers, files, strict=True) if number is not None]
    return [SampleRef(k, path) for k, path in enumerate(files)]


def _count(layout: Layout, path: Path) -> int:
    """The samples in one file of a folder; 1 for one that cannot be read: whoever asks for it learns why."""
    try:
        stat = path.stat()
        return _counted(layout.id, path, (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    except (DrafttraceError, OSError):
        return 1


@functools.lru_cache(maxsize=1 << 16)
def _counted(layout: str, path: Path, _stamp: tuple[int, ...]) -> int:
    """As :func:`_count`, once for a command that opens a folder several times."""
    if FileBytes(path).text(0, 16).lstrip()[:1] == b"{":  # JSON, slow to parse: what is no list is one sample
        return 1
    return max(1, layouts()[layout].count(open_document(path)))


def _number(path: Path) -> int | None:
    """The number in a name such as ``data_17.ckpt`` or ``hs_17.safetensors``; None where there is none or several."""
    found = re.findall(r"\d+", path.name.split(".", 1)[0])
    return int(found[0]) if len(found) == 1 and len(found[0]) <= 12 else None


def counted(numbers: Sequence[int]) -> str:
    """Numbers of samples in words: a range says nothing of the ones that it lacks."""
    *others, last = sorted(numbers)
    if not others or len(numbers) == last - others[0] + 1:
        return f"{others[0]} to {last}" if others else f"{last}"
    if len(numbers) > _FEW:
        return f"{others[0]} to {last} with gaps"
    return f"{', '.join(map(str, others))} and {last}"
