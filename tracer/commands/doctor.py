"""``drafttrace doctor``: the block of versions, and whether every hook applies to the installed SGLang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from drafttrace.tracer import log, output
from drafttrace.tracer.commands.common import START, Json, Quiet, Verbose, examples

if TYPE_CHECKING:
    from drafttrace.hooks.doctor import Diagnosis


def _show(found: Diagnosis) -> None:
    from rich.table import Table
    from rich.text import Text

    from drafttrace.tracer.fitted import Fitted

    console = output.console()
    for name, value in found.environment.items():
        console.print(f"{name:13} {value}", markup=False)
    console.print(f"{'plugin':13} {'registered' if found.plugin_registered else 'not registered'}", markup=False)
    if found.hooks:
        table = Table("hook", "symbol of SGLang", "state", box=None, pad_edge=False)
        for hook in found.hooks:
            state = "applies" if hook.error is None else (hook.error if hook.needed else f"optional, {hook.error}")
            table.add_row(Text(hook.name), Text(hook.target), Text(state))
        console.print()
        console.print(Fitted(table))  # a symbol is searched for: none is cut off
    console.print()
    if found.note:
        console.print(found.note, markup=False)
    console.print(found.problem or "Every needed hook applies; the recorder works with this SGLang.", markup=False)


def doctor(
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Print the environment, and tell whether every hook applies to the installed SGLang.

    Exit code: 0 the recorder works here, 1 it does not.
    """
    from drafttrace.hooks.doctor import examine

    found = examine()
    for hook in found.hooks:
        log.say("hook %s: %s, %s", hook.name, hook.target, "applies" if hook.error is None else hook.error)
    log.say("%d hooks, plugin %s", len(found.hooks), "registered" if found.plugin_registered else "not registered")
    output.emit(json_out, found.to_json, lambda: _show(found), quiet=quiet)
    raise typer.Exit(0 if found.problem is None else 1)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=START,
        epilog=examples(
            ("drafttrace doctor", "does the recorder work with the SGLang that is installed here"),
            ("drafttrace doctor --json doctor.json", "the block of versions, for a bug report"),
        ),
    )(doctor)
