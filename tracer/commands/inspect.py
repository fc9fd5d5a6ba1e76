"""``drafttrace inspect``: what is this file?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.reading import (
    HiddenSize,
    LastName,
    LayerIds,
    SlotNames,
    TokensName,
    mapping_of,
    request_of,
)


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
    sample: Annotated[int | None, typer.Option(min=0, help="The sample, where FILE holds several.")] = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    json_out: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="The machine form.")] = None,
) -> None:
    """Tell what a trace or dump holds: format, tokens, slots, norms, and what each slot probably is.

    drafttrace inspect data_0.pt --target ./target
    """
    from drafttrace.tracer.inspect_render import render
    from drafttrace.tracer.inspecting import inspect_capture

    found = inspect_capture(
        file,
        target=target,
        tokenizer=tokenizer,
        format=format_name,
        sample=sample,
        mapping=mapping_of(slots, tokens, last),
        request=request_of(hidden_size, layer_ids),
    )
    output.emit(json_out, found.to_json, lambda: render(found, output.console()))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Find the cause")(inspect)
