"""``drafttrace audit``: a whole folder of training samples against what was served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer import interrupts, output
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
from drafttrace.tracer.errors import DrafttraceError

_SERVER = "Against a server"


def audit(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The training dump: any folder or file of samples.")
    ],
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="FOLDER|URL",
            help="What was served: a folder of traces (or of another dump), or a running server to ask.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--output", help="The table (SQLite). An unfinished one is continued.")
    ] = Path("audit.sqlite"),
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 is one for each processor.")] = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Work on a Ray cluster: its address, auto for this machine's, local for a new one here.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the first samples; 0 is all.")] = 0,
    threshold: Annotated[
        list[str] | None, typer.Option("--threshold", metavar="NAME=VALUE", help="Judge by this bound. Repeatable.")
    ] = None,
    format_name: Annotated[str | None, typer.Option("--format", help="Read FOLDER as this format.")] = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    last_norm: LastNorm = None,
    mask: MaskName = None,
    boundaries: Boundaries = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens to generate for each sample.", rich_help_panel=_SERVER)
    ] = 16,
    keep_traces: Annotated[
        Path | None, typer.Option(help="Keep the traces in this folder.", rich_help_panel=_SERVER)
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="The token that 'serve --token' asks for.", rich_help_panel=_SERVER)
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="SGLANG_API_KEY", help="The server's API key.", rich_help_panel=_SERVER)
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds to wait for one answer.", rich_help_panel=_SERVER)
    ] = 600.0,
    force: Annotated[bool, typer.Option("--force", help="Start the table anew.")] = False,
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare every sample of a training dump with what was served for its tokens, and count the causes.

    Samples and traces find each other by their tokens. Results stream into one SQLite table; stopped at any moment,
    the same command goes on. Exit code: 0 all match, 1 a sample mismatches or fails, 2 nothing could be compared.
    """
    from drafttrace.tracer.threads import one_blas_thread

    one_blas_thread()
    from drafttrace.compare.thresholds import DEFAULT
    from drafttrace.tracer.auditing.run import Order, run
    from drafttrace.tracer.auditing.summary import render, summarise
    from drafttrace.tracer.auditing.work import Settings

    bounds = tuple(threshold or ())
    DEFAULT.replaced(bounds)  # a wrong one is told before any work
    output.refuse_stdout(out, "The table of an audit")
    output.refuse_twice(json_out, out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise DrafttraceError(f"The output '{out}' cannot be written; give a file name in a folder that exists.")
    dump = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, boundaries)
    if dump.mapping is not None and format_name is None:
        format_name = "MAPPED"
    settings = Settings(
        thresholds=bounds,
        hidden_size=hidden_size,
        layer_ids=dump.request.layer_ids,
        numbering=dump.request.numbering,
        fields=dump.mapping,
        max_new_tokens=max_new_tokens,
        token=token,
        api_key=api_key,
        timeout=timeout,
        keep=str(keep_traces) if keep_traces is not None else None,
    )
    order = Order(folder, against, out, format_name, workers, ray, limit, force)
    try:
        with output.sample_progress(quiet=quiet) as progress:
            run(order, settings, progress)
    except KeyboardInterrupt:
        interrupts.take()
        raise DrafttraceError(f"The audit was stopped; run the same command again to go on from '{out}'.") from None
    summary = summarise(out)
    output.emit(json_out, summary.to_json, lambda: render(summary, output.console()), quiet=quiet)
    raise typer.Exit(summary.exit_code)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=CAUSE,
        epilog=examples(
            ("drafttrace audit dump/ --against traces/", "every sample that a trace was recorded for"),
            ("drafttrace audit dump/ --against http://127.0.0.1:30000 -o audit.sqlite", "ask a running server"),
            ("drafttrace audit dump/ --against traces/ --ray auto", "on a Ray cluster"),
        ),
    )(audit)
