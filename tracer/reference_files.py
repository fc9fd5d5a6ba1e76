"""Which run a reference file is of: the target's weights, what was asked, and whether the file is whole.

A run that was interrupted goes on, so a file that is there must be known for what it is. A name says nothing: the
weights are told by their files, and a damaged file by the hash of its content.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drafttrace.tracer.capture import Ints
from drafttrace.tracer.convert_place import refuse_in_place
from drafttrace.tracer.dumps.safetensors_file import SafetensorsFile, read_safetensors
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnreadableFile

FORMAT = "drafttrace.capture/1"
CONTENT = "content_hash"
NO_HASH = "0" * 32
"""Stands in the metadata until the content is there; as long as a hash."""

# What the model is made of besides weights: another one of these is another model.
_CONFIGS = ("config.json", "generation_config.json", "quantization_config.json", "hf_quant_config.json")
_WEIGHTS = (".safetensors", ".bin", ".index.json", ".pt", ".pth")
_PIECE = 1 << 12
_PIECES = 1 << 12  # 16 MiB of a file are read: all of a small one
_NUMBERED = re.compile(r"hs_\d+\.safetensors")
_WORDS = {
    "target": "another target",
    "target_hash": "other weights of the target",
    "boundaries": "other boundaries",
    "slots": "another wiring",
    "wiring": "the same slots, once with --wiring and once without",
    "asked_dtype": "another --dtype",
    "asked_device_map": "another --device-map",
    "made_with": "another version of transformers or torch",
    "written_by": "another version of drafttrace",
}


def target_hash(folder: Path) -> str:
    """The identity of a model folder: its place, its config, and name, size, time and content of every weights file.

    Of a large file the start, the end and pieces between them are read. Raises UnreadableFile.
    """
    found = hashlib.blake2b(str(folder.resolve()).encode("utf-8", "surrogateescape"), digest_size=16)
    try:
        for path in sorted(folder.iterdir()):
            if path.is_file() and (path.name in _CONFIGS or path.name.endswith(_WEIGHTS)):
                about = path.stat()
                found.update(
                    f"\n{path.name} {about.st_size} {about.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
                )
                for piece in _pieces(path, about.st_size):
                    found.update(piece)
    except OSError as error:
        raise UnreadableFile(
            f"The target '{folder}' cannot be read ({error.strerror or error}); check its files."
        ) from None
    return found.hexdigest()


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    count = -(-size // _PIECE)
    starts = range(count) if count <= _PIECES else np.linspace(0, count - 1, _PIECES).astype(np.int64).tolist()
    with path.open("rb") as stream:
        for start in starts:
            stream.seek(start * _PIECE)
            yield stream.read(_PIECE)


def made_with() -> str:
    """The versions that the numbers depend on; torch is not imported for it."""
    names = ("transformers", "torch")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except (importlib.metadata.PackageNotFoundError, KeyError):
            versions.append(f"{name} missing")
    return ", ".join(versions)


def content_hash(path: Path) -> str:
    """The hash of everything behind the header. Raises OSError."""
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as stream:
        stream.seek(8 + int.from_bytes(stream.read(8), "little"))
        while block := stream.read(1 << 22):
            found.update(block)
    return found.hexdigest()


@dataclass(frozen=True)
class Run:
    """What tells the file of one sample from those of others. mask: its loss mask, None where it has none."""

    tokens: Ints
    mask: Ints | None
    metadata: Mapping[str, str]


def is_done(path: Path, run: Run, force: bool) -> bool:
    """Whether a whole file of the same run is there already. With ``force`` everything is made again.

    Raises OutputExists for another file without ``force``, and for one that is no reference with it, too.
    """
    if not os.path.lexists(path):
        return False
    stored = None
    with contextlib.suppress(DrafttraceError):
        stored = read_safetensors(path)
    if force:
        _refuse_foreign(path, stored)
        return False
    why = "damaged" if stored is None else _difference(path, stored, run)
    if why is None:
        return True
    remedy = "give another name, or --force to replace it"
    if why.startswith("damaged") and _was_reference(path):
        remedy = "delete that one file, and it alone is made again; --force makes every sample again"
    raise OutputExists(f"The output '{path}' exists already and is {why}; {remedy}.")


def _was_reference(path: Path) -> bool:
    """Whether a file that may be cut off begins as a reference does: whatever else it is, nobody is told to delete it."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        return FORMAT.encode() in stream.read(1 << 16)
    return False


