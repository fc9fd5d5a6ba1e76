"""``drafttrace inspect``: what is this file?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer import output


def inspect(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A trace, or any dump that can be read (PATH or PATH#i).")
    ],
    target: Annotated[
        Path | None,
        typer.Option(help="The target's folder: adds checks by value (embedding, norms, next-token loss)."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with tokenizer.json, to show tokens as text.")
    ] = None,
    format_name: Annotated[str | None, typer.Option("--format", help="Read FILE as this format.")] = None,
    json_out: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="The machine form.")] = None,
) -> None:
    """Tell what a trace or dump holds: format, tokens, slots, norms, and what each slot probably is.

    drafttrace inspect data_0.pt --target ./target
    """
    from drafttrace.tracer.inspecting import inspect_capture, render

    found = inspect_capture(file, target=target, tokenizer=tokenizer, format=format_name)
    output.emit(json_out, found.to_json, lambda: render(found, output.console()))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Find the cause")(inspect)
