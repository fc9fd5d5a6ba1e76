"""Where command output goes: human text to the terminal, the machine form to a file or standard output."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from drafttrace.tracer import report_file
from drafttrace.tracer.errors import OutputExists
from drafttrace.tracer.printable import utf8
from drafttrace.tracer.report_file import dump_json as dump_json
from drafttrace.tracer.report_file import is_stream

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


def console(*, stderr: bool = False) -> Console:
    """A rich console: plain when piped, NO_COLOR honoured, wide enough for tables when not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 120
    if stream.isatty():
        return Console(stderr=stderr, highlight=False, width=width)
    return Console(file=cast("IO[str]", _Trimmed(stream)), highlight=False, width=width)


class _Trimmed:
    """A stream without the spaces that fill lines up to the terminal's width: in a file or a pipe they are only in the
    way of whoever compares or pastes it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._stream.write(_FILLING.sub("", text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def check_writable(path: Path, *, force: bool, what: str = "output") -> None:
    """Raise OutputExists unless a new file can be made at ``path`` (or replaced, with ``force``)."""
    if path.is_dir():
        raise OutputExists(f"The {what} '{path}' is a folder; give a file name.")
    refuse_device(path, what)
    if os.path.lexists(path) and not force:
        raise OutputExists(f"The {what} '{path}' exists already; give another name, or --force to replace it.")
    from drafttrace.tracer.open import is_trace_file

    if path.is_file() and path.stat().st_size > 0 and not is_trace_file(path):
        raise OutputExists(
            f"The {what} '{path}' is there and is no trace, or not a whole one; give another name, or delete it first."
        )
    folder = path.parent
    if not folder.is_dir():
        raise OutputExists(f"The folder '{folder}' of the {what} does not exist; make it first.")
    try:  # os.access says yes to root on a read-only file system, so try for real
        handle, probe = tempfile.mkstemp(prefix=".drafttrace-", dir=folder)
    except OSError as error:
        raise OutputExists(
            f"The {what} '{path}' cannot be written ({error.strerror}); choose a folder that you may write to."
        ) from None
    os.close(handle)
    os.unlink(probe)


def check_appendable(path: Path, what: str = "output") -> None:
    """Raise OutputExists unless lines can be appended at ``path``, a pipe and /dev/stderr among them; makes nothing."""
    if path.is_dir():
        raise OutputExists(f"The {what} '{path}' is a folder; give a file name.")
    if not path.parent.is_dir():
        raise OutputExists(f"The folder '{path.parent}' of the {what} does not exist; make it first.")
    if path.exists() and not path.is_file():
        return
    there = path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise OutputExists(
            f"The {what} '{path}' cannot be written ({error.strerror}); give another name."
        ) from None
    if not there:
        path.unlink()


_STDOUT = "-"
_FILLING = re.compile(r" +(?=\n)")


def takes_stdout(*paths: Path | str | None) -> bool:
    """Whether one of the outputs is standard output, ``-``: then nothing else is printed there."""
    return any(path is not None and str(path) == _STDOUT for path in paths)


def refuse_stdout(path: Path | None, what: str) -> None:
    """Raise OutputExists for ``-`` where a file is needed, such as one of HDF5. what: as a sentence begins with it."""
    if takes_stdout(path):
        raise OutputExists(f"{what} cannot be written to standard output ('-'); give a file name.")


def write_text(path: Path, text: str) -> None:
    """Write a report to a file, whole or not at all, or to standard output, ``-``."""
    write_bytes(path, utf8(text))


def write_bytes(path: Path, data: bytes) -> None:
    """:func:`write_text` for what is no text."""
    if not takes_stdout(path):
        report_file.write_bytes(path, data)
        return
    if b"\0" in data and sys.stdout.isatty():
        raise OutputExists("A picture cannot be shown by a terminal; give a file name, or pipe it into a program.")
    _to_stdout(data)


def refuse_twice(*paths: Path | str | None) -> None:
    """Raise OutputExists where two outputs of one command are one file: the second would replace the first, or on
    standard output no program could tell where it begins."""
    if sum(takes_stdout(path) for path in paths) > 1:
        raise OutputExists("Two outputs go to standard output ('-'); give all but one of them a file name.")
    named = [Path(path) for path in paths if path is not None and not takes_stdout(path)]
    files = [path for path in named if not is_stream(path)]
    for index, path in enumerate(files):
        if any(os.path.realpath(path) == os.path.realpath(other) for other in files[:index]):
            raise OutputExists(f"Two outputs are the same file '{path}'; give each its own name.")


def refuse_device(path: Path, what: str = "output") -> None:
    """Raise OutputExists for /dev/null and its like: a file moved there takes the device's place, for everybody."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OutputExists(f"The {what} '{path}' is a device or pipe, which no file replaces; give a file name.")


def write_json(text: str) -> None:
    """JSON on standard output, always in UTF-8: its reader is a program, whatever the terminal can show."""
    _to_stdout(utf8(text))


def _to_stdout(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def emit(
    target: str | None, value: Callable[[], Mapping[str, Any]], human: Callable[[], None], *, quiet: bool = False
) -> None:
    """The two forms of every command's answer.

    ``target`` is the value of ``--json``: None prints only the human form, ``-`` only the machine form, a file name
    both. quiet: without the human form, as where another output is ``-`` (:func:`takes_stdout`).
    """
    if takes_stdout(target):
        write_json(dump_json(value()))
        return
    if target is not None:
        write_text(Path(target), dump_json(value()))
    if not quiet:
        human()


@contextmanager
def byte_progress(label: str, *, quiet: bool = False) -> Iterator[Callable[[int, int | None], None] | None]:
    """A progress bar on stderr, only where that is a terminal; yields ``update(done, total)`` or None."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def update(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield update


@contextmanager
def sample_progress(*, quiet: bool = False, at_once: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of samples on stderr, only where that is a terminal; yields ``update(done, total)`` or None.

    at_once: also before the first update, while what goes before the samples is read.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("samples", total=None, visible=at_once)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def spinner() -> str:
    """The name of rich's spinner that standard error can show: dots of braille, or a line that turns."""
    try:
        "\N{BRAILLE PATTERN DOTS-124}".encode(getattr(sys.stderr, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "line"
    return "dots"


@contextmanager
def status(label: str, *, quiet: bool = False, after: float = 0.0) -> Iterator[None]:
    """A spinner on stderr while something runs, only where that is a terminal. after: seconds that it may take unseen."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    import threading

    shown: list[Status] = []

    def show() -> None:
        shown.append(console(stderr=True).status(label, spinner=spinner()))
        shown[0].start()

    timer = threading.Timer(after, show)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for one in shown:
            one.stop()
