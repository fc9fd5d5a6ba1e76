"""``drafttrace convert``: write a trace or dump in another layout."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import TRAINING, Json, Quiet, Verbose, examples, tell_notes
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
from drafttrace.tracer.printable import printable

if TYPE_CHECKING:
    from drafttrace.tracer.convert import Converted


class Layout(StrEnum):
    """Layouts that can be written."""

    TRACE = "trace"
    SAFETENSORS = "safetensors"
    SPECFORGE = "specforge"
    SPECULATORS_V1 = "speculators-v1"
    SPECULATORS = "speculators"


class Loss(StrEnum):
    """What may be given up on purpose."""

    LAYER_IDS = "layer-ids"
    LOSS_MASK = "loss-mask"
    LAST_STATE = "last-state"
    BOUNDARIES = "boundaries"
    FIRST_TOKEN = "first-token"
    RECORDING = "recording"
    SAMPLE_NUMBERS = "sample-numbers"
    LATER_PASSES = "later-passes"
    OTHER_FIELDS = "other-fields"
    VALUE_CHECKS = "value-checks"


def convert(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A trace or dump: PATH (every sample) or PATH#i.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file or folder to write (a folder for several samples).")
    ],
    to: Annotated[Layout, typer.Option("--to", help="The layout to write.", show_default=False)],
    format_name: Annotated[str | None, typer.Option("--format", help="Read FILE as this format.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=0, help="The sample, where FILE holds several (default: all).")
    ] = None,
    lose: Annotated[
        list[Loss] | None, typer.Option("--lose", help="Give this up where OUT cannot hold it. Repeatable.")
    ] = None,
    ones: Annotated[
        bool, typer.Option("--mask-ones", help="Make a loss mask of ones where FILE has none.")
    ] = False,
    target: Annotated[
        Path | None,
        typer.Option(
            "--target",
            help="The target's folder: its final norm where OUT needs it, and its values to check FILE by.",
        ),
    ] = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    last_norm: LastNorm = None,
    mask: MaskName = None,
    boundaries: Boundaries = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace a trace or dump at OUT; one of several only where convert wrote it."),
    ] = False,
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write a trace or dump in another layout; what that cannot hold is refused, not dropped.

    A dump of several samples becomes a folder, which is there when all of it is there; the same command goes on where it
    was interrupted.
    """
    from drafttrace.tracer.convert import convert as write
    from drafttrace.tracer.convert_place import refuse_no_place

    output.refuse_stdout(out, "A conversion")
    output.refuse_twice(json_out, out)
    refuse_no_place(json_out)
    dump = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, boundaries)
    with output.sample_progress(quiet=quiet, at_once=False) as progress:
        written = write(
            source,
            out,
            to.value,
            format=format_name,
            sample=sample,
            mapping=dump.mapping,
            request=dump.request,
            lose=[loss.value for loss in lose or []],
            mask="ones" if ones else None,
            target=target,
            force=force,
            progress=progress,
        )
    output.emit(json_out, written.to_json, lambda: _show(written), quiet=quiet)


def _show(written: Converted) -> None:
    """The files on standard output; what the readers say of the source on standard error."""
    console = output.console()
    for path in written.paths:
        many = f": {written.samples} samples" if written.samples > 1 else ""
        console.print(printable(f"{path}{many}"), markup=False, soft_wrap=True)
    for what in written.left_out:
        console.print(printable(f"left out: {what}"), markup=False, style="dim", soft_wrap=True)
    tell_notes(written.notes, "; --json tells all")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=TRAINING,
        epilog=examples(
            (
                "drafttrace convert trace.h5 out.safetensors --to safetensors --lose last-state --lose recording "
                "--lose boundaries",
                "the slots as tensors that any tool opens",
            ),
            (
                "drafttrace convert data_0.pt out.safetensors --to safetensors",
                "a dump without pickle",
            ),
            (
                "drafttrace convert dump out --to safetensors",
                "every sample of a dump, as out/hs_0.safetensors and so on",
            ),
        ),
    )(convert)
