"""Where a conversion may be written: never over its source, and never among the samples of another dump."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drafttrace.tracer.dumps.folder_files import sample_files
from drafttrace.tracer.errors import DrafttraceError, OutputExists

# What a folder layout writes besides its sample, by layout: files that speak for the sample, so that an old one beside a
# new sample would declare what the new one does not say. The first entry is the sample.
_OWN = {
    "speculators-v1": ("data_0.pt", "data_config.json", "sample_lengths.json"),
    "speculators": (
        "hidden_states/hs_0.safetensors",
        "data-00000-of-00001.arrow",
        "dataset_info.json",
        "state.json",
    ),
}


def refuse_in_place(source: Path, out: Path) -> None:
    """Raise OutputExists where writing ``out`` would replace ``source``, or put a file into its folder."""
    given, wanted = Path(os.path.realpath(source)), Path(os.path.realpath(out))
    same = given == wanted or given in wanted.parents or (wanted in given.parents and wanted.is_dir())
    with contextlib.suppress(OSError):
        same = same or os.path.samefile(source, out)
    if same:
        raise OutputExists(
            f"The output '{out}' is the source '{source}' or lies in one folder with it, and the output must not "
            "replace what is read; give another name."
        )


# Names that say of a file what it is; a folder of such a name would be taken for one, by people and by tools.
_FILE_SUFFIXES = frozenset(
    (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors", ".npz", ".npy", ".h5", ".hdf5", ".json", ".jsonl", ".arrow",
     ".parquet", ".gz", ".zip", ".tar", ".tgz", ".zst")
)  # fmt: skip


def refuse_no_folder(out: Path, what: str) -> None:
    """Raise OutputExists where ``out`` is a file or is named like one. what: why it is to be a folder, and of what."""
    if out.is_dir():
        return
    if os.path.lexists(out):
        raise OutputExists(f"The output '{out}' is a file, and {what}; give the name of a folder.")
    if out.suffix.lower() in _FILE_SUFFIXES:
        raise OutputExists(
            f"The output '{out}' is named like a file, and {what}; give a folder such as '{_folder_meant(out)}'."
        )


def _folder_meant(out: Path) -> Path:
    """``out`` for ``out/data_0.pt``, and ``x`` for ``x.safetensors``."""
    stem = out.name.split(".", 1)[0] or "out"
    folder = out.parent.parent if out.parent.name == "hidden_states" else out.parent
    return folder if re.fullmatch(r"(data|hs|trace)_\d+", stem) and folder.name else out.with_name(stem)


def refuse_ending(out: Path, layout: str, fitting: Sequence[str]) -> None:
    """Raise OutputExists where the name of the file says that it is something else: tools would not read it."""
    suffix = out.suffix.lower()
    if suffix in _FILE_SUFFIXES and suffix not in fitting:
        raise OutputExists(
            f"The output '{out}' ends in {out.suffix}, and a file of the layout {layout} in {fitting[0]}; give a name such "
            f"as '{out.with_name(_stem(out) + fitting[0])}'."
        )


def _stem(out: Path) -> str:
    """``x`` for ``x.ckpt.gz``, ``llama-3.1`` for ``llama-3.1.pt``."""
    stem = out
    while stem.suffix.lower() in _FILE_SUFFIXES:
        stem = stem.with_suffix("")
    return stem.name


def refuse_taken_file(out: Path, force: bool) -> None:
    """Raise OutputExists where a file is there; ``--force`` replaces states that can be read, and no file of a user's."""
    if not os.path.lexists(out):
        return
    if not _is_replaceable(out):
        raise OutputExists(
            f"The output '{out}' is there and is no trace and no dump that can be read, so nothing replaces it; give "
            "another name, or delete it first."
        )
    if not force:
        raise OutputExists(f"The output '{out}' exists already; give another name, or --force to replace it.")


def refuse_taken_folder(out: Path, layout: str, force: bool) -> None:
    """The same for a folder of one sample; an empty one is free. ``--force`` replaces the layout's own files."""
    if not out.is_dir() or not any(out.iterdir()):
        return
    own = _OWN[layout]
    _refuse_others(out, own)
    if os.path.lexists(out / own[0]):
        refuse_taken_file(out / own[0], force)
    if not force:
        raise OutputExists(f"The output '{out}' exists already; give another name, or --force to replace it.")


def _is_replaceable(out: Path) -> bool:
    """Whether a recorder, a reference or a conversion could have written the file. An empty one holds nothing."""
    from drafttrace.tracer.dumps.folder import open_collection
    from drafttrace.tracer.open import is_trace_file

    if not out.is_file():
        return False
    if out.stat().st_size == 0 or is_trace_file(out):
        return True
    try:
        return bool(open_collection(out).refs)
    except DrafttraceError:
        return False


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """A name beside ``out`` to write to; it takes the place of ``out`` when the block ends well."""
    part = out.with_name(f".{out.name}.part")
    try:
        yield part
        os.replace(part, out)
    except OSError as error:
        raise OutputExists(
            f"The output '{out}' cannot be written ({error.strerror or error}); choose another."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def write_folder(out: Path, layout: str, write: Callable[[Path], list[Path]]) -> list[Path]:
    """Let ``write`` fill a new folder, then put its files in the place of the layout's own files in ``out``.

    The old companions are gone before the new sample stands there. Returns the paths of the files.
    Raises OutputExists where ``out`` holds other samples, or cannot be written.
    """
    own = _OWN[layout]
    if out.is_dir():
        _refuse_others(out, own)
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        made = [path.relative_to(part) for path in write(part)]
        for name in own:
            (out / name).unlink(missing_ok=True)
        for place in sorted(made, key=lambda place: str(place) == own[0]):  # the sample last
            (out / place).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part / place, out / place)
    except OSError as error:
        raise OutputExists(
            f"The folder '{out}' cannot be written ({error.strerror or error}); choose another."
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [out / name for name in made]


def _refuse_others(out: Path, own: tuple[str, ...]) -> None:
    mine = {out / name for name in own}
    others = [path for path in (*sample_files(out), *sorted(out.rglob("*.arrow"))) if path not in mine]
    if others:
        raise OutputExists(
            f"The folder '{out}' holds other samples, such as '{others[0].relative_to(out)}', which the new one would be "
            "mixed with; give an empty folder."
        )


def refuse_config_above(folder: Path) -> None:
    """A v1 sample without layer ids takes those of a ``data_config.json`` one folder above it. Raises DrafttraceError."""
    above = folder.absolute().parent / "data_config.json"
    if above.is_file():
        raise DrafttraceError(
            f"'{above}' would declare layer ids for the samples in the folders beside it, and these have none; give a "
            "folder elsewhere."
        )


def refuse_no_place(report: str | None) -> None:
    """Raise OutputExists where the folder of a report is not there: it is written last, after a long conversion."""
    if report is None or report == "-":
        return
    folder = Path(report).parent
    if not folder.is_dir():
        raise OutputExists(f"The folder '{folder}' of the output '{report}' does not exist; make it first.")
    if Path(report).is_dir():
        raise OutputExists(f"The output '{report}' is a folder; give a file name.")
