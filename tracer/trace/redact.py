"""A copy of a trace that can be shown to others: token ids and texts replaced by salted hashes.

Equal ids stay equal and different ones different, so alignment and every comparison still work, also between two
files redacted with the same salt. The copy is written anew: HDF5 keeps deleted bytes in the file.

Hidden states are kept. Whoever has the weights of the target can guess tokens from them: the embedding of a
token *is* its row of the embedding table. ``drop_embeddings`` leaves those tensors out; nothing here makes the
others safe against somebody who owns the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import OutputExists
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import bfloat16, nexus, reader, schema, texts
from drafttrace.tracer.trace.h5create import (
    Room,
    abandon,
    append_table,
    check_output,
    close_file,
    create_file,
    make_table,
    problem,
)
from drafttrace.tracer.trace.h5open import TraceFile, settled
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.sums import Sums, append_sums, make_sums, row_sums, stored_sums

_ROUNDS = 8
_HALF = 16  # bits of one half of an id
_LIMIT = 1 << 31  # ids are permuted below this, so that they fit int32

# Keys of any block whose texts and numbers say what a user wrote or a model answered.
_CONTENT_KEY = re.compile(
    r"(text|prompt|content|messages|input|output|input_text|output_text|input_ids|output_ids|token_ids)"
)
# Inside the request block everything is content but these: what a request looked like, not what it said.
_SHAPE_KEY = re.compile(
    r"(.*_)?(type|finish_reason|lengths?|counts?|rounds?|steps?|accepted|accept_histogram|version|incomplete_reason)"
)
_ID_KEY = re.compile(r"(.*_)?(token_id|token|matched|id)")
# Keys whose values are secrets wherever they stand.
_SECRET_KEY = re.compile(r"api_?key|password|passphrase|secret|credential|auth_token|hf_token", re.IGNORECASE)
_HIDDEN = "redacted"
_EMBEDDINGS = (b"embed", b"embed_in")


class Pseudonyms:
    """One-to-one replacements of token ids below 2**31, and hashes of texts, that depend on a secret salt."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._known: dict[tuple[str, int], int] = {}

    @property
    def fingerprint(self) -> str:
        """The same for two files with the same salt; tells nothing of it."""
        return self._digest(b"fingerprint").hex()[:16]

    def ids(self, values: npt.NDArray[Any], vocabulary: str = "target") -> npt.NDArray[Any]:
        """``values`` with every id replaced; what is negative (unknown) stays, and so do shape and dtype."""
        unique, place = np.unique(values.ravel(), return_inverse=True)
        replaced = [self._id(vocabulary, int(value)) for value in unique]
        return np.array(replaced, values.dtype)[place].reshape(values.shape)

    def id(self, value: int) -> int:
        """One id of the target's vocabulary, replaced."""
        return self._id("target", value)

    def text(self, value: str) -> str:
        """``redacted:`` and a hash of the text."""
        return "redacted:" + self._digest(b"text", value.encode("utf-8", "replace")).hex()[:16]

    def _id(self, vocabulary: str, value: int) -> int:
        if value < 0:
            return value
        if value >= _LIMIT:
            return int.from_bytes(self._digest(vocabulary.encode(), str(value).encode())[:8], "little") >> 1
        key = (vocabulary, value)
        if key not in self._known:
            walked = self._permute(vocabulary, value)
            while walked >= _LIMIT:  # a permutation comes back below the limit
                walked = self._permute(vocabulary, walked)
            self._known[key] = walked
        return self._known[key]

    def _permute(self, vocabulary: str, value: int) -> int:
        """A Feistel network over 32 bits: a permutation, whatever the round function is."""
        left, right = value >> _HALF, value & ((1 << _HALF) - 1)
        for turn in range(_ROUNDS):
            mixed = self._digest(vocabulary.encode(), bytes([turn]), right.to_bytes(2, "little"))
            left, right = right, left ^ int.from_bytes(mixed[:2], "little")
        return left << _HALF | right

    def _digest(self, *parts: bytes) -> bytes:
        return hashlib.blake2b(b"\0".join(parts), key=self._salt, digest_size=16).digest()


