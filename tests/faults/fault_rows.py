"""One line of the fault lab's table; a module of its own, because several folders have a `conftest`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line: the fault, where it was put in, the ids that must be found and those that were, with confidences."""

    fault: str
    where: str
    expected: tuple[str, ...]
    found: tuple[tuple[str, float], ...]
    seconds: float

    @property
    def reached(self) -> bool:
        """A single fault is named first; of a pair both are named; a healthy pair (nothing expected) has no fault."""
        names = [name for name, _ in self.found]
        if not self.expected:
            return not names
        return names[:1] == list(self.expected) if len(self.expected) == 1 else set(self.expected) <= set(names)
