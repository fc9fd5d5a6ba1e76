"""What the commands share: options, the examples below each command's help, notes on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer import log
from drafttrace.tracer.printable import printable

START = "Start here"
SERVER = "On the server"
LIVE = "With a live server"
CAUSE = "Find the cause"
READ = "Read and share reports"
TRAINING = "Training side"
_MOST_NOTES = 6
PANELS = (START, SERVER, LIVE, CAUSE, READ, TRAINING)


def _show_log(wanted: bool) -> bool:
    if wanted:
        log.show()
    return wanted


Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Say on stderr what is read and asked for; on an error, where in the code.",
        callback=_show_log,
        is_eager=True,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="The machine form.")]
Markdown = Annotated[Path | None, typer.Option("--md", metavar="FILE|-", help="A report to paste into an issue.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE|-", help="A self-contained page with plots.")]
Png = Annotated[
    Path | None,
    typer.Option(
        "--png", metavar="FILE|-", help="One picture of the plots: .png, .pdf or .svg (needs matplotlib)."
    ),
]


def examples(*lines: Sequence[str]) -> str:
    """The text below a command's help: pairs of a command and what it is for."""
    # Older typers join the two lines of a pair: then it still reads as a command with a comment.
    shown = "\n\n".join(f"$ {_plain(command)}\n   [dim]# {_plain(what)}[/dim]" for command, what in lines)
    return f"[bold]Examples[/bold]\n\n{shown}"


def tell_notes(notes: Sequence[str], where: str = "") -> None:
    """The first few notes, on standard error. where: what tells all of them, as "; --json tells all"."""
    more = len(notes) - _MOST_NOTES
    for note in [*notes[:_MOST_NOTES], *([f"{more} more{where}"] if more > 0 else [])]:
        print(f"drafttrace: note: {printable(note)}", file=sys.stderr)


def flowing(text: str) -> str:
    """A docstring with every paragraph in one line: the terminal breaks it, and not a second time where the source did."""
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
