"""The writer of one trace: append-only, readable at any moment, whole up to the last flush after ``kill -9``.

The order of writing is the guarantee. Tensors are written and flushed first, the row table last: a row that
stands in the table has all its tensors. Until :meth:`TraceWriter.finish` everything happens in HDF5's SWMR mode.
"""

from __future__ import annotations

import contextlib
import datetime
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
from drafttrace.tracer.trace import nexus, schema, texts
from drafttrace.tracer.trace.h5create import (
    Room,
    abandon,
    append_table,
    close_file,
    create_file,
    make_table,
    problem,
)
from drafttrace.tracer.trace.layout import TraceLayout
from drafttrace.tracer.trace.schema import Records
from drafttrace.tracer.trace.sides import PaddingSide, RankSide, Side, Tensors
from drafttrace.tracer.trace.writeback import Writeback

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
        self._disk = Writeback(self._file.id.get_vfd_handle())
        self._blocks = {*(about or {}), *late}
        try:
            tensors = len(layout.target) + len(layout.draft) + 4 * len(layout.ranks)
            stored = {name: texts.pieces_of(value) for name, value in (about or {}).items()}
            blocks = sum(map(texts.stored_bytes, stored.values()))
            self._room.take(
                _DATASET_BYTES * (3 + tensors + len(self._blocks))
                + blocks
                + 8 * len(() if prompt is None else prompt)
            )
            _declare(self._file, layout, request_id, prompt)
            texts.declare_blocks(self._file, stored, tuple(late))
            self._target = Side(self._file, "target", layout.target, schema.TARGET_ROW)
            self._draft = Side(self._file, "draft", layout.draft, schema.DRAFT_ROW)
            self._padding = PaddingSide(self._file)
            self._ranks = {rank: RankSide(self._file, rank, layout.hashed) for rank in layout.ranks}
            self._file.swmr_mode = True
        except BaseException as error:
            file, self._file = self._file, None
            abandon(file)
            with contextlib.suppress(OSError):
                self.path.unlink()
            if isinstance(error, (OSError, RuntimeError)):
                raise OutputExists(
                    f"'{self.path}' cannot be written ({problem(error)}); make room first."
                ) from error
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

    def append_padding(self, rows: Records) -> None:
        """Appends PADDED ``rows``: hashes of the first padding row of frames whose batch was padded."""
        with self._writing(rows.nbytes):
            self.bytes_written += self._padding.append(rows)

    def flush(self) -> None:
        """Makes everything appended so far visible to readers and safe from ``kill -9``."""
        self._flush(last=False)

    def _flush(self, last: bool) -> None:
        sides = (self._target, self._draft)
        pending = sum(side.pending for side in sides) + sum(rank.pending for rank in self._ranks.values())
        with self._writing(pending + self._padding.pending, last):
            self._padding.flush()
            for side in sides:
                side.flush(last)
            for rank in self._ranks.values():
                rank.flush()
        self._disk.reached(self.bytes_written)

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
        blocks = {name: texts.pieces_of(value) for name, value in (about or {}).items()}
        undeclared = sorted(set(blocks) - self._blocks)
        if undeclared:
            raise ValueError(f"the about block '{undeclared[0]}' was not declared; name it in 'late' at the start")
        try:
            self._flush(last=True)
            size = 8 * len(() if tokens is None else tokens) + sum(map(texts.stored_bytes, blocks.values()))
            with self._writing(size + nexus.MAX_BYTES, last=True) as file:
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
                self._flush(last=True)
        self._release()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _writing(self, growth: int, last: bool = False) -> Iterator[h5py.File]:
        """The file, which is sure to have room for ``growth`` more bytes."""
        if self._broken is not None:
            raise OSError(self._broken)
        if self._file is None:
            raise ValueError(f"the trace {self.path} is closed")
        try:
            self._room.take(growth, last)
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
