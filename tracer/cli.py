"""The command line. Every command's heavy imports stand inside it, so that ``--help`` is instant."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from drafttrace.tracer import interrupts, log
from drafttrace.tracer.commands.common import Verbose, examples, flowing
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.plain_options import command_of
from drafttrace.tracer.shell_completion import settle_shell
from drafttrace.tracer.terminal import OutputLost, check_output, prepare_streams
from drafttrace.tracer.usage_errors import asks_for_help, is_usage_error, keep_values, sentence_of

# Every command is the module of that name in tracer/commands. The order in which help shows them; that of the panels
# is commands.common.PANELS.
COMMANDS = (
    "demo",
    "doctor",
    "serve",
    "record",
    "watch",
    "diff",
    "audit",
    "inspect",
    "check",
    "replay",
    "report",
    "view",
    "redact",
    "reference",
    "convert",
)
# Commands that are over in a second: looking for garbage in what was just imported is a tenth of them.
_SHORT = {"diff", "inspect", "report"}
_INTERRUPTED = 130  # as shells have it for a program that Ctrl-C ended


def build(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The command line with some of the commands: building all of them costs more than many a command's own work."""
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
    app.callback(invoke_without_command=True)(_root)
    for name in names:
        importlib.import_module(f"drafttrace.tracer.commands.{name}").add_to(app)
    for info in app.registered_commands:
        info.help = flowing((info.callback and info.callback.__doc__) or "")
    return app


def __getattr__(name: str) -> typer.Typer:
    """``app``: the whole command line, built when somebody asks for it."""
    if name != "app":
        raise AttributeError(name)
    app = globals()["app"] = build()
    return app


def _named(arguments: Sequence[str]) -> Sequence[str]:
    """The command that the arguments name, alone; all of them for help, mistakes and shell completion."""
    first = next((word for word in arguments if not word.startswith("-")), None)
    return [first] if first in COMMANDS and not _completes() else COMMANDS


def _completes() -> bool:
    """Whether a shell asks for completions."""
    return any(key.endswith("_COMPLETE") and "DRAFTTRACE" in key.upper() for key in os.environ)


def _offering(command: Any) -> Any:
    """The command line as a shell asks it for completions."""
    from drafttrace.tracer.completing import complete_values

    return complete_values(command)


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


def _fail(sentence: str) -> NoReturn:
    """Inside an except block: one sentence, exit code 2; the traceback only for those who asked."""
    interrupts.raise_lost()
    if os.environ.get("DRAFTTRACE_DEBUG"):
        raise
    if log.is_shown():
        import traceback

        traceback.print_exc()
    print(f"drafttrace: {sentence}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Entry point: 0 match / fine, 1 mismatch / problem found, 2 could not compare, bad input, usage, 130 Ctrl-C."""
    try:
        with interrupts.certain():
            _run()
    except KeyboardInterrupt:  # while that begins or ends
        interrupts.end()


def _run() -> None:
    prepare_streams()
    if _completes():  # a help text that rich breaks would be two completions, the second of them no option
        os.environ.update(COLUMNS="10000", TERMINAL_WIDTH="10000")
    names = _named(sys.argv[1:])
    if names is COMMANDS or _SHORT.issuperset(names):
        gc.disable()
    try:
        settle_shell(sys.argv[1:])
        command = keep_values(command_of(globals().get("app") or build(names)))
        code = (_offering(command) if _completes() else command)(standalone_mode=False)
        check_output()
    except OutputLost as error:  # nothing is wrong here, so a traceback would show nothing
        interrupts.raise_lost()
        print(
            f"drafttrace: Standard output cannot be written ({error.strerror}); make room, or send it elsewhere.",
            file=sys.stderr,
        )
        sys.exit(2)
    except DrafttraceError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a name too long, a network folder that went away
        where = f"'{error.filename}'" if error.filename else "A file"
        _fail(f"{where} cannot be used ({error.strerror or error}); check the path, its rights and its disk.")
    except MemoryError:
        _fail("There is not enough memory for this; give a smaller file, or run it on a larger machine.")
    except ModuleNotFoundError as error:  # drafttrace was installed without its dependencies
        package = (error.name or "").split(".")[0]
        if package in {"", "drafttrace"}:
            _bug()
        _fail(f"The package {package} is not installed, which this command needs; pip install {package}.")
    except Exception as error:
        if is_usage_error(error):
            _usage(error)
        if type(error).__name__ == "Abort":  # what older typers make of Ctrl-C
            sys.exit(_INTERRUPTED)
        _bug()
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> NoReturn:
    """One sentence, exit code 2; for nothing at all the help."""
    if asks_for_help(error):
        typer.echo(error.message, err=True, nl=bool(error.message))
    else:
        print(f"drafttrace: {sentence_of(error)}", file=sys.stderr)
    sys.exit(2)


def _bug() -> NoReturn:
    """Inside an except block: the traceback, and what to do with it."""
    interrupts.raise_lost()
    import traceback

    traceback.print_exc()
    print(
        "drafttrace: This is a bug in drafttrace; please report the lines above together with what "
        "'drafttrace --version --verbose' prints.",
        file=sys.stderr,
    )
    sys.exit(2)  # Python would exit with 1, which promises that something was compared and found wrong


if __name__ == "__main__":
    main()
