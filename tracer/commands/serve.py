"""``drafttrace serve``: start an SGLang server with the plugin on."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer.boundary import parse_wiring
from drafttrace.tracer.commands.common import SERVER, Verbose, examples
from drafttrace.tracer.commands.wirings import boundaries_of
from drafttrace.tracer.errors import DrafttraceError, OutputExists, ServerProblem
from drafttrace.tracer.usage_errors import near_options

MIB = 1 << 20


@dataclass(frozen=True)
class ServeOptions:
    """What the plugin is told through the environment; sizes in MiB."""

    trace_dir: Path
    token: str | None
    max_trace_mib: int | None
    max_traces: int | None
    max_dir_mib: int | None
    queue_mib: int | None
    all_ranks: bool
    wiring: str | None


def environment(options: ServeOptions) -> dict[str, str]:
    """The variables that ``hooks/settings`` reads, without the unset ones."""
    values: dict[str, str | None] = {
        "DRAFTTRACE": "1",
        "DRAFTTRACE_DIR": str(options.trace_dir),
        "DRAFTTRACE_TOKEN": options.token,
        "DRAFTTRACE_MAX_TRACE_BYTES": _mib(options.max_trace_mib),
        "DRAFTTRACE_MAX_TRACES": None if options.max_traces is None else str(options.max_traces),
        "DRAFTTRACE_MAX_DIR_BYTES": _mib(options.max_dir_mib),
        "DRAFTTRACE_QUEUE_BYTES": _mib(options.queue_mib),
        "DRAFTTRACE_ALL_RANKS": "1" if options.all_ranks else None,
        "DRAFTTRACE_WIRING": options.wiring,
    }
    return {name: value for name, value in values.items() if value is not None}


def _mib(value: int | None) -> str | None:
    return None if value is None else str(value * MIB)


def _normal_wiring(text: str | None, sglang_arguments: list[str]) -> str | None:
    """The wiring as the plugin reads it. Raises DrafttraceError for one that cannot be read or cannot work.

    What could not be checked before the start is said on stderr.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.strip().strip("[]").split(",")]
    if all(part.isdigit() for part in parts):
        outputs = ",".join(f"O{part}" for part in parts)
        print(
            f"drafttrace: --wiring {text} is read as boundaries, [B{', B'.join(parts)}]; write {outputs} if layer outputs "
            "are meant.",
            file=sys.stderr,
        )
    try:
        wiring = boundaries_of(text, "wiring") if "O" in text.upper() else parse_wiring(text)
    except ValueError as error:
        raise DrafttraceError(f"The wiring '{text}' cannot be read: {error}.") from None
    from drafttrace.compare.audit.wanted_wiring import refuse_wrong_wiring

    for sentence in refuse_wrong_wiring(wiring, sglang_arguments):
        print(f"drafttrace: {sentence}", file=sys.stderr)
    return ",".join(str(k) for k in wiring)


def _exec(arguments: list[str], extra: Mapping[str, str]) -> None:
    if importlib.util.find_spec("sglang") is None:
        raise ServerProblem(
            f"SGLang is not installed for {sys.executable}; install drafttrace into the environment that holds SGLang."
        )
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", "sglang.launch_server", *arguments]
    os.execvpe(command[0], command, {**os.environ, **extra})


def _refuse_mixed(arguments: list[str], line: list[str], own: list[str]) -> None:
    """SGLang's options without the '--' before them: one of theirs that is also one of ours would be taken for ours, and
    one of ours that is misspelt would go to SGLang. own: our options."""
    if "--" not in line:
        raise DrafttraceError(
            f"'{arguments[0]}' is no option of 'drafttrace serve'; write SGLang's arguments after '--', as in "
            f"'drafttrace serve -- {shlex.join(arguments)}'."
        )
    theirs = line[line.index("--") + 1 :]
    strays = arguments[: len(arguments) - len(theirs)]
    if strays:
        name = strays[0].split("=", 1)[0]
        near = near_options(name, own)
        raise DrafttraceError(
            f"'{name}' before '--' is no option of 'drafttrace serve'; write it after '--' if it is SGLang's, as in "
            f"'drafttrace serve -- {shlex.join([*theirs, *strays])}'{f', or give {near[0]}' if near else ''}."
        )


def _refuse_impossible(trace_dir: Path) -> None:
    """Raise OutputExists where the trace folder cannot be made. The plugin makes it: a server that does not come as far as
    that leaves no empty folder."""
    new = [place for place in (trace_dir, *trace_dir.parents) if not place.exists()]
    try:
        trace_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExists(
            f"The trace folder '{trace_dir}' cannot be made ({error.strerror}); give another --trace-dir."
        ) from None
    finally:
        for place in new:
            with contextlib.suppress(OSError):  # not made, or in use meanwhile
                place.rmdir()


def serve(
    context: typer.Context,
    trace_dir: Annotated[
        Path, typer.Option("--trace-dir", help="Folder on the server that traces are written to.")
    ] = Path("drafttrace-traces"),
    token: Annotated[
        str | None, typer.Option("--token", help="Clients must give this token to start a trace.")
    ] = None,
    wiring: Annotated[
        str | None,
        typer.Option(
            "--wiring",
            metavar="B0,B3,B31",
            help="Make the target hand over exactly these boundaries, whatever the draft config says.",
        ),
    ] = None,
    max_trace_mib: Annotated[int | None, typer.Option(min=1, help="Largest trace, in MiB.")] = None,
    max_traces: Annotated[int | None, typer.Option(min=1, help="Traces recorded at the same time.")] = None,
    max_dir_mib: Annotated[int | None, typer.Option(min=1, help="Largest trace folder, in MiB.")] = None,
    queue_mib: Annotated[int | None, typer.Option(min=1, help="Host memory for rows not yet written.")] = None,
    all_ranks: Annotated[
        bool, typer.Option("--all-ranks", help="Write tensors of every rank, not only of rank 0.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Start an SGLang server with the plugin on.

    Everything after [bold]--[/bold] goes to SGLang as it is. Nothing is recorded until a client asks for it with
    [bold]drafttrace record[/bold].
    """
    if not context.args:
        raise DrafttraceError("There are no SGLang arguments; write them after '--', at least --model-path.")
    _refuse_mixed(context.args, sys.argv, [name for one in context.command.params for name in one.opts])
    asked = _normal_wiring(wiring, context.args)
    _refuse_impossible(trace_dir)
    options = ServeOptions(
        trace_dir=trace_dir.resolve(),
        token=token,
        max_trace_mib=max_trace_mib,
        max_traces=max_traces,
        max_dir_mib=max_dir_mib,
        queue_mib=queue_mib,
        all_ranks=all_ranks,
        wiring=asked,
    )
    _exec(list(context.args), environment(options))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        rich_help_panel=SERVER,
        epilog=examples(
            (
                "drafttrace serve -- --model-path TARGET --speculative-algorithm EAGLE3 "
                "--speculative-draft-model-path DRAFT",
                "your own arguments, with the recorder on",
            ),
            (
                "drafttrace serve --wiring B0,B3,B31 -- --model-path TARGET --speculative-algorithm EAGLE3 "
                "--speculative-draft-model-path DRAFT",
                "try a remedy without touching the draft's config",
            ),
        ),
    )(serve)
