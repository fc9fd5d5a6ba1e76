"""``drafttrace reference``: make the training-time capture that nobody kept."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import TRAINING, Quiet, Verbose, examples, tell_notes
from drafttrace.tracer.commands.prompts import read_ids
from drafttrace.tracer.commands.reading import (
    PANEL,
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
    from drafttrace.tracer.capture import Ints
    from drafttrace.tracer.reference import Which


class Precision(StrEnum):
    """Number format that the target runs in."""

    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


def _which(text: str) -> Which:
    if text in {"all", "canonical"}:
        return cast("Which", text)
    return boundaries_of(text, "boundaries")


def _typed(ids: Path | None, prompt: str | None, target: Path) -> list[Ints]:
    """The samples that the command line itself gives."""
    import numpy as np

    samples = []
    if ids is not None:
        samples.append(np.array(read_ids(ids), np.int64))
    if prompt is not None:
        from drafttrace.tracer.tokenizer import load_encoder

        samples.append(np.array(load_encoder(target)(prompt), np.int64))
    return samples


def reference(
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="The file to write (a folder for several samples).", show_default=False
        ),
    ],
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target (default: the trace's).")
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="A trace or dump whose tokens are run: PATH (every sample) or PATH#i. Repeatable.",
        ),
    ] = None,
    input_ids: Annotated[Path | None, typer.Option("--input-ids", help="A file with token ids.")] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Text, tokenised with the target's tokenizer.")
    ] = None,
    boundaries: Annotated[
        str, typer.Option(help="Boundaries to store: all, canonical, or a list like B0,B3,B31.")
    ] = "all",
    wiring: Annotated[
        str | None,
        typer.Option(
            "--wiring",
            metavar="B0,B3,B31",
            help="The wiring that training used (default: the canonical one).",
        ),
    ] = None,
    dtype: Annotated[Precision, typer.Option(help="Number format that the target runs in.")] = Precision.AUTO,
    device_map: Annotated[
        str | None, typer.Option("--device-map", help="As transformers takes it: auto, cuda, cpu.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples that run together.")] = 1,
    format_name: Annotated[
        str | None, typer.Option("--format", help="Read the dumps of --from as this format.", rich_help_panel=PANEL)
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(min=0, help="The sample, where --from holds several (default: all).", rich_help_panel=PANEL),
    ] = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    last_norm: LastNorm = None,
    mask: MaskName = None,
    force: Annotated[
        bool, typer.Option("--force", help="Make every file again, also those of an interrupted run.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run the target with transformers and store its boundaries, for people who kept no dump.

    The target is the one that the trace was served with, unless --target says otherwise. Its wiring is not taken over: a
    reference wired as the server was would match whatever the server does.
    """
    from drafttrace.tracer.open import split_spec
    from drafttrace.tracer.reference import make_reference
    from drafttrace.tracer.reference_samples import numbers_of, read_source
    from drafttrace.tracer.served_paths import folder_of

    output.refuse_stdout(out, "A reference")
    which = _which(boundaries)
    stated = None if wiring is None else boundaries_of(wiring, "wiring")
    dump = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, None)
    read = [
        read_source(spec, format=format_name, sample=sample, mapping=dump.mapping, request=dump.request)
        for spec in sources or []
    ]
    target = folder_of(target, [source.trace for source in read if source.trace is not None], "target")
    typed = _typed(input_ids, prompt, target)
    samples = [sample for source in read for sample in source.tokens] + typed
    masks = [mask for source in read for mask in source.masks] + [None] * len(typed)
    if not samples:
        raise DrafttraceError("There are no tokens to run; give --from, --input-ids or --prompt.")
    with output.sample_progress(quiet=quiet) as progress:
        paths = make_reference(
            target,
            samples,
            out,
            masks=masks,
            boundaries=which,
            slots=stated,
            dtype=dtype.value,
            device_map=device_map,
            batch_size=batch_size,
            numbers=numbers_of(read, len(typed)),
            force=force,
            progress=progress,
            keep=[split_spec(spec)[0] for spec in sources or []],
        )
    if not quiet:
        for path in paths:
            output.console().print(str(path), markup=False, soft_wrap=True)
        tell_notes([note for source in read for note in source.notes])


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=TRAINING,
        epilog=examples(
            (
                "drafttrace reference --from trace.h5 --target ./target --wiring B0,B3,B31 -o reference.safetensors",
                "what training would have stored for the same tokens",
            ),
            (
                "drafttrace reference --from trace.h5 --target ./target -o all.safetensors",
                "every boundary, with the canonical wiring in the slots",
            ),
            (
                "drafttrace reference --from dump --target ./target --batch-size 8 -o references",
                "a file for every sample of a dump; the same command goes on where it was interrupted",
            ),
        ),
    )(reference)
