"""``drafttrace report``: render a saved result again, or judge it by other thresholds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer import log, output
from drafttrace.tracer.commands.common import READ, Html, Json, Markdown, Png, Quiet, Verbose, examples
from drafttrace.tracer.commands.diff import refuse_picture, show, write_reports
from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.compare.result import Result


def read_result(file: Path) -> Result:
    """A saved result. Raises DrafttraceError where the file cannot be read or is none."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DrafttraceError(f"The result '{file}' is not UTF-8 text; give what 'diff --json' wrote.") from None
    except OSError as error:
        raise DrafttraceError(f"The result '{file}' cannot be read ({error.strerror}); check the name.") from None
    return _loaded(text, f"'{file}'")


def _loaded(text: str, name: str) -> Result:
    """The result in a text. Errors name the file, which only the caller knows."""
    from drafttrace.compare.result import load_result

    try:
        return load_result(text)
    except DrafttraceError as error:
        said = str(error).replace("its schema is None, not", "it names no schema such as")
        for general in ("This is no drafttrace result", "The result", "The drafttrace result"):
            if said.startswith((f"{general} is ", f"{general}:")):
                named = f"{name} is no drafttrace result" if general.startswith("This") else f"{general} {name}"
                raise type(error)(named + said.removeprefix(general)) from None
        raise


def _piped() -> Result:
    """The result that another command writes into a pipe, as ``diff --json -`` does."""
    try:
        return _loaded(sys.stdin.buffer.read().decode("utf-8"), "'-' (standard input)")
    except UnicodeDecodeError:
        raise DrafttraceError(
            "The result on standard input is not UTF-8 text; give it what 'diff --json -' writes."
        ) from None


def report(
    file: Annotated[
        Path, typer.Argument(metavar="RESULT.json|-", help="What 'drafttrace diff --json' wrote; '-' reads a pipe.")
    ],
    threshold: Annotated[
        list[str] | None, typer.Option("--threshold", metavar="NAME=VALUE", help="Judge by this bound. Repeatable.")
    ] = None,
    markdown: Markdown = None,
    html: Html = None,
    png: Png = None,
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Render a saved result again, without the tensors.

    Exit code: that of the result.
    """
    output.refuse_twice(markdown, html, png, json_out)
    refuse_picture(png)
    result = _piped() if str(file) == "-" else read_result(file)
    log.say(
        "%s: %s, of %s and %s", file, result.verdict, result.left.path, result.reference and result.reference.path
    )
    if threshold:
        from drafttrace.compare.judge import rejudge

        result = rejudge(result, result.thresholds.replaced(threshold))
    write_reports(result, markdown=markdown, html=html, png=png)
    output.emit(
        json_out, result.to_json, lambda: show(result), quiet=quiet or output.takes_stdout(markdown, html, png)
    )
    raise typer.Exit(result.exit_code)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=READ,
        epilog=examples(
            ("drafttrace report result.json", "print a saved result again"),
            ("drafttrace report result.json --threshold match=0.02 --md report.md", "judge it by another bound"),
        ),
    )(report)
