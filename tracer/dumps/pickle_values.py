"""The values that a pickled torch file may name, each rebuilt by a small function of this module as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafttrace.tracer.dumps.file_tensor import file_tensor
from drafttrace.tracer.dumps.tensor import STORAGE, Tensor
from drafttrace.tracer.file_bytes import FileBytes


class BadPickle(Exception):
    """The pickle is damaged, or does something that no dump of tensors does. The text completes a sentence."""


class RefusedPickle(BadPickle):
    """The pickle asks for a function or class that is not on the closed list. ``name`` is what it asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it wants to run '{name}'")
        self.name = name


class OtherNumbers(BadPickle):
    """The pickle holds tensors, but not of numbers that hidden states are stored in. what: which. name: in the file."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"it holds {what} ({name})")
        self.what = what
        self.name = name


@dataclass(frozen=True)
class StorageKind:
    """A storage class such as ``torch.BFloat16Storage``; ``kind`` is None for an untyped one (bytes)."""

    kind: str | None

    @property
    def item(self) -> int:
        return 1 if self.kind is None else STORAGE[self.kind].itemsize


@dataclass(frozen=True)
class FlatStorage:
    """What pickled tensors are views of: ``count`` elements of ``kind`` from byte ``begin`` of a file."""

    file: FileBytes
    begin: int
    count: int
    kind: str


@dataclass(frozen=True)
class NumberFormat:
    """A dtype such as ``torch.bfloat16``."""

    kind: str


_TORCH_KINDS = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint64": "uint64",
    "uint32": "uint32",
    "uint16": "uint16",
    "uint8": "uint8",
    "bool": "bool",
}
_STORAGE_CLASSES = {
    "DoubleStorage": "fp64",
    "FloatStorage": "fp32",
    "HalfStorage": "fp16",
    "BFloat16Storage": "bf16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


_OTHERS = {
    "complex numbers": ("ComplexFloatStorage", "ComplexDoubleStorage", "complex32", "complex64", "complex128"),
    "quantised numbers": ("QInt8Storage", "QUInt8Storage", "QInt32Storage", "QUInt4x2Storage", "QUInt2x4Storage",
                          "_utils._rebuild_qtensor"),
    "sparse or nested tensors": ("_utils._rebuild_sparse_tensor", "_utils._rebuild_nested_tensor"),
    "floats of another kind": ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
}  # fmt: skip
# Full name in the file -> what tensors it stands for. They are data, no code, and no hidden states either.
OTHER_NUMBERS = {f"torch.{name}": what for what, names in _OTHERS.items() for name in names}


def _strided(storage: Any, offset: Any, size: Any, stride: Any, kind: str | None) -> Tensor:
    """The view of a flat storage that a pickled tensor describes, after checking that it lies inside."""
    if not isinstance(storage, FlatStorage):
        raise BadPickle("a tensor has no storage")
    name, item = kind or storage.kind, STORAGE[kind or storage.kind].itemsize
    size_bytes = storage.count * STORAGE[storage.kind].itemsize
    if size_bytes % item:
        raise BadPickle("a tensor's storage is no whole number of elements")
    count = size_bytes // item
    if not isinstance(size, tuple) or not isinstance(stride, tuple) or len(size) != len(stride) or len(size) > 32:
        raise BadPickle("a tensor has no proper shape")
    if any(type(number) is not int or not 0 <= number < 2**48 for number in (offset, *size, *stride)):
        raise BadPickle("a tensor has no proper shape")
    if 0 in size:
        return Tensor.held(np.empty(size, STORAGE[name]), name)
    reach = offset + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    if reach >= count:
        raise BadPickle("a tensor reaches past the end of its storage")
    if math.prod(size) > max(count, 1 << 24):
        raise BadPickle("a tensor repeats its storage more often than memory could hold")
    return file_tensor(storage.file, storage.begin + offset * item, size, name, [step * item for step in stride])


def _tensor_v2(storage: Any, offset: Any, size: Any, stride: Any, *_rest: Any) -> Tensor:
    return _strided(storage, offset, size, stride, None)


def _tensor_v3(
    storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_rest: Any
) -> Tensor:
    if not isinstance(dtype, NumberFormat):
        raise BadPickle("a tensor has no number format")
    return _strided(storage, offset, size, stride, dtype.kind)


def _parameter(tensor: Any, *_rest: Any) -> Any:
    return tensor


def _from_type(function: Any, _kind: Any, arguments: Any, *_state: Any) -> Any:
    """A tensor of a class of its own, as a buffer of a module is: one of this module's functions makes the plain one."""
    if not callable(function) or not isinstance(arguments, tuple):
        raise BadPickle("a tensor is written in an unknown way")
    return function(*arguments)