def redact(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    salt: bytes | None = None,
    drop_embeddings: bool = False,
    overwrite: bool = False,
) -> str:
    """Writes a redacted copy of the trace ``path`` to ``out`` and gives the fingerprint of the salt.

    salt: at most 64 bytes, the same for files that will be compared; random by default, and stored nowhere.
    Raises as :func:`drafttrace.tracer.trace.reader.read_trace` does, and OutputExists.
    """
    names = Pseudonyms(secrets.token_bytes(32) if salt is None else salt)
    source, target = Path(path), Path(out)
    if target.exists() and source.exists() and target.samefile(source):
        raise OutputExists(
            f"'{out}' is the trace itself; choose another output, a trace is never redacted in place."
        )
    check_output(target, overwrite)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        settled(source, lambda trace: _copy(trace, part, names, drop_embeddings))
        os.replace(part, target)
    except OSError as error:
        raise OutputExists(f"'{target}' cannot be written ({problem(error)}); choose another output.") from error
    finally:
        part.unlink(missing_ok=True)  # no half-redacted file is left behind
    return names.fingerprint


def _copy(trace: TraceFile, out: Path, names: Pseudonyms, drop_embeddings: bool) -> None:
    capture = reader.capture_of(trace)
    layout = reader.layout_of(trace)
    if drop_embeddings:
        layout = _without_embeddings(layout)
    tables = {
        "target": reader.table_of(trace, schema.TARGET_ROWS, schema.TARGET_ROW),
        "draft": reader.table_of(trace, schema.DRAFT_ROWS, schema.DRAFT_ROW),
    }
    file = create_file(out, overwrite=True)
    try:
        Room(file).take(os.stat(trace.path).st_size)
        _copy_head(trace.file, file, names)
        for side, specs in (("target", layout.target), ("draft", layout.draft)):
            _copy_side(trace, file, side, tables[side], specs, names)
        _copy_ranks(trace, file, names)
        _copy_rest(trace, file, layout, drop_embeddings)
        about = {name: clean(block, names, name == "request") for name, block in capture.about.items()}
        about[_HIDDEN] = {"salt_fingerprint": names.fingerprint, "embeddings_dropped": drop_embeddings}
        texts.declare_blocks(file, about, ())
        texts.write_text(file[schema.ABOUT], "layout", layout.to_json())
        tokens = names.ids(capture.tokens)
        file.create_dataset(schema.TOKENS, data=tokens, maxshape=(None,), chunks=(1024,))
        file[schema.PROMPT_LENGTH] = np.int64(-1 if capture.prompt_length is None else capture.prompt_length)
    except BaseException:
        abandon(file)
        raise
    close_file(file)


def _without_embeddings(layout: TraceLayout) -> TraceLayout:
    return TraceLayout(
        tuple(spec for spec in layout.target if spec.name not in ("embed", "boundary/0")),
        tuple(spec for spec in layout.draft if spec.name != "embed_in"),
        layout.ranks,
        layout.hashed,
    )


def _copy_head(source: h5py.File, file: h5py.File, names: Pseudonyms) -> None:
    for name in (
        schema.ATTR_FORMAT,
        schema.ATTR_VERSION,
        schema.ATTR_COMPLETE,
        schema.ATTR_REASON,
        schema.ATTR_CREATED,
        schema.ATTR_TOOL,
        "NX_class",
        "default",
    ):
        if name in source.attrs:
            copied = source.attrs.get_id(name)
            file.attrs.create(name, source.attrs[name], dtype=copied.dtype)
    texts.set_attribute(file, schema.ATTR_REQUEST, names.text(texts.get_text(source.attrs[schema.ATTR_REQUEST])))


def _copy_side(
    trace: TraceFile,
    file: h5py.File,
    side: str,
    rows: schema.Records,
    specs: tuple[TensorSpec, ...],
    names: Pseudonyms,
) -> None:
    group = file.require_group(side)
    kept = {spec.name for spec in specs}
    bits = reader.bit_names(trace, f"{side}/rows")
    present = np.zeros(len(rows), np.uint32)
    there = [name for name in bits if name in kept]
    for bit, name in enumerate(there):
        present |= (rows["present"] >> bits.index(name) & 1) << bit
    rows = rows.copy()
    rows["token_id"] = names.ids(rows["token_id"])
    rows["present"] = present
    sums = _copied_sums(trace, side, [schema.ROWS, *(spec.name for spec in specs)], len(rows))
    sums[schema.ROWS] = row_sums(rows)
    for spec in specs:
        replaced = _copy_tensor(trace, file, f"{side}/{spec.name}", spec, len(rows), names)
        if replaced is not None:
            sums[spec.name] = row_sums(replaced)
    if stored_sums(trace, side, len(rows)) is not None:
        append_sums(make_sums(group, list(sums)), 0, np.stack(list(sums.values()), 1))
    table = make_table(group, "rows", rows.dtype)
    texts.set_attribute(table, schema.ATTR_PRESENT, json.dumps(there))
    append_table(table, rows)


