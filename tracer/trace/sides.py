"""What grows in a trace: target and draft (tensors first, then the rows that list them), the ranks, the padding rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from drafttrace.tracer.trace import bfloat16, schema, texts
from drafttrace.tracer.trace.growing import Growing, make_rows
from drafttrace.tracer.trace.h5create import TABLE_CHUNK, append_table, make_table
from drafttrace.tracer.trace.layout import TensorSpec, present_names
from drafttrace.tracer.trace.schema import Records
from drafttrace.tracer.trace.sums import Sums, chunk_rows, make_sums, row_sums

Tensors = Mapping[str, npt.NDArray[Any]]
Masks = Mapping[str, npt.NDArray[np.bool_]]


class Side:
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
        number = file.id.get_vfd_handle()
        self._tensors: dict[str, Growing] = {}
        for spec in specs:
            made = bfloat16.create(group.id, spec)
            texts.set_attribute(h5py.Dataset(made), schema.ATTR_DTYPE, str(spec.dtype))
            self._tensors[spec.name] = Growing(made, number, spec.chunk_rows, (spec.width,), exact=spec.is_boundary)
        self._sizes = dict.fromkeys(self._specs, 0)
        self._columns = {column: place for place, column in enumerate([schema.ROWS, *self._specs])}
        self._sums = Growing(
            make_sums(group, list(self._columns)).id,
            number,
            chunk_rows(len(self._columns)),
            (len(self._columns),),
            exact=False,
        )
        rows = make_rows(group.id, schema.ROWS, record, TABLE_CHUNK)
        texts.set_attribute(h5py.Dataset(rows), schema.ATTR_PRESENT, json.dumps(list(self._bits)))
        self._rows = Growing(rows, number, TABLE_CHUNK, exact=True)
        self._pending: list[Records] = []
        self._pending_sums: list[Sums] = []

    @property
    def pending(self) -> int:
        """Bytes of rows and sums that wait for the next flush."""
        waiting = sum(rows.nbytes for rows in (*self._pending, *self._pending_sums))
        columns = len(self._columns)
        return waiting + TABLE_CHUNK * self._record.itemsize + 8 * chunk_rows(columns) * columns

    def growth(self, rows: Records, tensors: Tensors) -> int:
        """Bytes that the file grows by when these are appended."""
        known = [(self._specs[name], len(array)) for name, array in tensors.items() if name in self._specs]
        return rows.nbytes + sum(spec.growth(self.count, self.count + count) for spec, count in known)

    def append(self, rows: Records, tensors: Tensors, absent: Masks) -> int:
        """Writes the tensors and keeps the rows for the next flush; gives the bytes that this makes."""
        self._check(rows, tensors, absent)
        written = 0
        records = rows.copy()
        records["present"] = 0
        sums = np.zeros((len(rows), len(self._columns)), np.uint64)
        for name, array in tensors.items():
            self._tensors[name].write(self.count, array)
            self._sizes[name] = self.count + len(array)
            written += array.nbytes
            sums[: len(array), self._columns[name]] = row_sums(array)
            if name in self._bits:
                there = np.ones(len(rows), bool) if name not in absent else ~absent[name]
                records["present"] |= np.where(there, self._bits[name], 0).astype(np.uint32)
        sums[:, self._columns[schema.ROWS]] = row_sums(records)
        self._pending.append(records)
        self._pending_sums.append(sums)
        self.count += len(rows)
        return written + records.nbytes

    def flush(self, last: bool = False) -> None:
        """Tensors and sums first, then the rows that say that these are there. last: cut them to their rows as well."""
        before = self.count - sum(map(len, self._pending))
        if self._pending:
            self._sums.write(before, np.concatenate(self._pending_sums))
        for name, dataset in self._tensors.items():
            if not self._specs[name].is_boundary:
                dataset.extend(self.count)
                self._sizes[name] = self.count
        for dataset in (*self._tensors.values(), self._sums):
            if last:
                dataset.trim(self.count)
            dataset.flush()
        if self._pending:
            self._rows.write(before, np.concatenate(self._pending))
            self._rows.flush()
        self._pending, self._pending_sums = [], []

    def _check(self, rows: Records, tensors: Tensors, absent: Masks) -> None:
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


class RankSide:
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
        """Bytes of rows and hashes that wait for the next flush."""
        row = schema.RANK_ROW.itemsize + 8 * self._columns
        return row * (sum(len(rows) for rows, _ in self._pending) + TABLE_CHUNK)

    def append(self, rows: Records, hashes: npt.NDArray[np.uint64]) -> int:
        """Keeps rows and hashes for the next flush; gives their bytes."""
        _check_records(rows, schema.RANK_ROW)
        if hashes.dtype != np.uint64 or hashes.shape != (len(rows), self._columns):
            raise ValueError(
                f"expected hashes [{len(rows)}, {self._columns}] of uint64, got {hashes.shape} {hashes.dtype}"
            )
        self._pending.append((rows.copy(), hashes.copy()))
        return int(rows.nbytes + hashes.nbytes)

    def flush(self) -> None:
        """Hashes first, then the rows that say that they are there."""
        if not self._pending:
            return
        append_table(self._hashes, np.concatenate([hashes for _, hashes in self._pending]))
        append_table(self._rows, np.concatenate([rows for rows, _ in self._pending]))
        self._pending = []


class PaddingSide:
    """The hashes of what batches were padded with."""

    def __init__(self, file: h5py.File) -> None:
        self._rows = make_table(file, schema.PADDING, schema.PADDED)
        self._pending: list[Records] = []

    @property
    def pending(self) -> int:
        """Bytes that wait for the next flush; 0 where there are none."""
        waiting = sum(rows.nbytes for rows in self._pending)
        return waiting + TABLE_CHUNK * schema.PADDED.itemsize if waiting else 0

    def append(self, rows: Records) -> int:
        """Keeps records for the next flush; gives their bytes."""
        _check_records(rows, schema.PADDED)
        self._pending.append(rows.copy())
        return int(rows.nbytes)

    def flush(self) -> None:
        """Write what was appended."""
        if self._pending:
            append_table(self._rows, np.concatenate(self._pending))
            self._pending = []


def _check_records(rows: Records, record: np.dtype[np.void]) -> None:
    if rows.dtype != record or rows.ndim != 1:
        raise ValueError(f"expected rows of {record}, got {rows.shape} of {rows.dtype}")
