"""``drafttrace diff``: compare a trace with its training dump, or look inside one trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import CAUSE, Html, Json, Markdown, Png, Quiet, Verbose, examples
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
from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.compare.result import Result
    from drafttrace.tracer.dumps.registry import FieldMap, Request


def compare_paths(
    left: str,
    reference: str | None,
    *,
    thresholds: tuple[str, ...] = (),
    noise: tuple[str, str] | None = None,
    tokenizer: Path | None = None,
    left_format: str | None = None,
    reference_format: str | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
    rank_traces: Sequence[Path] = (),
    others: Sequence[Path] = (),
    expected: str | None = None,
) -> Result:
    """Open both sides and compare them; ``reference`` None looks inside the left trace alone.

    A training dump on the left of a server's recording is exchanged with it, and a note says so.

    mapping, request: what the reference does not say of itself, or the left side where there is no reference; whose
    fields they are with one is said at :func:`drafttrace.tracer.open_two.open_two`.
    rank_traces, others, expected: see :func:`drafttrace.tracer.beside.gather`. Raises DrafttraceError for a
    reference_format without a reference.
    """
    from drafttrace.compare.diff import diff as compare
    from drafttrace.compare.noise_pair import measure_noise
    from drafttrace.compare.thresholds import DEFAULT
    from drafttrace.tracer.beside import gather
    from drafttrace.tracer.decoding import decoder, tokenizer_folder
    from drafttrace.tracer.exchanged_sides import are_exchanged, told
    from drafttrace.tracer.open import open_capture
    from drafttrace.tracer.open_two import open_alone, open_two, refuse_itself

    theirs = None
    if reference is None:
        _refuse_format_of_nothing(reference_format)
        ours = open_alone(left, format=left_format, mapping=mapping, request=request)
    else:
        formats = {"left_format": left_format, "reference_format": reference_format}
        exchanged = are_exchanged(left, reference, **formats, request=request)
        if exchanged:
            left, reference, left_format, reference_format = reference, left, reference_format, left_format
        ours, theirs = open_two(
            left,
            reference,
            left_format=left_format,
            reference_format=reference_format,
            mapping=mapping,
            request=request,
        )
        ours = told(ours, theirs) if exchanged else ours
        refuse_itself(ours, theirs)
    floor = None
    if noise is not None:
        floor = measure_noise(open_capture(noise[0]), open_capture(noise[1]), of=ours)
    folder = tokenizer_folder(tokenizer, ours, theirs)
    beside = gather(ours, theirs, tokenizer=folder, rank_traces=rank_traces, others=others, expected=expected)
    return compare(
        ours,
        theirs,
        thresholds=DEFAULT.replaced(thresholds),
        noise=floor,
        decode=decoder(folder),
        **beside.arguments(),
    )


def _refuse_format_of_nothing(reference_format: str | None) -> None:
    if reference_format is not None:
        raise DrafttraceError(
            f"--format {reference_format} is how REFERENCE is to be read, and there is no REFERENCE; give one, or name the "
            "format of LEFT with --left-format."
        )


def write_reports(result: Result, *, markdown: Path | None, html: Path | None, png: Path | None = None) -> None:
    """Write the report files that were asked for."""
    if png is not None:
        from drafttrace.plots import form_of, overview

        output.write_bytes(png, overview(result, form_of(png)))
    if markdown is not None:
        from drafttrace.compare import report_markdown

        output.write_text(markdown, report_markdown.render(result))
    if html is not None:
        from drafttrace.compare import report_html

        output.write_text(html, report_html.render(result))


def refuse_picture(png: Path | None) -> None:
    """Raise DrafttraceError for a picture in a form that there is not, before anything is compared."""
    if png is not None:
        from drafttrace.plots import form_of

        form_of(png)


def show(result: Result) -> None:
    """The terminal report."""
    from drafttrace.compare import report_terminal

    report_terminal.render(result, output.console())


def diff(
    left: Annotated[
        str, typer.Argument(metavar="LEFT", help="A trace, or any dump that can be read (PATH or PATH#i).")
    ],
    reference: Annotated[
        str | None,
        typer.Argument(metavar="REFERENCE", help="What LEFT should equal. Without it: checks inside one trace."),
    ] = None,
    json_out: Json = None,
    markdown: Markdown = None,
    html: Html = None,
    png: Png = None,
    noise: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--noise", metavar="A B", help="Two recordings of one prompt: their distance is the noise floor."
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None, typer.Option("--threshold", metavar="NAME=VALUE", help="Judge by this bound. Repeatable.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with tokenizer.json, to show tokens as text (default: the trace's target)."),
    ] = None,
    expected: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH|A1,A2,..|FILE",
            help="The accept length that the draft should reach: a number, the accuracies per step that training logged, "
            "or what drafttrace replay --json wrote.",
        ),
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--others",
            metavar="TRACE|FOLDER",
            help="Traces of other requests to the same server, to find rows that belong to them. Repeatable.",
        ),
    ] = None,
    rank_trace: Annotated[
        list[Path] | None,
        typer.Option(
            "--rank-trace",
            metavar="TRACE",
            help="The same request on another rank (serve --all-ranks). Repeatable; NAME_rank1.h5 beside LEFT is found.",
        ),
    ] = None,
    left_format: Annotated[str | None, typer.Option("--left-format", help="Read LEFT as this format.")] = None,
    reference_format: Annotated[str | None, typer.Option("--format", help="Read REFERENCE as this format.")] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--target",
            help="The target's folder: how many layers it has and how wide a slot is.",
            rich_help_panel=PANEL,
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
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare what the server computed with what training stored, and name the cause.

    What a dump does not say is said of REFERENCE, or of LEFT alone; --hidden-size and --target are of both. The names of
    fields (--slots, --tokens and their like) are of LEFT where only LEFT is of no known layout, and of both where neither
    is of one.

    Exit code: 0 match or noise, 1 mismatch, 2 nothing could be compared.
    """
    from drafttrace.tracer.threads import one_blas_thread

    one_blas_thread()  # before anything imports numpy, as the readers' options do
    from drafttrace.tracer.hub_cache import model_folder
    from drafttrace.tracer.target_weights import said_of

    served = None if target is None else model_folder(target, "target")
    output.refuse_twice(markdown, html, png, json_out)
    refuse_picture(png)
    dump = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, boundaries)
    with output.status("comparing", quiet=quiet, after=1.0):
        result = compare_paths(
            left,
            reference,
            thresholds=tuple(threshold or ()),
            noise=noise,
            tokenizer=tokenizer,
            left_format=left_format,
            reference_format=reference_format,
            mapping=dump.mapping,
            request=said_of(served, dump.request),
            rank_traces=tuple(rank_trace or ()),
            others=tuple(others or ()),
            expected=expected,
        )
    write_reports(result, markdown=markdown, html=html, png=png)
    output.emit(
        json_out, result.to_json, lambda: show(result), quiet=quiet or output.takes_stdout(markdown, html, png)
    )
    raise typer.Exit(result.exit_code)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=CAUSE,
        epilog=examples(
            ("drafttrace diff trace.h5 data_0.pt", "what is wrong, and the line that fixes it"),
            ("drafttrace diff trace.h5 data_0.pt --md report.md --html report.html", "the same, to share"),
            ("drafttrace diff trace.h5", "no dump: checks inside one trace"),
            ("drafttrace diff trace.h5 data_0.pt --noise again_1.h5 again_2.h5", "judge by a measured noise floor"),
            (
                "drafttrace diff trace.h5 data_0.pt --json - --quiet",
                "for a script: the result, and exit code 0, 1 or 2",
            ),
        ),
    )(diff)
