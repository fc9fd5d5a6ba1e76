"""Number formats in HDF5: bf16 as a genuine 16-bit float, written and read raw, bit for bit.

HDF5 has no bf16 of its own before 2.0, but any IEEE-like layout can be described. With the same type in memory
and on disk the library converts nothing: NaN payloads, infinities and subnormals survive, and h5py, h5dump, silx and
h5glance show numbers. Letting HDF5 convert to float32 on reading is 200 times slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from h5py import h5d, h5g, h5s, h5t

from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import growing
from drafttrace.tracer.trace.layout import IdType, TensorSpec


def _bf16() -> h5t.TypeFloatID:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)  # sign at bit 15; exponent at 7, 8 bits; mantissa at 0, 7 bits
    kind.set_size(2)
    kind.set_ebias(127)
    kind.lock()
    return kind


_TYPES: dict[DType | IdType, Any] = {
    DType.BF16: _bf16(),
    DType.FP16: h5t.IEEE_F16LE,
    DType.FP32: h5t.IEEE_F32LE,
    DType.FP64: h5t.IEEE_F64LE,
    # 8-bit floats stay bytes: e4m3 has no infinities, which HDF5 cannot describe. ATTR_DTYPE tells what they are.
    DType.FP8_E4M3: h5t.STD_U8LE,
    DType.FP8_E5M2: h5t.STD_U8LE,
    "int32": h5t.STD_I32LE,
    "int64": h5t.STD_I64LE,
}


def hdf5_type(dtype: DType | IdType) -> h5t.TypeID:
    """The HDF5 type of ``dtype``, on disk and in memory."""
    return _TYPES[dtype]


def create(parent: h5g.GroupID, spec: TensorSpec) -> h5d.DatasetID:
    """An empty dataset ``[0, width]`` at ``spec.name`` under the HDF5 group id ``parent``.

    Chunks bypass the chunk cache: rows go straight to their place in the file, so a frame of six rows does not
    rewrite a whole chunk, and no memory is held.
    """
    return growing.create(parent, spec.name, hdf5_type(spec.dtype), spec.chunk_rows, (spec.width,))


def write_rows(dataset: h5d.DatasetID, start: int, array: npt.NDArray[Any], dtype: DType | IdType) -> None:
    """Rows ``start..`` of a tensor, from the C-contiguous storage array ``[n, width]``, without conversion."""
    if array.shape[0] == 0:
        return
    space = dataset.get_space()
    space.select_hyperslab((start, 0), array.shape)
    dataset.write(h5s.create_simple(array.shape), space, array, hdf5_type(dtype))


def read_rows(dataset: h5d.DatasetID, start: int, stop: int, spec: TensorSpec) -> npt.NDArray[Any]:
    """Rows ``start..stop`` of a tensor as its storage array ``[stop - start, width]``, without conversion."""
    out = np.zeros((stop - start, spec.width), spec.storage)
    if len(out):
        space = dataset.get_space()
        space.select_hyperslab((start, 0), out.shape)
        dataset.read(h5s.create_simple(out.shape), space, out, hdf5_type(spec.dtype))
    return out
