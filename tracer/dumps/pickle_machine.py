"""Reads the pickle inside a torch file without running any of it.

A pickle is a program for a small stack machine whose dangerous instructions call any function by name. This is
that machine with a closed list of names: tensors, storages, number formats, ordered dicts, sizes, numpy arrays.
None of them is the real function; each is a small one of this module that builds plain data. Everything else is
refused with the name that the file asked for.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from drafttrace.tracer.dumps.tensor import STORAGE, Tensor

# More instructions than any honest dump has: its pickle describes tensors, it does not hold them.
_MAX_OPERATIONS = 20_000_000


class BadPickle(Exception):
    """The pickle is damaged, or does something that no dump of tensors does. The text completes a sentence."""


class RefusedPickle(BadPickle):
    """The pickle asks for a function or class that is not on the closed list. ``name`` is what it asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it wants to run '{name}'")
        self.name = name


@dataclass(frozen=True)
class StorageKind:
    """A storage class such as ``torch.BFloat16Storage``; ``kind`` is None for an untyped one (bytes)."""

    kind: str | None

    @property
    def item(self) -> int:
        return 1 if self.kind is None else STORAGE[self.kind].itemsize


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

Storage = Callable[[Sequence[Any]], Tensor]


def _strided(storage: Any, offset: Any, size: Any, stride: Any, kind: str | None) -> Tensor:
    """The view of a flat storage that a pickled tensor describes, after checking that it lies inside."""
    if not isinstance(storage, Tensor):
        raise BadPickle("a tensor has no storage")
    flat = storage.array
    name = storage.kind
    if kind is not None and kind != storage.kind:
        if len(flat) * flat.itemsize % STORAGE[kind].itemsize:
            raise BadPickle("a tensor's storage is no whole number of elements")
        flat, name = flat.view(STORAGE[kind]), kind
    if not isinstance(size, tuple) or not isinstance(stride, tuple) or len(size) != len(stride) or len(size) > 32:
        raise BadPickle("a tensor has no proper shape")
    if any(type(item) is not int or not 0 <= item < 2**48 for item in (offset, *size, *stride)):
        raise BadPickle("a tensor has no proper shape")
    if 0 in size:
        return Tensor(np.empty(size, STORAGE[name]), name, storage.file)
    reach = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if reach >= len(flat):
        raise BadPickle("a tensor reaches past the end of its storage")
    count = 1
    for extent in size:
        count *= extent
    if count > max(len(flat), 1 << 24):
        raise BadPickle("a tensor repeats its storage more often than memory could hold")
    steps = tuple(step * flat.itemsize for step in stride)
    array = np.ndarray(size, flat.dtype, buffer=flat, offset=offset * flat.itemsize, strides=steps)
    return Tensor(array, name, storage.file)


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


def _ordered_dict(items: Any = ()) -> dict[Any, Any]:
    if isinstance(items, dict):
        return dict(items)
    if not isinstance(items, list | tuple):
        raise BadPickle("an ordered dict has no proper items")
    return dict(items)


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


