"""Frozen dataclasses to JSON values and back, with NaN and infinities as null: JSON that every parser reads."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """``value`` as dict, list, str, int, float, bool or None. A dataclass field is renamed by ``metadata["key"]``."""
    kind = type(value)
    if kind is float:  # most values by far are numbers in long lists
        return value if math.isfinite(value) else None
    if kind is int or kind is str:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_key(f): to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)


def from_plain(kind: type[T], value: Any) -> T:
    """The dataclass ``kind`` from what :func:`to_plain` made of it. Unknown keys are ignored (newer minor versions).

    Raises ValueError where a field is missing or has another type.
    """
    made: T = _build(kind, value, kind.__name__)
    return made


def _key(field: dataclasses.Field[Any]) -> str:
    key: str = field.metadata.get("key", field.name)
    return key


def _build(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _build_union(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} is no list")
        item = typing.get_args(kind)[0]
        return tuple(_build(item, one, f"{where}[{i}]") for i, one in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is no object")
        item = typing.get_args(kind)[1]
        return {key: _build(item, one, f"{where}.{key}") for key, one in value.items()}
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    return _build_scalar(kind, value, where)


def _build_union(kind: Any, value: Any, where: str) -> Any:
    options = typing.get_args(kind)
    if value is None and type(None) in options:
        return None
    inner = [option for option in options if option is not type(None)]
    return _build(inner[0], value, where)


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object")
    hints = typing.get_type_hints(kind)
    filled = {}
    for field in dataclasses.fields(kind):
        key = _key(field)
        if key in value:
            filled[field.name] = _build(hints[field.name], value[key], f"{where}.{key}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} has no field '{key}'")
    return kind(**filled)


def _build_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        if value is None:
            return math.nan
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif kind in (str, bool) and isinstance(value, kind):
        return value
    raise ValueError(f"{where} should be {getattr(kind, '__name__', kind)}, not {value!r}")
