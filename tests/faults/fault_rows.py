"""The fault lab's table; a module of its own, because several folders have a `conftest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drafttrace.compare.vocabulary import entries

OR = " or "
"""Between the ids of a fault of which chance decides what it shows, as what a server's memory held."""


@dataclass(frozen=True)
class Row:
    """One line: the fault, where it was put in, the ids that must be found and those that were, with confidences.

    where: the pair. place: ``dump``, ``server`` or ``trace`` (its arguments are another server's). command: what named it.
    note: what is expected is no fault of the server's but something to be said: there must be no fault.
    """

    fault: str
    where: str
    expected: tuple[str, ...]
    found: tuple[tuple[str, float], ...]
    seconds: float
    place: str = "dump"
    command: str = "diff"
    note: bool = False

    @property
    def reached(self) -> bool:
        """A single fault is named first; of a pair both are named; a healthy pair (nothing expected) has no fault."""
        names = [name for name, _ in self.found]
        if not self.expected:
            return not names
        if len(self.expected) == 1:
            return bool(names) and names[0] in self.expected[0].split(OR)
        return set(self.expected) <= set(names)

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as text: fault, where, command, expected, found, seconds, reached."""
        found = ", ".join(f"{name} {confidence:.2f}" for name, confidence in self.found) or "nothing"
        return (
            self.fault,
            f"{self.where}, {self.place}",
            self.command,
            (" + ".join(self.expected) or "nothing") + (" (a note)" if self.note else ""),
            found,
            f"{self.seconds:.1f}",
            "yes" if self.reached else "NOT REACHED",
        )


HEADER = ("fault", "put into", "command", "expected", "found (confidence)", "s", "reached")


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Singles, then pairs, then healthy comparisons; the server's before the dump's."""
    return sorted(rows, key=lambda r: (len(r.expected) or 9, r.place != "server", r.fault, r.where))


def summary(rows: Sequence[Row]) -> str:
    """How many faults were named, and how many false alarms there were."""
    healthy = [r for r in rows if not r.expected]
    notes = [r for r in rows if r.note]
    single = [r for r in rows if len(r.expected) == 1 and not r.note]
    pairs = [r for r in rows if len(r.expected) > 1]
    alarms = sum(not r.reached for r in healthy)
    return (
        f"{sum(r.reached for r in single)} of {len(single)} single faults named first, "
        f"{sum(r.reached for r in pairs)} of {len(pairs)} pairs of faults named both, "
        f"{sum(r.reached for r in notes)} of {len(notes)} notes told and no fault, "
        f"{alarms} false alarms in {len(healthy)} healthy comparisons"
    )


def without_a_row(rows: Sequence[Row]) -> list[str]:
    """The ids of the closed vocabulary that no line expects."""
    return sorted(set(entries()) - {name for row in rows for one in row.expected for name in one.split(OR)})


def markdown(rows: Sequence[Row]) -> str:
    """The whole table, ready for a document."""
    missing = ", ".join(f"`{name}`" for name in without_a_row(rows)) or "none"
    lines = [f"{summary(rows)}.", "", f"Ids of the vocabulary without a line: {missing}.", ""]
    for title, chosen in (
        (
            "Faults put into a running server",
            [r for r in rows if r.expected and not r.note and r.place == "server"],
        ),
        (
            "Faults put into a training dump, or into the arguments that a trace keeps",
            [r for r in rows if r.expected and not r.note and r.place != "server"],
        ),
        ("What is no fault and has to be said", [r for r in rows if r.note]),
        ("Healthy comparisons", [r for r in rows if not r.expected]),
    ):
        if chosen:
            lines += [f"## {title}", "", f"{summary(chosen)}.", ""]
            lines += [_line(HEADER), _line(["---"] * len(HEADER))]
            lines += [_line(row.cells) for row in ordered(chosen)]
            lines.append("")
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
