"""Pieces of Markdown that the generated pages share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
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


def between(text: str, parts: Mapping[str, Iterator[str]]) -> str:
    """A page with its made parts anew, each between its ``begin`` and ``end`` comments."""
    for name, lines in parts.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        head, rest = text.split(begin)
        text = head + begin + "\n" + "\n".join(lines).strip() + "\n" + end + rest.split(end)[1]
    return text


def docstring(thing: Any) -> Iterator[str]:
    text = inspect.getdoc(thing) or ""
    text = re.sub(r":(?:func|class|mod|meth|attr):`~?([^`]+)`", lambda m: f"`{m[1].rsplit('.', 1)[-1]}`", text)
    text = text.replace("``", "`")
    outside = re.split(r"(`[^`]*`)", text)
    yield "".join(part if part.startswith("`") else re.sub(r"([\[\]<>*_|])", r"\\\1", part) for part in outside)
    yield ""
