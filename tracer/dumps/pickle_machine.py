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
from typing import Any, BinaryIO

from drafttrace.tracer.dumps.pickle_values import (
    GLOBALS,
    OTHER_NUMBERS,
    BadPickle,
    FlatStorage,
    NumpyArray,
    NumpyType,
    OtherNumbers,
    RefusedPickle,
    checked_key,
    numpy_tensor,
)

# More instructions than any honest dump has: its pickle describes tensors, it does not hold them.
_MAX_OPERATIONS = 20_000_000
# Dicts, lists and tuples of a value, each counted as often as it is met, and how deep they may nest.
_MAX_CONTAINERS = 2_000_000
_MAX_DEPTH = 200


Storage = Callable[[Sequence[Any]], FlatStorage]
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
    """Runs one pickle of ``stream``; ``storage`` finds what a persistent id stands for."""

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
        except MemoryError:  # a length of a damaged file
            raise BadPickle("its pickle claims more bytes than there is memory for") from None
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
        value = _finished(stack[0])
        _check_size(value)
        return value

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
        self._top(dict)[checked_key(key)] = value

    def _setitems(self, _argument: Any) -> None:
        items = self._since_mark()
        if len(items) % 2:
            raise BadPickle("its pickle is damaged (a key without a value)")
        self._top(dict).update(_pairs(items))

    def _dict(self, _argument: Any) -> None:
        items = self._since_mark()
        self._stack.append(dict(_pairs(items)))

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
        if not isinstance(name, str) or not isinstance(module, str):
            raise BadPickle("its pickle is damaged (a name that is no text)")
        self._find(module[:200], name[:200])

    def _find(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full in OTHER_NUMBERS:
            raise OtherNumbers(OTHER_NUMBERS[full], full)
        if full not in GLOBALS:
            raise RefusedPickle(full)
        self._stack.append(GLOBALS[full])

    def _reduce(self, _argument: Any) -> None:
        arguments, function = self._pop(), self._stack.pop()
        if not isinstance(arguments, tuple) or not callable(function):
            raise BadPickle("its pickle calls something that is no function")
        self._stack.append(function(*arguments))

    def _build(self, _argument: Any) -> None:
        state, target = self._pop(), self._stack[-1]
        if isinstance(target, NumpyArray) and isinstance(state, tuple) and len(state) == 5:
            _version, shape, dtype, fortran, data = state
            target.value = numpy_tensor(dtype, shape, fortran, data)
        elif isinstance(target, NumpyType) and isinstance(state, tuple) and len(state) >= 2:
            target.order = "<" if state[1] in ("<", "|", "=") else ">"
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


def _pairs(items: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(checked_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True)]


def _check_size(value: Any) -> None:
    """Refuse a value that means itself, or the same parts over and over: whoever walks it would never be done."""
    todo = [(value, 0)] if isinstance(value, dict | list | tuple) else []
    seen = 0
    while todo:
        part, depth = todo.pop()
        seen += 1
        if depth > _MAX_DEPTH or seen > _MAX_CONTAINERS:
            raise BadPickle("its pickle repeats its parts without end")
        inner = part.values() if isinstance(part, dict) else part
        todo.extend((item, depth + 1) for item in inner if isinstance(item, dict | list | tuple))


def _finished(value: Any) -> Any:
    if isinstance(value, NumpyArray):
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
