"""Which faults are in force at this moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Switch:
    """The words of a file. ``memory`` is what faults remember of earlier passes; it goes when the words change."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._text = ""
        self._names: tuple[str, ...] = ()
        self.memory: dict[str, Any] = {}

    def names(self) -> tuple[str, ...]:
        """The faults in force, in the order in which they are put in."""
        text = self._path.read_text(encoding="utf-8")
        if text != self._text:
            self._text, self._names, self.memory = text, tuple(text.split()), {}
        return self._names
