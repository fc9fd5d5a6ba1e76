"""A plot that opens on double click: NeXus attributes and the norm of every slot over the token position."""

from __future__ import annotations

import os
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from h5py import h5s

from drafttrace.tracer.capture import Accepted
from drafttrace.tracer.rows import DType, Floats, to_float32
from drafttrace.tracer.trace import schema, texts
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout, present_names

DATA = "row_norms"
TITLE = "row norms over token position"
MAX_POINTS = 512
"""A plot needs no more; the norms of a long trace would cost as much as writing it."""

MAX_BYTES = 32 * 4 * MAX_POINTS + 8 * MAX_POINTS
"""Bytes that the curves of a layout can take."""

Index = npt.NDArray[np.int64]
_BLOCK = 32  # rows that are worked on at a time: what fits a cache


def declare(file: h5py.File, layout: TraceLayout) -> None:
    """Makes /summary/row_norms, empty, and marks the way to it: a viewer follows ``default``.

    Curves ``aux_0``, ``aux_1``, ..., ``embed``, ``last`` over ``position``.
    """
    summary = file.require_group(schema.SUMMARY)
    texts.set_attribute(file, "NX_class", "NXroot")
    texts.set_attribute(file, "default", schema.SUMMARY)
    texts.set_attribute(summary, "NX_class", "NXentry")
    specs = _plotted(layout)
    if not specs:
        return
    data = summary.require_group(DATA)
    texts.set_attribute(summary, "default", DATA)
    texts.set_attribute(data, "NX_class", "NXdata")
    texts.write_text(data, "title", TITLE)  # NeXus wants a dataset; silx shows an attribute's bytes as they are
    for spec in specs:
        curve = data.create_dataset(_curve(spec), (0,), "<f4", maxshape=(MAX_POINTS,), chunks=(MAX_POINTS,))
        if spec is specs[0]:  # silx decodes the signal's long name, and shows those of the others as Python's bytes
            texts.set_attribute(curve, "long_name", f"norm of {spec.name}")
    axis = data.create_dataset("position", (0,), "<i8", maxshape=(MAX_POINTS,), chunks=(MAX_POINTS,))
    texts.set_attribute(axis, "units", "tokens")
    texts.set_attribute(data, "signal", _curve(specs[0]))
    if len(specs) > 1:
        data.attrs["auxiliary_signals"] = np.array([_curve(spec).encode() for spec in specs[1:]])
    data.attrs["axes"] = np.array([b"position"])


def fill(file: h5py.File, layout: TraceLayout) -> None:
    """Writes the norms of at most 512 rows that ended up in the output; a row that was not recorded is NaN."""
    specs = _plotted(layout)
    if not specs:
        return
    rows = file[schema.TARGET_ROWS][:]
    chosen = plotted_rows(rows)
    bits = {name: 1 << bit for bit, name in enumerate(present_names(layout.target))}
    data = file[schema.SUMMARY][DATA]
    for spec in specs:
        there = rows["present"][chosen] & bits[spec.name] > 0
        norms = np.full(len(chosen), np.nan, np.float32)
        norms[there] = _norms(file["target"][spec.name], chosen[there], spec)
        _set(data[_curve(spec)], norms)
    _set(data["position"], rows["position"][chosen])


def _set(dataset: h5py.Dataset, values: npt.NDArray[Any]) -> None:
    dataset.id.set_extent((len(values),))
    dataset.id.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(values))


def plotted_rows(rows: schema.Records) -> Index:
    """One row per position, in order, rejected ones left out, thinned evenly to MAX_POINTS."""
    kept = np.flatnonzero(rows["accepted"] != Accepted.REJECTED)
    order = kept[np.argsort(rows["position"][kept], kind="stable")]
    position = rows["position"][order]
    order = order[np.append(position[1:] != position[:-1], True)[: len(order)]]  # the latest pass wins
    if len(order) > MAX_POINTS:
        order = order[np.linspace(0, len(order) - 1, MAX_POINTS).astype(np.int64)]
    chosen: Index = order.astype(np.int64)
    return chosen


def _plotted(layout: TraceLayout) -> list[TensorSpec]:
    return [spec for spec in layout.target if not spec.is_boundary]


def _curve(spec: TensorSpec) -> str:
    return spec.name.replace("/", "_")


def _norms(dataset: h5py.Dataset, index: Index, spec: TensorSpec) -> Floats:
    assert isinstance(spec.dtype, DType)  # the layout takes no other dtype for a hidden state
    out = np.empty(len(index), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaNs are what the plot has to show
        stored = _stored(dataset, index, spec)
        for start in range(0, len(index), _BLOCK):
            values = to_float32(stored[start : start + _BLOCK], spec.dtype)
            out[start : start + _BLOCK] = np.sqrt(np.einsum("ij,ij->i", values, values))
    return out


def _stored(dataset: h5py.Dataset, index: Index, spec: TensorSpec) -> npt.NDArray[Any]:
    """The rows ``index`` in storage form, read where they lie in the file: row by row through HDF5 takes longer than
    writing the trace did."""
    places: dict[int, int] = {}

    def visit(chunk: h5py.h5d.StoreInfo) -> None:
        places[chunk.chunk_offset[0]] = chunk.byte_offset

    dataset.id.chunk_iter(visit)
    rows = np.zeros((len(index), spec.width), spec.storage)
    number = dataset.file.id.get_vfd_handle()
    chunks = index // spec.chunk_rows * spec.chunk_rows
    for first in np.unique(chunks).tolist():
        if first not in places:
            continue
        wanted = np.flatnonzero(chunks == first)
        at = index[wanted] - first
        low, stop = int(at.min()), int(at.max()) + 1
        if stop - low > 4 * len(at):
            for place, row in zip(wanted, at.tolist(), strict=True):
                os.preadv(number, [rows[place].view(np.uint8).data], places[first] + row * spec.row_bytes)
        else:
            part = np.zeros((stop - low, spec.width), spec.storage)
            os.preadv(number, [part.view(np.uint8).data], places[first] + low * spec.row_bytes)
            rows[wanted] = part[at - low]
    return rows