class _NumpyArray:
    """An ndarray whose content arrives with the next BUILD instruction."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Tensor | None = None


class _NumpyType:
    """A numpy dtype whose byte order arrives with the next BUILD instruction."""

    __slots__ = ("order", "text")

    def __init__(self, text: Any, *_rest: Any) -> None:
        if not isinstance(text, str) or text not in _NUMPY_KINDS:
            raise BadPickle(f"a numpy array has the number format {str(text)[:20]!r}")
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


def _numpy_tensor(dtype: Any, shape: Any, fortran: Any, data: Any) -> Tensor:
    if not isinstance(dtype, _NumpyType) or not isinstance(data, bytes) or not isinstance(shape, tuple):
        raise BadPickle("a numpy array is written in an unknown way")
    if any(type(item) is not int or item < 0 for item in shape):
        raise BadPickle("a numpy array has no proper shape")
    if dtype.order == ">":
        raise BadPickle("a numpy array is big-endian")
    kind = _NUMPY_KINDS[dtype.text]
    try:
        flat = np.frombuffer(data, STORAGE[kind])
        return Tensor(flat.reshape(shape, order="F" if fortran else "C"), kind)
    except ValueError:
        raise BadPickle("a numpy array's bytes do not fit its shape") from None


def _numpy_scalar(dtype: Any, data: Any) -> Any:
    return _numpy_tensor(dtype, (), False, data).array.item()


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
        "numpy.ndarray": _NumpyArray,
        "numpy.dtype": _NumpyType,
    }
    for core in ("numpy.core", "numpy._core"):
        table[f"{core}.multiarray._reconstruct"] = lambda *_rest: _NumpyArray()
        table[f"{core}.multiarray.scalar"] = _numpy_scalar
    table |= {f"torch.{name}": StorageKind(kind) for name, kind in _STORAGE_CLASSES.items()}
    table |= {f"torch.{name}": NumberFormat(kind) for name, kind in _TORCH_KINDS.items()}
    return table


_GLOBALS = _globals()
_MARK = object()

_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip


class PickleMachine:
    """Runs one pickle of ``stream``; ``storage`` turns a persistent id into a flat tensor."""

    def __init__(self, stream: BinaryIO, storage: Storage | None = None) -> None:
        self._stream = stream
        self._storage = storage
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The value. Raises BadPickle, or RefusedPickle for a name that is not on the list."""
        try:
            return self._run()
        except BadPickle:
            raise
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error, AttributeError) as error:
            raise BadPickle(f"its pickle is damaged ({type(error).__name__})") from None

    def _run(self) -> Any:
        stack = self._stack
        for number, (operation, argument, _position) in enumerate(pickletools.genops(self._stream)):
            name = operation.name
            if number > _MAX_OPERATIONS:
                raise BadPickle("its pickle never seems to end")
            if name in _LITERALS:
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            elif name == "STOP":
                break
            else:
                step = _STEPS.get(name)
                if step is None:
                    raise BadPickle(f"its pickle uses the instruction {name}, which no dump of tensors needs")
                step(self, argument)
        if len(stack) != 1:
            raise BadPickle("its pickle does not end with one value")
        return _finished(stack[0])

    def _since_mark(self) -> list[Any]:
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                items = self._stack[index + 1 :]
                del self._stack[index:]
                return [_finished(item) for item in items]
        raise BadPickle("its pickle is damaged (a mark is missing)")

    def _pop(self) -> Any:
        return _finished(self._stack.pop())

    def _tuple(self, _argument: Any) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _tuple1(self, _argument: Any) -> None:
        self._stack.append((self._pop(),))

    def _tuple2(self, _argument: Any) -> None:
        second, first = self._pop(), self._pop()
        self._stack.append((first, second))

    def _tuple3(self, _argument: Any) -> None:
        third, second, first = self._pop(), self._pop(), self._pop()
        self._stack.append((first, second, third))

    def _append(self, _argument: Any) -> None:
        value = self._pop()
        self._top(list).append(value)

    def _appends(self, _argument: Any) -> None:
        values = self._since_mark()
        self._top(list).extend(values)

    def _setitem(self, _argument: Any) -> None:
        value, key = self._pop(), self._pop()
        self._top(dict)[key] = value

    def _setitems(self, _argument: Any) -> None:
        items = self._since_mark()
        if len(items) % 2:
            raise BadPickle("its pickle is damaged (a key without a value)")
        self._top(dict).update(zip(items[::2], items[1::2], strict=True))

    def _dict(self, _argument: Any) -> None:
        items = self._since_mark()
        self._stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def _list(self, _argument: Any) -> None:
        self._stack.append(self._since_mark())

    def _top(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise BadPickle("its pickle is damaged (an item without its container)")
        return self._stack[-1]

    def _get(self, argument: Any) -> None:
        self._stack.append(self._memo[int(argument)])

    def _put(self, argument: Any) -> None:
        self._memo[int(argument)] = self._stack[-1]

    def _memoize(self, _argument: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _global(self, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        self._find(module, name)

    def _stack_global(self, _argument: Any) -> None:
        name, module = self._pop(), self._pop()
        self._find(str(module)[:200], str(name)[:200])

    def _find(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full not in _GLOBALS:
            raise RefusedPickle(full)
        self._stack.append(_GLOBALS[full])

    def _reduce(self, _argument: Any) -> None:
        arguments, function = self._pop(), self._stack.pop()
        if not isinstance(arguments, tuple) or not callable(function):
            raise BadPickle("its pickle calls something that is no function")
        self._stack.append(function(*arguments))

    def _build(self, _argument: Any) -> None:
        state, target = self._pop(), self._stack[-1]
        if isinstance(target, _NumpyArray) and isinstance(state, tuple) and len(state) == 5:
            _version, shape, dtype, fortran, data = state
            target.value = _numpy_tensor(dtype, shape, fortran, data)
        elif isinstance(target, _NumpyType) and isinstance(state, tuple) and len(state) >= 2:
            target.order = "<" if state[1] in {"<", "|", "="} else ">"
        elif not isinstance(target, dict):  # an ordered dict may carry attributes; they are not data
            raise BadPickle("its pickle sets attributes of an object")

    def _persistent(self, _argument: Any) -> None:
        key = self._pop()
        if self._storage is None or not isinstance(key, tuple):
            raise BadPickle("it refers to data that is not in the file")
        self._stack.append(self._storage(key))

    def _ignore(self, _argument: Any) -> None:
        return

    def _discard(self, _argument: Any) -> None:
        self._stack.pop()


def _finished(value: Any) -> Any:
    if isinstance(value, _NumpyArray):
        if value.value is None:
            raise BadPickle("a numpy array has no content")
        return value.value
    return value


_STEPS: dict[str, Callable[[PickleMachine, Any], None]] = {
    "TUPLE": PickleMachine._tuple,
    "TUPLE1": PickleMachine._tuple1,
    "TUPLE2": PickleMachine._tuple2,
    "TUPLE3": PickleMachine._tuple3,
    "APPEND": PickleMachine._append,
    "APPENDS": PickleMachine._appends,
    "SETITEM": PickleMachine._setitem,
    "SETITEMS": PickleMachine._setitems,
    "DICT": PickleMachine._dict,
    "LIST": PickleMachine._list,
    "GET": PickleMachine._get,
    "BINGET": PickleMachine._get,
    "LONG_BINGET": PickleMachine._get,
    "PUT": PickleMachine._put,
    "BINPUT": PickleMachine._put,
    "LONG_BINPUT": PickleMachine._put,
    "MEMOIZE": PickleMachine._memoize,
    "GLOBAL": PickleMachine._global,
    "STACK_GLOBAL": PickleMachine._stack_global,
    "REDUCE": PickleMachine._reduce,
    "BUILD": PickleMachine._build,
    "BINPERSID": PickleMachine._persistent,
    "PROTO": PickleMachine._ignore,
    "FRAME": PickleMachine._ignore,
    "POP": PickleMachine._discard,
}