def checked_key(key: Any) -> Any:
    """A dict's key, if it is one plain value: hashing nested tuples that share their parts can take for ever."""
    if key is not None and not isinstance(key, str | int | float | bytes):
        raise BadPickle("a dict has a key that is neither text nor number")
    return key


def _ordered_dict(items: Any = ()) -> dict[Any, Any]:
    if isinstance(items, dict):
        return dict(items)
    if not isinstance(items, list | tuple):
        raise BadPickle("an ordered dict has no proper items")
    return {checked_key(key): value for key, value in items}


def _size(items: Any = ()) -> tuple[Any, ...]:
    if not isinstance(items, list | tuple):
        raise BadPickle("a size is no list of numbers")
    return tuple(items)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise BadPickle("bytes are written in an unknown way")
    return text.encode("latin1")


def _device(*parts: Any) -> str:
    return ":".join(str(part) for part in parts if isinstance(part, str | int))


def _side_value(*_parts: Any) -> Any:
    """What torch, too, loads without running code, and no state or token is made of: it stands beside them."""
    return None


class NumpyArray:
    """An ndarray whose content arrives with the next BUILD instruction."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Tensor | None = None


class NumpyType:
    """A numpy dtype whose byte order arrives with the next BUILD instruction."""

    __slots__ = ("order", "text")

    def __init__(self, text: Any, *_rest: Any) -> None:
        if not isinstance(text, str):
            raise BadPickle("a numpy array has no number format")
        if text[:1] == "c":
            raise OtherNumbers("complex numbers", f"numpy {text[:20]}")
        if text not in _NUMPY_KINDS:
            raise BadPickle(f"a numpy array has the number format {text[:20]!r}")
        self.text = text
        self.order = "<"


_NUMPY_KINDS = {
    "f8": "fp64",
    "f4": "fp32",
    "f2": "fp16",
    "i8": "int64",
    "i4": "int32",
    "i2": "int16",
    "i1": "int8",
    "u8": "uint64",
    "u4": "uint32",
    "u2": "uint16",
    "u1": "uint8",
    "b1": "bool",
}


def numpy_tensor(dtype: Any, shape: Any, fortran: Any, data: Any) -> Tensor:
    if not isinstance(dtype, NumpyType) or not isinstance(data, bytes) or not isinstance(shape, tuple):
        raise BadPickle("a numpy array is written in an unknown way")
    if any(type(item) is not int or item < 0 for item in shape):
        raise BadPickle("a numpy array has no proper shape")
    if dtype.order == ">":
        raise BadPickle("a numpy array is big-endian")
    kind = _NUMPY_KINDS[dtype.text]
    try:
        flat = np.frombuffer(data, STORAGE[kind])
        return Tensor.held(flat.reshape(shape, order="F" if fortran else "C"), kind)
    except ValueError:
        raise BadPickle("a numpy array's bytes do not fit its shape") from None


def _numpy_scalar(dtype: Any, data: Any) -> Any:
    return numpy_tensor(dtype, (), False, data).read().item()


def _globals() -> dict[str, Any]:
    table: dict[str, Any] = {
        "torch._utils._rebuild_tensor": _tensor_v2,
        "torch._utils._rebuild_tensor_v2": _tensor_v2,
        "torch._utils._rebuild_tensor_v3": _tensor_v3,
        "torch._utils._rebuild_parameter": _parameter,
        "torch.storage.UntypedStorage": StorageKind(None),
        "torch.UntypedStorage": StorageKind(None),
        "collections.OrderedDict": _ordered_dict,
        "torch.Size": _size,
        "torch.device": _device,
        "_codecs.encode": _encode,
        "torch.nn.parameter.Buffer": _parameter,
        "torch._tensor._rebuild_from_type_v2": _from_type,
        "torch.Tensor": "torch.Tensor",  # the class that the former names, to no effect
        "collections.Counter": _side_value,
        "collections.defaultdict": _side_value,
        "numpy.ndarray": NumpyArray,
        "numpy.dtype": NumpyType,
    }
    for module in ("builtins", "__builtin__"):
        table |= {f"{module}.{name}": _side_value for name in ("set", "frozenset", "complex", "bytearray")}
    for core in ("numpy.core", "numpy._core"):
        table[f"{core}.multiarray._reconstruct"] = lambda *_rest: NumpyArray()
        table[f"{core}.multiarray.scalar"] = _numpy_scalar
    table |= {f"torch.{name}": StorageKind(kind) for name, kind in _STORAGE_CLASSES.items()}
    table |= {f"torch.{name}": NumberFormat(kind) for name, kind in _TORCH_KINDS.items()}
    return table


# Full name in the file -> what stands for it here. Nothing else can be named.
GLOBALS = _globals()
