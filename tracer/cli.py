"""The command line. Every command's heavy imports stand inside it, so that ``--help`` is instant."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from drafttrace.tracer import log
from drafttrace.tracer.commands import audit as audit_command
from drafttrace.tracer.commands import check as check_command
from drafttrace.tracer.commands import convert as convert_command
from drafttrace.tracer.commands import demo as demo_command
from drafttrace.tracer.commands import diff as diff_command
from drafttrace.tracer.commands import doctor as doctor_command
from drafttrace.tracer.commands import inspect as inspect_command
from drafttrace.tracer.commands import record as record_command
from drafttrace.tracer.commands import reference as reference_command
from drafttrace.tracer.commands import replay as replay_command
from drafttrace.tracer.commands import report as report_command
from drafttrace.tracer.commands import serve as serve_command
from drafttrace.tracer.commands import view as view_command
from drafttrace.tracer.commands import watch as watch_command
from drafttrace.tracer.commands.common import Verbose, examples
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.terminal import prepare_streams

app = typer.Typer(
    name="drafttrace",
    help="Name why a served EAGLE-3 draft sees other hidden states than it was trained on.",
    epilog=examples(
        ("drafttrace demo", "the whole story on recorded traces; no server, no GPU"),
        (
            "drafttrace serve -- --model-path TARGET --speculative-algorithm EAGLE3 "
            "--speculative-draft-model-path DRAFT",
            "1. your server, with the recorder on",
        ),
        ("drafttrace record --from-dump data_0.pt -o trace.h5", "2. one request"),
        ("drafttrace diff trace.h5 data_0.pt --md report.md", "3. the cause"),
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The order in which the panels are shown: commands.common.PANELS
demo_command.add_to(app)
doctor_command.add_to(app)
serve_command.add_to(app)
record_command.add_to(app)
watch_command.add_to(app)
diff_command.add_to(app)
audit_command.add_to(app)
inspect_command.add_to(app)
check_command.add_to(app)
replay_command.add_to(app)
report_command.add_to(app)
view_command.add_to(app)
reference_command.add_to(app)
convert_command.add_to(app)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version; with --verbose the block for a bug report.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Options that stand before the command."""
    if version:
        _print_version(verbose)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _print_version(everything: bool) -> None:
    if not everything:
        from drafttrace import __version__

        typer.echo(f"drafttrace {__version__}")
        return
    from drafttrace.hooks.doctor import environment

    for name, value in environment().items():
        typer.echo(f"{name:13} {value}")


def main() -> None:
    """Entry point: 0 match / fine, 1 mismatch / problem found, 2 could not compare, bad input, usage."""
    prepare_streams()
    try:
        app()
    except DrafttraceError as error:
        if os.environ.get("DRAFTTRACE_DEBUG"):
            raise
        if log.is_shown():
            import traceback

            traceback.print_exc()
        print(f"drafttrace: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output (head, less) went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception:
        # Python would exit with 1, which promises that something was compared and found wrong.
        import traceback

        traceback.print_exc()
        print(
            "drafttrace: This is a bug in drafttrace; please report the lines above together with what "
            "'drafttrace --version --verbose' prints.",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
