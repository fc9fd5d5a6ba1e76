"""``drafttrace inspect``: what is this file?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import CAUSE, Json, Quiet, Verbose, examples
from drafttrace.tracer.commands.reading import (
    Boundaries,
    HiddenSize,
    LastName,
    LastNorm,
    LayerIds,
    MaskName,
    SlotNames,
    TokensName,
    said,
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
    last_norm: LastNorm = None,
    mask: MaskName = None,
    boundaries: Boundaries = None,
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tell what a trace or dump holds: format, tokens, slots, norms, and what each slot probably is.

    Exit code: 0 nothing wrong, 1 a check is refuted or rows are broken, 2 FILE cannot be read.
    """
    from drafttrace.tracer.inspect_render import render
    from drafttrace.tracer.inspecting import inspect_capture

    dump = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, boundaries)
    with output.status("reading", quiet=quiet, after=1.0):
        found = inspect_capture(
            file,
            target=target,
            tokenizer=tokenizer,
            format=format_name,
            sample=sample,
            mapping=dump.mapping,
            request=dump.request,
        )
    output.emit(json_out, found.to_json, lambda: render(found, output.console()), quiet=quiet)
    raise typer.Exit(1 if found.problems else 0)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=CAUSE,
        epilog=examples(
            ("drafttrace inspect data_0.pt", "which format, which slots, which norms"),
            ("drafttrace inspect data_0.pt --target ./target", "check by value: embedding, norms, next-token loss"),
            ("drafttrace inspect trace.h5 --json -", "the same for a program"),
        ),
    )(inspect)