def _copied_sums(trace: TraceFile, side: str, columns: list[str], rows: int) -> dict[str, Sums]:
    """The sums of what is copied as it is: what was damaged before stays known as such. Zero where there are none."""
    stored = stored_sums(trace, side, rows)
    found = {name: None if stored is None else stored.of(name, 0, rows) for name in columns}
    return {name: np.zeros(rows, np.uint64) if sums is None else sums for name, sums in found.items()}


def _copy_tensor(
    trace: TraceFile, file: h5py.File, name: str, spec: TensorSpec, rows: int, names: Pseudonyms
) -> npt.NDArray[Any] | None:
    """The ids that were written in the place of others; None where the tensor is copied as it is."""
    if not isinstance(spec.dtype, DType):
        ids = bfloat16.read_rows(trace.dataset(name).id, 0, rows, spec)
        made = bfloat16.create(file[name.split("/", maxsplit=1)[0]].id, spec)
        made.set_extent(ids.shape)
        replaced = names.ids(ids, "draft" if spec.name == "topk/draft_ids" else "target")
        bfloat16.write_rows(made, 0, replaced, spec.dtype)
        texts.set_attribute(h5py.Dataset(made), schema.ATTR_DTYPE, str(spec.dtype))
        return replaced
    file.require_group(name.rsplit("/", maxsplit=1)[0])
    trace.file.copy(name, file, name)  # chunk by chunk, with its attributes
    if file[name].shape[0] > rows:  # rows that a living writer has not listed yet
        file[name].resize(rows, axis=0)
    return None


def _copy_ranks(trace: TraceFile, file: h5py.File, names: Pseudonyms) -> None:
    for part in reader.ranks_of(trace):
        group = file.require_group(f"{schema.RANKS}/{part.rank}")
        rows = part.rows.copy()
        rows["token_id"] = names.ids(rows["token_id"])
        append_table(make_table(group, "rows", rows.dtype), rows)
        data = group.create_dataset("hashes", data=part.hashes)
        texts.set_attribute(data, schema.ATTR_HASHED, json.dumps(list(part.names)))


def _copy_rest(trace: TraceFile, file: h5py.File, layout: TraceLayout, drop_embeddings: bool) -> None:
    """Probes, padding and the plot: they name no token."""
    if schema.PROBES in trace.file:
        trace.file.copy(schema.PROBES, file, schema.PROBES)
    if schema.PADDING in trace.file:
        rows = reader.table_of(trace, schema.PADDING, schema.PADDED)
        # An embedding is its token, and padding holds tokens of other requests.
        append_table(make_table(file, schema.PADDING, rows.dtype), rows[~np.isin(rows["tap"], _EMBEDDINGS)])
    if drop_embeddings:
        nexus.declare(file, layout)
        nexus.fill(file, layout)
    elif schema.SUMMARY in trace.file:
        trace.file.copy(schema.SUMMARY, file, schema.SUMMARY)


def clean(value: Any, names: Pseudonyms, content: bool, key: str = "") -> Any:
    """A JSON block without secrets and content. ``content``: it stands inside something that a user wrote.

    Where it does, texts are hashed and numbers in lists and under id-like keys are replaced as token ids are,
    unless their key says that they describe the request's shape (lengths, counts, accept lengths).
    """
    if _SECRET_KEY.search(key) and value not in (None, "", False, 0):
        return _HIDDEN
    if isinstance(value, dict):
        inside = content or _CONTENT_KEY.fullmatch(key) is not None
        return {
            clean_key(str(name), names, inside): clean(part, names, inside, str(name))
            for name, part in value.items()
        }
    content = content or _CONTENT_KEY.fullmatch(key) is not None
    if not content or _SHAPE_KEY.fullmatch(key):
        if isinstance(value, list):
            return [clean(part, names, content, key) for part in value]
        return value
    if isinstance(value, list):
        return [_clean_item(part, names, key) for part in value]
    if isinstance(value, str):
        return names.text(value)
    if isinstance(value, int) and not isinstance(value, bool) and _ID_KEY.fullmatch(key):
        return names.id(value)
    return value


def clean_key(name: str, names: Pseudonyms, content: bool) -> str:
    """A key of a JSON object: token ids are keys in ``logit_bias``."""
    return str(names.id(int(name))) if content and name.isascii() and name.isdigit() else name


def _clean_item(value: Any, names: Pseudonyms, key: str) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return names.id(value)
    return clean(value, names, True, key)