def _difference(path: Path, stored: SafetensorsFile, run: Run) -> str | None:
    """What a stored file has that this run would not make; None where it is the same."""
    if stored.metadata.get("format") != FORMAT:
        return "no reference"
    ids, mask = stored.tensors.get("token_ids"), stored.tensors.get("loss_mask")
    if ids is None or not np.array_equal(ids.ints(), run.tokens):
        return "of another run: it has other tokens"
    if (mask is None) is not (run.mask is None):
        return f"of another run: it has {'no' if mask is None else 'a'} loss mask"
    if mask is not None and run.mask is not None and not np.array_equal(mask.ints(), run.mask):
        return "of another run: it has another loss mask"
    other = other_run(stored, run.metadata)
    if other is not None:
        return f"of another run: it has {other}"
    try:
        return (
            None
            if stored.metadata.get(CONTENT) == content_hash(path)
            else "damaged: its content is not what was written"
        )
    except OSError as error:
        return f"unreadable ({error.strerror})"


def other_run(stored: SafetensorsFile, metadata: Mapping[str, str]) -> str | None:
    """What of the run differs, in words; None where it is the same run."""
    for name, value in metadata.items():
        if stored.metadata.get(name) != value:
            return _WORDS.get(name, f"another {name}")
    return None


def _refuse_foreign(path: Path, stored: SafetensorsFile | None) -> None:
    """--force replaces references, also damaged ones, and an empty file; nothing else can surely be made again."""
    try:
        empty = path.stat().st_size == 0
        with path.open("rb"):
            pass
    except OSError as error:
        raise OutputExists(f"The output '{path}' cannot be read ({error.strerror}); give another name.") from None
    own = _was_reference(path) if stored is None else stored.metadata.get("format") == FORMAT
    if not (own or empty):
        raise OutputExists(
            f"The output '{path}' is a file of yours and no reference, so --force does not replace it; give another name."
        )


def refuse_inputs(paths: Sequence[Path], target: Path, sources: Sequence[Path]) -> None:
    """Raise OutputExists where an output would replace a source, or lie in one (:func:`convert_place.refuse_in_place`), or
    among the target's weights."""
    weights = os.path.realpath(target) if any(path.name.endswith(_WEIGHTS) for path in target.iterdir()) else None
    for path in paths:
        for source in sources:
            refuse_in_place(source, path)
        if os.path.dirname(os.path.realpath(path)) == weights:
            raise OutputExists(f"The output '{path}' lies among the weights of the target; give another folder.")


def refuse_mixed_folder(folder: Path, paths: Sequence[Path], metadata: Mapping[str, str]) -> None:
    """Raise OutputExists where samples of another run would stand beside the new ones, as one dump."""
    mine = set(paths)
    for path in sorted(folder.glob("hs_*.safetensors")):
        if path in mine or not _NUMBERED.fullmatch(path.name):
            continue
        why: str | None = "is damaged"
        with contextlib.suppress(DrafttraceError):
            stored = read_safetensors(path)
            other = "another format" if stored.metadata.get("format") != FORMAT else other_run(stored, metadata)
            why = None if other is None else f"has {other}"
        if why is not None:
            raise OutputExists(
                f"The folder '{folder}' holds '{path.name}', which {why} and would stand among the new samples; give "
                "another folder, or move it away."
            )


def stated(value: Sequence[int]) -> str:
    """A list of boundaries as the metadata has it."""
    return json.dumps(list(value))
