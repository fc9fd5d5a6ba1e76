"""``drafttrace diff``: compare a trace with its training dump, or look inside one trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import CAUSE, Quiet, Verbose, examples
from drafttrace.tracer.commands.reading import (
    HiddenSize,
    LastName,
    LayerIds,
    SlotNames,
    TokensName,
    mapping_of,
    request_of,
)

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
) -> Result:
    """Open both sides and compare them; ``reference`` None looks inside the left trace alone.

    mapping, request: what the reference does not say of itself.
    """
    from drafttrace.compare.diff import diff as compare
    from drafttrace.compare.diff import measure_noise
    from drafttrace.compare.thresholds import DEFAULT
    from drafttrace.tracer.decoding import decoder, tokenizer_folder
    from drafttrace.tracer.open import open_capture

    ours = open_capture(left, format=left_format)
    theirs = None
    if reference is not None:
        theirs = open_capture(reference, format=reference_format, like=ours, mapping=mapping, request=request)
    floor = None
    if noise is not None:
        floor = measure_noise(open_capture(noise[0]), open_capture(noise[1]))
    return compare(
        ours,
        theirs,
        thresholds=DEFAULT.replaced(thresholds),
        noise=floor,
        decode=decoder(tokenizer_folder(tokenizer, ours, theirs)),
    )


def write_reports(result: Result, *, markdown: Path | None, html: Path | None) -> None:
    """Write the report files that were asked for."""
    if markdown is not None:
        from drafttrace.compare import report_markdown

        output.write_text(markdown, report_markdown.render(result))
    if html is not None:
        from drafttrace.compare import report_html

        output.write_text(html, report_html.render(result))


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
    json_out: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="The result, machine form.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--md", help="A report to paste into an issue.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="A self-contained page with plots.")] = None,
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
    left_format: Annotated[str | None, typer.Option("--left-format", help="Read LEFT as this format.")] = None,
    reference_format: Annotated[str | None, typer.Option("--format", help="Read REFERENCE as this format.")] = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare what the server computed with what training stored, and name the cause.

    Exit code: 0 match, 1 mismatch, 2 nothing could be compared.
    """
    result = compare_paths(
        left,
        reference,
        thresholds=tuple(threshold or ()),
        noise=noise,
        tokenizer=tokenizer,
        left_format=left_format,
        reference_format=reference_format,
        mapping=mapping_of(slots, tokens, last),
        request=request_of(hidden_size, layer_ids),
    )
    write_reports(result, markdown=markdown, html=html)
    output.emit(json_out, result.to_json, lambda: show(result), quiet=quiet)
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
