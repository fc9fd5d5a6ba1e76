"""``drafttrace replay``: the draft's own forward in plain torch, on stored hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import CAUSE, Json, Markdown, Quiet, Verbose, examples
from drafttrace.tracer.commands.reading import (
    PANEL,
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
from drafttrace.tracer.commands.wirings import boundaries_of
from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.tracer.capture import Capture
    from drafttrace.tracer.dumps.registry import FieldMap, Request


def _captures(
    spec: str, *, every: bool, format: str | None, mapping: FieldMap | None, request: Request
) -> list[Capture]:
    from drafttrace.tracer.open import open_some

    def chosen(numbers: Sequence[int]) -> Sequence[int]:
        if every:
            return numbers
        raise DrafttraceError(
            f"'{spec}' holds {len(numbers)} samples; name one as '{spec}#{numbers[0]}', or replay all of them with --all."
        )

    return list(open_some(spec, chosen, format=format, mapping=mapping, request=request))


def _wirings(texts: list[str]) -> list[tuple[int, ...]]:
    return [boundaries_of(text, "wiring") for text in texts]


def replay(
    capture: Annotated[str, typer.Argument(metavar="CAPTURE", help="A trace or dump (PATH or PATH#i).")],
    draft: Annotated[
        Path | None, typer.Option("--draft", help="Folder of the draft (default: the trace's).")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target (default: the trace's).")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All samples of CAPTURE, not one.")] = False,
    wiring: Annotated[
        list[str] | None,
        typer.Option("--wiring", metavar="B0,B3,B31", help="Compare this wiring, too. Repeatable."),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Rank all ordered wirings over the boundaries that are there.")
    ] = False,
    switches: Annotated[
        bool,
        typer.Option(
            "--switches/--no-switches", help="Try norm, recurrence and vocabulary switches the other way."
        ),
    ] = True,
    steps: Annotated[int | None, typer.Option(min=1, help="Draft steps (default: the trace's, else 3).")] = None,
    sglang_version: Annotated[
        str | None, typer.Option("--sglang-version", help="Compare with what this release would serve.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Ignore this unknown config switch. Repeatable.")
    ] = None,
    slots_are: Annotated[
        str | None,
        typer.Option(
            "--slots-are",
            metavar="B0,B3,B31",
            help="The boundaries of the slots, where the file does not say them.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="Read CAPTURE as this format.", rich_help_panel=PANEL)
    ] = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    last_norm: LastNorm = None,
    mask: MaskName = None,
    boundaries: Boundaries = None,
    markdown: Markdown = None,
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run the draft by itself: accuracy and accept length for every wiring, and where live and replay part.

    Draft and target are those that the trace was served with, unless the options say otherwise.
    """
    from drafttrace.compare.replay import render
    from drafttrace.compare.replay.run import replay as run
    from drafttrace.tracer.hub_cache import model_folder
    from drafttrace.tracer.served_paths import folder_of
    from drafttrace.tracer.target_weights import said_of

    named = None if target is None else model_folder(target, "target")
    dump = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, boundaries)
    captures = _captures(
        capture,
        every=every,
        format=format_,
        mapping=dump.mapping,
        request=said_of(named, dump.request, lenient=True),
    )
    output.refuse_twice(markdown, json_out)
    with output.status("the draft runs", quiet=quiet):
        found = run(
            captures,
            folder_of(draft, captures, "draft"),
            folder_of(target, captures, "target"),
            wirings=_wirings(wiring or []),
            search_wirings=search,
            switches=switches,
            steps=steps,
            sglang_version=sglang_version,
            ignore_switches=ignore or (),
            slots_are=_wirings([slots_are])[0] if slots_are is not None else None,
        )
    if markdown is not None:
        output.write_text(markdown, render.markdown(found))
    quiet = quiet or output.takes_stdout(markdown)
    output.emit(json_out, found.to_json, lambda: render.terminal(found, output.console()), quiet=quiet)
    raise typer.Exit(found.exit_code)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=CAUSE,
        epilog=examples(
            (
                "drafttrace replay trace.h5 --draft ./draft --target ./target",
                "was the draft good, and is it as served",
            ),
            ("drafttrace replay trace.h5 --draft ./draft --target ./target --search", "rank every wiring by value"),
            ("drafttrace replay data_0.pt --draft ./draft --target ./target --wiring B2,B30,B58", "try one wiring"),
        ),
    )(replay)
