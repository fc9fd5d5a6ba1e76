"""The command line. Every command's heavy imports stand inside it, so that ``--help`` is instant."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from drafttrace.tracer.commands import check as check_command
from drafttrace.tracer.commands import convert as convert_command
from drafttrace.tracer.commands import diff as diff_command
from drafttrace.tracer.commands import doctor as doctor_command
from drafttrace.tracer.commands import inspect as inspect_command
from drafttrace.tracer.commands import record as record_command
from drafttrace.tracer.commands import reference as reference_command
from drafttrace.tracer.commands import replay as replay_command
from drafttrace.tracer.commands import report as report_command
from drafttrace.tracer.commands import serve as serve_command
from drafttrace.tracer.errors import DrafttraceError

app = typer.Typer(
    name="drafttrace",
    help="Name why a served EAGLE-3 draft sees other hidden states than it was trained on.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve_command.add_to(app)
record_command.add_to(app)
inspect_command.add_to(app)
diff_command.add_to(app)
check_command.add_to(app)
replay_command.add_to(app)
report_command.add_to(app)
reference_command.add_to(app)
convert_command.add_to(app)
doctor_command.add_to(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from drafttrace import __version__

        typer.echo(f"drafttrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before the command."""


def main() -> None:
    """Entry point: 0 match / fine, 1 mismatch / problem found, 2 could not compare, bad input, usage."""
    try:
        app()
    except DrafttraceError as error:
        if os.environ.get("DRAFTTRACE_DEBUG"):
            raise
        print(f"drafttrace: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output (head, less) went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


if __name__ == "__main__":
    main()
