"""``drafttrace view``: the HTML report in a browser."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import READ, Quiet, Verbose, examples
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat


def page_of(file: str, reference: str | None, out: Path | None) -> Path:
    """The HTML file to show: the one that was given, or the report of a result, or of a comparison."""
    path = Path(file)
    suffix = path.suffix.lower()
    if suffix in {".html", ".htm"}:
        if reference is not None or out is not None:
            raise DrafttraceError(f"'{file}' is a page already; leave REFERENCE and --output out.")
        if not path.is_file():
            raise DrafttraceError(f"The page '{file}' is not there; give a report, a result, a trace or a dump.")
        return path
    from drafttrace.compare.report_html import render

    if suffix == ".json" and path.is_file():
        if reference is not None:
            raise DrafttraceError(f"'{file}' is a saved result; leave REFERENCE out.")
        from drafttrace.tracer.commands.report import read_result

        result = read_result(path)
    else:
        from drafttrace.tracer.commands.diff import compare_paths

        try:
            result = compare_paths(file, reference)
        except UnknownFormat as error:
            # The readers' remedies are options that only the commands which compare have.
            raise UnknownFormat(
                str(error).rstrip(".").rpartition("; ")[0]
                + "; compare them with 'drafttrace diff --html report.html', "
                "whose options say what the file does not, and view that page."
            ) from None
    place = out or Path(tempfile.mkdtemp(prefix="drafttrace-")) / "report.html"
    output.write_text(place, render(result))
    return place


def can_show(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a browser window could appear: BROWSER is set, or there is a display."""
    if environment.get("BROWSER"):
        return True
    if platform in {"darwin", "win32"}:
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def show_page(page: Path) -> bool:
    """Open the page in the user's browser. False where there is none."""
    import webbrowser

    return can_show(os.environ) and webbrowser.open(page.resolve().as_uri())


def view(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A report.html, a result.json, or a trace or dump (PATH or PATH#i)."),
    ],
    reference: Annotated[
        str | None, typer.Argument(metavar="REFERENCE", help="With a trace: what it is compared with.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the page is written (default: a temporary folder).")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it, or only print where it is.")
    ] = True,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Open the HTML report in a browser; on a machine without one, print where it is.

    The page is one file that needs no network: copy it to your own machine, or attach it.
    """
    output.refuse_stdout(out, "A page that is opened in a browser")
    with output.status("comparing", quiet=quiet, after=1.0):
        page = page_of(file, reference, out)
    shown = browser and show_page(page)
    if not quiet:
        typer.echo(str(page))
        if browser and not shown:
            typer.echo("There is no browser here; copy the file to a machine that has one.", err=True)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=READ,
        epilog=examples(
            ("drafttrace view trace.h5 data_0.pt", "compare, and look at the plots"),
            ("drafttrace view result.json", "a saved result"),
            ("drafttrace view result.json --no-browser -o report.html", "only write the page"),
        ),
    )(view)
