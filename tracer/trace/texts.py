"""Texts in HDF5 without the global heap: fixed-length UTF-8, safe under SWMR and readable by every viewer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np


def encode(value: Any) -> str:
    """``value`` as JSON text; what JSON does not know becomes its ``str``."""
    return json.dumps(value, ensure_ascii=False, default=str)


def set_attribute(target: h5py.HLObject, name: str, text: str) -> None:
    """A fixed-length text attribute."""
    data = text.encode("utf-8", "replace")
    target.attrs.create(name, np.bytes_(data), dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def get_text(value: Any) -> str:
    """The text of an attribute or scalar dataset, fixed or variable length."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def write_text(group: h5py.Group, name: str, text: str) -> None:
    """A scalar text dataset ``name`` under ``group``; one that stands there is replaced."""
    data = text.encode("utf-8", "replace")
    if name in group:
        del group[name]
    kind = h5py.string_dtype("utf-8", max(1, len(data)))
    group.create_dataset(name, data=np.bytes_(data), dtype=kind)


def write_about(file: h5py.File, about: Mapping[str, Any]) -> None:
    """Every block of ``about`` as one JSON text ``/about/{name}``."""
    group = file.require_group("about")
    for name, value in about.items():
        if not name or "/" in name or name == "layout":
            raise ValueError(f"'{name}' cannot name an about block")
        write_text(group, name, encode(value))
