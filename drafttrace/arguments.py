"""Arguments that Python's callers get wrong: refused by name, value and remedy, before anything is read."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError


def refuse_no_source(given: Any, name: str) -> None:
    """Raise DrafttraceError for what is neither a path nor an open capture. name: of the argument."""
    _refuse(given, name, ["Source"])


def refuse_other(given: Any, name: str, allowed: Collection[str]) -> None:
    """Raise DrafttraceError for a word that is none of those allowed. name: of the argument."""
    if not isinstance(given, str) or given not in allowed:
        raise DrafttraceError(f"The {name} {given!r:.60} is not known; give one of {', '.join(sorted(allowed))}.")


def refuse_other_types(signature: inspect.Signature, given: Mapping[str, Any]) -> None:
    """Raise DrafttraceError for the first argument that is of no type which its annotation names.

    Types that are not in the table below are left to the function itself.
    """
    for name, value in given.items():
        _refuse(value, name, _alternatives(str(signature.parameters[name].annotation)))


def _refuse(value: Any, name: str, kinds: list[str]) -> None:
    known = [kind for kind in kinds if kind != "None"]
    if any(_head(kind) not in _KINDS for kind in known) or (value is None and "None" in kinds):
        return
    fitting = [kind for kind in known if _KINDS[_head(kind)][0](value)]
    wrong = next((item for kind in fitting if (item := _wrong_item(value, kind))), None)
    if fitting and wrong is None:
        return
    if wrong is not None:
        place, kinds = wrong
        _refuse(value[place], f"{name}[{place}]", kinds)
    whats = " and no ".join(_KINDS[_head(kind)][1] for kind in known)
    *gives, last = dict.fromkeys(give for kind in known for give in _KINDS[_head(kind)][2])
    raise DrafttraceError(
        f"The {name} {value!r:.60} is no {whats}; give {', '.join(gives)}{' or ' if gives else ''}{last}."
    )


@functools.cache
def _alternatives(annotation: str) -> list[str]:
    """``str | Sequence[int | str] | None`` as its three parts."""
    parts, depth = [""], 0
    for sign in annotation:
        depth += (sign == "[") - (sign == "]")
        if sign == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def _head(kind: str) -> str:
    return kind.split("[", 1)[0]


def _wrong_item(value: Any, kind: str) -> tuple[int, list[str]] | None:
    """The first item of a list that is of none of the types that its annotation names, and these."""
    if _head(kind) != "Sequence" or not isinstance(value, (list, tuple)):
        return None
    kinds = _alternatives(kind[kind.index("[") + 1 : -1])
    if any(_head(one) not in _KINDS for one in kinds):
        return None
    tests = [_KINDS[_head(one)][0] for one in kinds]
    return next(((k, kinds) for k, item in enumerate(value) if not any(test(item) for test in tests)), None)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and not isinstance(os.fspath(value), bytes)


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_result(value: Any) -> bool:
    from drafttrace.compare.result import Result

    return isinstance(value, Result)


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


# By the name of a type: whether a value is of it, what a sentence calls it, and what to give.
_KINDS: dict[str, tuple[Callable[[Any], bool], str, tuple[str, ...]]] = {
    "PathLike": (_is_path, "path", ("a str", "a pathlib.Path")),
    "Source": (
        lambda value: isinstance(value, Capture) or _is_path(value),
        "trace or dump",
        ("its path", "an open capture"),
    ),
    "Capture": (lambda value: isinstance(value, Capture), "open capture", ("what drafttrace.open returned",)),
    "Result": (_is_result, "result", ("what drafttrace.diff or drafttrace.load returned",)),
    "str": (lambda value: isinstance(value, str), "text", ("a str",)),
    "bool": (lambda value: type(value).__name__ in {"bool", "bool_"}, "truth value", ("True", "False")),
    "int": (lambda value: _is_number(value, numbers.Integral), "whole number", ("an int",)),
    "float": (lambda value: _is_number(value, numbers.Real), "number", ("a float",)),
    "Wiring": (
        lambda value: isinstance(value, str) or _is_list(value),
        "wiring",
        ("boundaries, as [0, 3, 31] or 'B0,B3,B31'",),
    ),
    "Sequence": (_is_list, "list", ("a list",)),
    "Mapping": (lambda value: isinstance(value, Mapping), "dict", ("a dict",)),
}
