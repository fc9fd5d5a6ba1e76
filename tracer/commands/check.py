"""``drafttrace check``: audit a draft's configuration and weights; no server, no tensors needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from drafttrace.tracer import log, output
from drafttrace.tracer.client import Client
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


def check(
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target (default: the trace's).")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option("--draft", help="Folder of the draft (default: the trace's).")
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", help="A trace: the target and draft that it was served with.")
    ] = None,
    dump: Annotated[
        str | None,
        typer.Option(
            "--dump",
            metavar="FILE[#i]",
            help="A training dump (a few of its samples): its wiring is the one wanted.",
        ),
    ] = None,
    trained: Annotated[
        str | None, typer.Option("--trained", metavar="B0,B3,B31", help="The wiring of training, if you know it.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="A live server: does it do what the config says?")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="SGLANG_API_KEY", help="The server's API key.")] = None,
    sglang_version: Annotated[
        str | None, typer.Option("--sglang-version", help="Audit for this release instead of the installed one.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="The --speculative-algorithm that will be served with.")
    ] = None,
    dump_format: Annotated[
        str | None, typer.Option("--format", help="Read the dump as this format.", rich_help_panel=PANEL)
    ] = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    last_norm: LastNorm = None,
    mask: MaskName = None,
    boundaries: Boundaries = None,
    hash_weights: Annotated[
        bool, typer.Option("--hash", help="Read and hash every tensor (slow on large checkpoints).")
    ] = False,
    fix_to: Annotated[
        Path | None, typer.Option("--fix", metavar="OUT", help="Write a corrected copy of the draft's config.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an OUT that --fix wrote.")] = False,
    markdown: Markdown = None,
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tell what trainer, vLLM and SGLang make of a draft's config, and what is wrong with its weights.

    Exit code: 0 nothing wrong, 1 a fault was found, 2 the folders cannot be read.
    """
    from drafttrace.compare.audit import render
    from drafttrace.compare.audit.check import check as audit
    from drafttrace.compare.audit.fix import fix, place_of, refuse_place
    from drafttrace.tracer.few_samples import open_few
    from drafttrace.tracer.open import open_capture
    from drafttrace.tracer.served_paths import folder_of
    from drafttrace.tracer.target_weights import said_of

    told = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, boundaries)
    served = [open_capture(trace)] if trace is not None else []
    target, draft = folder_of(target, served, "target"), folder_of(draft, served, "draft")
    log.say("target %s, draft %s", target, draft)
    output.refuse_twice(markdown, json_out, place_of(fix_to) if fix_to is not None else None)
    if fix_to is not None:
        refuse_place(draft, target, fix_to, force=force)
    health: Mapping[str, Any] | None = Client(url, api_key=api_key).health().raw if url is not None else None
    with output.status("reading the weights; for an unusual config SGLang is asked, too", quiet=quiet, after=1.0):
        found = audit(
            target,
            draft,
            dump=None
            if dump is None
            else open_few(
                dump, format=dump_format, mapping=told.mapping, request=said_of(target, told.request, lenient=True)
            ),
            url_health=health,
            sglang_version=sglang_version,
            hash_weights=hash_weights,
            trained=None if trained is None else boundaries_of(trained, "wiring"),
            algorithm=algorithm,
        )
    if markdown is not None:
        output.write_text(markdown, render.markdown(found))
    written = None
    if fix_to is not None and found.fix:
        written = fix(draft, fix_to, found.fix, target_dir=target, force=force)
    quiet = quiet or output.takes_stdout(markdown)
    output.emit(json_out, found.to_json, lambda: render.terminal(found, output.console()), quiet=quiet)
    if fix_to is not None and json_out != "-" and not quiet:
        message = f"the corrected copy is in {written}" if written else "nothing in the config could be corrected"
        output.console().print(f"{message}{render.left_over(found)}", markup=False)
    raise typer.Exit(found.exit_code)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=CAUSE,
        epilog=examples(
            (
                "drafttrace check --target ./target --draft ./draft",
                "no server, no tensors: config and weights alone",
            ),
            (
                "drafttrace check --target ./target --draft ./draft --dump data_0.pt --fix ./draft-fixed",
                "write the config that gives what training used",
            ),
            ("drafttrace check --trace trace.h5 --dump data_0.pt", "the folders that a trace was served with"),
            (
                "drafttrace check --target ./target --draft ./draft --sglang-version 0.5.12",
                "what another release would make of it",
            ),
        ),
    )(check)
