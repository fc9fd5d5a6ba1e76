"""Pieces of Markdown that the generated pages share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any


def cell(text: object) -> str:
    """Text inside a Markdown table."""
    flat = " ".join(str(text).split())
    return re.sub(r"([|<>*_\[\]])", r"\\\1", flat) if flat else " "


def table(*headers: str, rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> Iterator[str]:
    """A Markdown table; cells are Markdown already."""
    yield "| " + " | ".join(headers) + " |"
    yield "|" + "---|" * len(headers)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def docstring(thing: Any) -> Iterator[str]:
    text = inspect.getdoc(thing) or ""
    text = re.sub(r":(?:func|class|mod|meth|attr):`~?([^`]+)`", lambda m: f"`{m[1].rsplit('.', 1)[-1]}`", text)
    text = text.replace("``", "`")
    outside = re.split(r"(`[^`]*`)", text)
    yield "".join(part if part.startswith("`") else re.sub(r"([\[\]<>*_|])", r"\\\1", part) for part in outside)
    yield ""
