"""``drafttrace report``: render a saved result again, or judge it by other thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.diff import show, write_reports
from drafttrace.tracer.errors import DrafttraceError


def report(
    file: Annotated[Path, typer.Argument(metavar="RESULT.json", help="What 'drafttrace diff --json' wrote.")],
    threshold: Annotated[
        list[str] | None, typer.Option("--threshold", metavar="NAME=VALUE", help="Judge by this bound. Repeatable.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--md", help="A report to paste into an issue.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="A self-contained page with plots.")] = None,
    json_out: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="The result, machine form.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Render a saved result again, without the tensors.

    drafttrace report before.json --threshold match=0.02 --md report.md
    """
    from drafttrace.compare.judge import rejudge
    from drafttrace.compare.result import load_result

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DrafttraceError(f"The result '{file}' is not UTF-8 text; give what 'diff --json' wrote.") from None
    except OSError as error:
        raise DrafttraceError(f"The result '{file}' cannot be read ({error.strerror}); check the name.") from None
    result = load_result(text)
    if threshold:
        result = rejudge(result, result.thresholds.replaced(threshold))
    write_reports(result, markdown=markdown, html=html)
    output.emit(json_out, result.to_json, lambda: show(result), quiet=quiet)
    raise typer.Exit(result.exit_code)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Find the cause")(report)
