"""The writer of one trace: append-only, readable at any moment, whole up to the last flush after ``kill -9``.

The order of writing is the guarantee. Tensors are written and flushed first, the row table last: a row that
stands in the table has all its tensors. Until :meth:`TraceWriter.finish` everything happens in HDF5's SWMR mode.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Probe
from drafttrace.tracer.errors import OutputExists
from drafttrace.tracer.trace import bfloat16, nexus, schema, texts
from drafttrace.tracer.trace.h5create import (
    TABLE_CHUNK,
    Room,
    abandon,
    append_table,
    close_file,
    create_file,
    make_table,
    problem,
)
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout, present_names
from drafttrace.tracer.trace.schema import Records

Tensors = Mapping[str, npt.NDArray[Any]]

_REASON_BYTES = 256
_DATASET_BYTES = 8192  # header, attributes and first chunk of a dataset without rows


class TraceWriter:
    """Writes one request into ``path``. One thread at a time.

    layout: every tensor that may come. about: JSON blocks known at the start (``wiring``, ``server_args``, ...).
    late: names of further blocks that :meth:`finish` may fill. prompt: token ids of the prompt where they are known
    already, so that a killed trace has them. Raises OutputExists where ``path`` is taken and
    ``overwrite`` is not given, or where it cannot be written. On a full disk methods raise OSError with a sentence
    and nothing of that call is written; the rows of earlier flushes stay readable, and :meth:`finish` still works.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: TraceLayout,
        *,
        request_id: str,
        about: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        late: Sequence[str] = ("request",),
        prompt: Sequence[int] | npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.path = Path(path)
        self.layout = layout
        self.bytes_written = 0
        """Bytes of tensors and row records handed to HDF5 so far."""
        self._broken: str | None = None
        self._file: h5py.File | None = create_file(self.path, overwrite)
        self._room = Room(self._file)
        self._blocks = {*(about or {}), *late}
        try:
            tensors = len(layout.target) + len(layout.draft) + 4 * len(layout.ranks)
            blocks = sum(map(texts.stored_bytes, (about or {}).values()))
            self._room.take(
                _DATASET_BYTES * (tensors + len(self._blocks)) + blocks + 8 * len(() if prompt is None else prompt)
            )
            _declare(self._file, layout, request_id, prompt)
            texts.declare_blocks(self._file, about or {}, tuple(late))
            self._target = _Side(self._file, "target", layout.target, schema.TARGET_ROW)
            self._draft = _Side(self._file, "draft", layout.draft, schema.DRAFT_ROW)
            self._ranks = {rank: _Rank(self._file, rank, layout.hashed) for rank in layout.ranks}
            self._file.swmr_mode = True
        except BaseException as error:
            file, self._file = self._file, None
            abandon(file)
            with contextlib.suppress(OSError):
                self.path.unlink()
            if isinstance(error, (OSError, RuntimeError)):
                raise OutputExists(f"{self.path} cannot be written ({problem(error)}): make room first") from error
            raise

    @property
    def target_rows(self) -> int:
        """Rows appended to the target table, flushed or not."""
        return self._target.count

    @property
    def draft_rows(self) -> int:
        """Rows appended to the draft table, flushed or not."""
        return self._draft.count

    def append_target(
        self, rows: Records, tensors: Tensors, *, absent: Mapping[str, npt.NDArray[np.bool_]] | None = None
    ) -> None:
        """Appends R ``rows`` (TARGET_ROW) and their tensors ``{name: [R, width]}`` in storage form.

        A tensor that is not given is zero for these rows and its present bit is cleared; ``absent`` clears the bit
        of single rows (masks ``[R]``). ``boundary/{k}`` may be given for the first rows of the trace only, without
        a gap. Rows become visible to readers with :meth:`flush`. Raises ValueError for an unknown tensor, a wrong
        shape or a wrong dtype, before anything is written.
        """
        with self._writing(self._target.growth(rows, tensors)):
            self.bytes_written += self._target.append(rows, tensors, absent or {})

    def append_draft(
        self, rows: Records, tensors: Tensors, *, absent: Mapping[str, npt.NDArray[np.bool_]] | None = None
    ) -> None:
        """As :meth:`append_target`, for R rows of DRAFT_ROW and the tensors of the draft."""
        with self._writing(self._draft.growth(rows, tensors)):
            self.bytes_written += self._draft.append(rows, tensors, absent or {})

    def append_rank(self, rank: int, rows: Records, hashes: npt.NDArray[np.uint64]) -> None:
        """Appends R ``rows`` (RANK_ROW) of one rank and their hashes ``[R, len(layout.hashed)]``."""
        if rank not in self._ranks:
            raise ValueError(f"rank {rank} is not declared in the layout")
        with self._writing(rows.nbytes + hashes.nbytes):
            self.bytes_written += self._ranks[rank].append(rows, hashes)

    def flush(self) -> None:
        """Makes everything appended so far visible to readers and safe from ``kill -9``."""
        with self._writing(
            self._target.pending + self._draft.pending + sum(r.pending for r in self._ranks.values())
        ):
            self._target.flush()
            self._draft.flush()
            for rank in self._ranks.values():
                rank.flush()

    def finish(
        self,
        *,
        complete: bool,
        tokens: Sequence[int] | npt.NDArray[np.int64] | None = None,
        prompt_length: int | None = None,
        about: Mapping[str, Any] | None = None,
        probes: Iterable[Probe] = (),
        reason: str | None = None,
    ) -> None:
        """Flushes, writes what is known only at the end, and closes. ``complete`` is written last.

        tokens: prompt and output. about: blocks that replace declared ones (``request``). reason: why the trace is
        not complete, at most 256 bytes. Raises ValueError, before anything is written, for a block that was not
        declared; OSError where the end could not be written: the rows flushed before stay readable, and the trace
        reads as incomplete.
        """
        blocks = dict(about or {})
        undeclared = sorted(set(blocks) - self._blocks)
        if undeclared:
            raise ValueError(f"the about block '{undeclared[0]}' was not declared; name it in 'late' at the start")
        try:
            self.flush()
            ids = 0 if tokens is None else 8 * len(tokens)
            with self._writing(ids + sum(map(texts.stored_bytes, blocks.values())) + nexus.MAX_BYTES) as file:
                if tokens is not None:
                    _replace_tokens(file, tokens)
                if prompt_length is not None:
                    file[schema.PROMPT_LENGTH][...] = prompt_length
                for name, value in blocks.items():
                    texts.replace_block(file, name, value)
                append_table(file[schema.PROBES], _probe_rows(probes))
                nexus.fill(file, self.layout)
                file.flush()
                texts.replace_attribute(file, schema.ATTR_REASON, reason or "")
                file.attrs.modify(schema.ATTR_COMPLETE, np.bool_(complete))
                file.flush()
        finally:
            self._release()

    def close(self) -> None:
        """Closes without finishing: the trace stays incomplete. Never raises; does nothing when closed."""
        if self._file is not None and self._broken is None:
            with contextlib.suppress(OSError):
                self.flush()
        self._release()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _writing(self, growth: int) -> Iterator[h5py.File]:
        """The file, which is sure to have room for ``growth`` more bytes."""
        if self._broken is not None:
            raise OSError(self._broken)
        if self._file is None:
            raise ValueError(f"the trace {self.path} is closed")
        try:
            self._room.take(growth)
        except OSError as error:
            raise OSError(self._sentence(error)) from error
        try:
            yield self._file
        except (OSError, RuntimeError) as error:  # h5py raises both for a failed write
            self._broken = self._sentence(error)
            raise OSError(self._broken) from error

    def _sentence(self, error: Exception) -> str:
        return (
            f"the trace {self.path} cannot be written any further ({problem(error)}); "
            "the rows flushed before stay readable"
        )

    def _release(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if self._broken is None:
            try:
                close_file(file)
                return
            except (OSError, RuntimeError) as error:
                self._broken = self._sentence(error)
        abandon(file)


class _Side:
    """The row table and the tensors of the target or of the draft."""

    def __init__(
        self, file: h5py.File, name: str, specs: tuple[TensorSpec, ...], record: np.dtype[np.void]
    ) -> None:
        self.count = 0
        self._name = name
        self._record = record
        self._specs = {spec.name: spec for spec in specs}
        self._bits = {tensor: 1 << bit for bit, tensor in enumerate(present_names(specs))}
        group = file.require_group(name)
        self._tensors = {}
        for spec in specs:
            self._tensors[spec.name] = bfloat16.create(group.id, spec)
            texts.set_attribute(h5py.Dataset(self._tensors[spec.name]), schema.ATTR_DTYPE, str(spec.dtype))
        self._sizes = dict.fromkeys(self._specs, 0)
        self._rows = make_table(group, "rows", record)
        texts.set_attribute(self._rows, schema.ATTR_PRESENT, json.dumps(list(self._bits)))
        self._pending: list[Records] = []

    @property
    def pending(self) -> int:
        """Bytes of rows that wait for the next flush."""
        return sum(rows.nbytes for rows in self._pending) + TABLE_CHUNK * self._record.itemsize

    def growth(self, rows: Records, tensors: Tensors) -> int:
        """Bytes that the file grows by when these are appended."""
        known = [(self._specs[name], len(array)) for name, array in tensors.items() if name in self._specs]
        return rows.nbytes + sum(spec.growth(self.count, self.count + count) for spec, count in known)

    def append(self, rows: Records, tensors: Tensors, absent: Mapping[str, npt.NDArray[np.bool_]]) -> int:
        """Writes the tensors and keeps the rows for the next flush; gives the bytes that this makes."""
        self._check(rows, tensors, absent)
        written = 0
        records = rows.copy()
        records["present"] = 0
        for name, array in tensors.items():
            spec = self._specs[name]
            self._extend(name, self.count + len(array))
            bfloat16.write_rows(self._tensors[name], self.count, np.ascontiguousarray(array), spec.dtype)
            written += array.nbytes
            if name in self._bits:
                there = np.ones(len(rows), bool) if name not in absent else ~absent[name]
                records["present"] |= np.where(there, self._bits[name], 0).astype(np.uint32)
        self._pending.append(records)
        self.count += len(rows)
        return written + records.nbytes

    def flush(self) -> None:
        """Tensors first, then the rows that say that the tensors are there."""
        if not self._pending:
            return
        for name, dataset in self._tensors.items():
            if not self._specs[name].is_boundary:
                self._extend(name, self.count)
            dataset.flush()
        rows = np.concatenate(self._pending)
        append_table(self._rows, rows)
        self._pending = []

    def _extend(self, name: str, rows: int) -> None:
        if self._sizes[name] != rows:
            self._tensors[name].set_extent((rows, self._specs[name].width))
            self._sizes[name] = rows

    def _check(self, rows: Records, tensors: Tensors, absent: Mapping[str, npt.NDArray[np.bool_]]) -> None:
        _check_records(rows, self._record)
        for name, array in tensors.items():
            spec = self._specs.get(name)
            if spec is None:
                raise ValueError(f"the {self._name} tensor '{name}' is not declared in the layout")
            if array.dtype != spec.storage or array.ndim != 2 or array.shape[1] != spec.width:
                raise ValueError(
                    f"{self._name}/{name}: expected [rows, {spec.width}] of {spec.storage}, "
                    f"got {list(array.shape)} of {array.dtype}"
                )
            if spec.is_boundary:
                if self._sizes[name] != self.count or len(array) > len(rows):
                    raise ValueError(f"{self._name}/{name} must cover the first rows of the trace without a gap")
            elif len(array) != len(rows):
                raise ValueError(f"{self._name}/{name} has {len(array)} rows; the table gets {len(rows)}")
        for name, mask in absent.items():
            if name not in tensors or name not in self._bits or mask.shape != (len(rows),):
                raise ValueError(f"absent: '{name}' needs a tensor of these rows and a mask [{len(rows)}]")


class _Rank:
    """The row hashes of one rank."""

    def __init__(self, file: h5py.File, rank: int, hashed: tuple[str, ...]) -> None:
        group = file.require_group(f"{schema.RANKS}/{rank}")
        self._rows = make_table(group, "rows", schema.RANK_ROW)
        shape = (0, len(hashed))
        self._hashes = group.create_dataset(
            "hashes", shape, "<u8", maxshape=(None, len(hashed)), chunks=(TABLE_CHUNK, len(hashed))
        )
        texts.set_attribute(self._hashes, schema.ATTR_HASHED, json.dumps(list(hashed)))
        self._columns = len(hashed)
        self._pending: list[tuple[Records, npt.NDArray[np.uint64]]] = []

    @property
    def pending(self) -> int:
        row = schema.RANK_ROW.itemsize + 8 * self._columns
        return row * (sum(len(rows) for rows, _ in self._pending) + TABLE_CHUNK)

    def append(self, rows: Records, hashes: npt.NDArray[np.uint64]) -> int:
        _check_records(rows, schema.RANK_ROW)
        if hashes.dtype != np.uint64 or hashes.shape != (len(rows), self._columns):
            raise ValueError(
                f"expected hashes [{len(rows)}, {self._columns}] of uint64, got {hashes.shape} {hashes.dtype}"
            )
        self._pending.append((rows.copy(), hashes.copy()))
        return int(rows.nbytes + hashes.nbytes)

    def flush(self) -> None:
        if not self._pending:
            return
        append_table(self._hashes, np.concatenate([hashes for _, hashes in self._pending]))
        append_table(self._rows, np.concatenate([rows for rows, _ in self._pending]))
        self._pending = []


def _declare(
    file: h5py.File,
    layout: TraceLayout,
    request_id: str,
    prompt: Sequence[int] | npt.NDArray[np.int64] | None,
) -> None:
    """Attributes, tokens, probes, summary: everything that a trace has besides its rows and blocks."""
    import drafttrace

    texts.set_attribute(file, schema.ATTR_FORMAT, schema.FORMAT)
    file.attrs[schema.ATTR_VERSION] = np.int64(schema.FORMAT_VERSION)
    file.attrs[schema.ATTR_COMPLETE] = np.bool_(False)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    texts.set_attribute(file, schema.ATTR_CREATED, now)
    texts.set_attribute(file, schema.ATTR_TOOL, drafttrace.__version__)
    texts.set_attribute(file, schema.ATTR_REQUEST, request_id)
    texts.set_attribute(file, schema.ATTR_REASON, "", length=_REASON_BYTES)
    nexus.declare(file, layout)
    texts.write_text(file.require_group(schema.ABOUT), "layout", layout.to_json())
    make_table(file, schema.PROBES, schema.PROBE)
    ids = np.asarray([] if prompt is None else prompt, np.int64)
    file.create_dataset(schema.TOKENS, data=ids, maxshape=(None,), chunks=(1024,))
    file[schema.PROMPT_LENGTH] = np.int64(-1 if prompt is None else len(ids))


def _check_records(rows: Records, record: np.dtype[np.void]) -> None:
    if rows.dtype != record or rows.ndim != 1:
        raise ValueError(f"expected rows of {record}, got {rows.shape} of {rows.dtype}")


def _replace_tokens(file: h5py.File, tokens: Sequence[int] | npt.NDArray[np.int64]) -> None:
    ids = np.asarray(tokens, np.int64)
    dataset = file[schema.TOKENS]
    if len(ids) > len(dataset):  # never shorter: a request that was aborted at once keeps its prompt
        dataset.resize(len(ids), axis=0)
    dataset[: len(ids)] = ids


def _probe_rows(probes: Iterable[Probe]) -> Records:
    rows = np.zeros(len(listed := list(probes)), schema.PROBE)
    for row, probe in zip(rows, listed, strict=True):
        row["name"] = probe.name.encode()
        for field in schema.PROBE_FIELDS:
            row[field] = getattr(probe, field)
    return rows
