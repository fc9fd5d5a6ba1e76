"""Text of strangers made safe to show."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """Text in which control, format and private characters are escaped, so that no terminal acts on them.

    Newlines and tabs are shown as ``\\n`` and ``\\t``; ordinary spaces stay.
    """
    if (
        text.isprintable()
    ):  # no control, separator (but the space), private or unassigned character: nearly every text
        return text
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if named is not None:
        return named
    category = unicodedata.category(char)
    if category.startswith("C") or category in {"Zl", "Zp"}:
        code = ord(char)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    return char


def utf8(text: str) -> bytes:
    """Text as a file's bytes. Half characters (a path that is not UTF-8 holds them) become ``\\udcff``.

    In JSON that is the half character again.
    """
    return text.encode("utf-8", "backslashreplace")
