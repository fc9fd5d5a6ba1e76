"""A number with what it counts: one row, two rows."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """``1 row``, ``2 rows``. word: in the singular; with an s, the plural."""
    return f"{count} {word}{'' if count == 1 else 's'}"
