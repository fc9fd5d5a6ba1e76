"""A plot that opens on double click: NeXus attributes and the norm of every slot over the token position."""

from __future__ import annotations

import h5py
import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Accepted, Phase
from drafttrace.tracer.rows import DType, Floats, to_float32
from drafttrace.tracer.trace import bfloat16, schema, texts
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout, present_names

DATA = "row_norms"
MAX_POINTS = 512
"""A plot needs no more; the norms of a long trace would cost as much as writing it."""

Index = npt.NDArray[np.int64]


def declare(file: h5py.File) -> None:
    """Marks / and /summary so that a viewer follows ``default`` to the plot."""
    summary = file.require_group(schema.SUMMARY)
    data = summary.require_group(DATA)
    texts.set_attribute(file, "NX_class", "NXroot")
    texts.set_attribute(file, "default", schema.SUMMARY)
    texts.set_attribute(summary, "NX_class", "NXentry")
    texts.set_attribute(summary, "default", DATA)
    texts.set_attribute(data, "NX_class", "NXdata")


def write_summary(file: h5py.File) -> None:
    """Fills /summary/row_norms of a finished trace; a trace without plottable rows gets none.

    Curves ``aux_0``, ``aux_1``, ..., ``embed``, ``last``: the Euclidean norm of the rows that ended up in the
    output, at most 512 of them, over ``position`` (in tokens). A row that was not recorded is NaN.
    """
    layout = TraceLayout.from_json(texts.get_text(file[schema.LAYOUT][()]))
    specs = [spec for spec in layout.target if not spec.is_boundary]
    rows = file[schema.TARGET_ROWS][:]
    chosen = plotted_rows(rows)
    if not specs or len(chosen) == 0:
        return
    data = file[schema.SUMMARY][DATA]
    bits = {name: 1 << bit for bit, name in enumerate(present_names(layout.target))}
    names = []
    for spec in specs:
        there = rows["present"][chosen] & bits[spec.name] > 0
        norms = np.full(len(chosen), np.nan, np.float32)
        norms[there] = _norms(file["target"][spec.name], chosen[there], spec)
        name = spec.name.replace("/", "_")
        data.create_dataset(name, data=norms)
        texts.set_attribute(data[name], "long_name", f"norm of {spec.name}")
        names.append(name)
    data.create_dataset("position", data=rows["position"][chosen])
    texts.set_attribute(data["position"], "units", "tokens")
    texts.set_attribute(data, "signal", names[0])
    if len(names) > 1:
        data.attrs["auxiliary_signals"] = np.array(names[1:], dtype=f"S{max(map(len, names))}")
    data.attrs["axes"] = np.array(["position"], dtype="S8")
    texts.set_attribute(data, "title", "row norms over token position")


def plotted_rows(rows: schema.Records) -> Index:
    """One row per position, in order, rejected ones left out, thinned evenly to MAX_POINTS."""
    kept = np.flatnonzero((rows["accepted"] != Accepted.REJECTED) & (rows["phase"] <= Phase.DECODE))
    order = kept[np.argsort(rows["position"][kept], kind="stable")]
    position = rows["position"][order]
    last = np.append(position[1:] != position[:-1], True)[: len(order)]  # the latest pass wins
    order = order[last]
    if len(order) > MAX_POINTS:
        order = order[np.linspace(0, len(order) - 1, MAX_POINTS).astype(np.int64)]
    chosen: Index = order.astype(np.int64)
    return chosen


def _norms(dataset: h5py.Dataset, index: Index, spec: TensorSpec) -> Floats:
    assert isinstance(spec.dtype, DType)  # the layout takes no other dtype for a hidden state
    out = np.empty(len(index), np.float32)
    for k, row in enumerate(index):
        values = to_float32(bfloat16.read_rows(dataset.id, int(row), int(row) + 1, spec), spec.dtype)[0]
        out[k] = np.sqrt(np.dot(values, values))
    return out
