"""``drafttrace doctor``: the block of versions, and whether every hook applies to the installed SGLang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer import output

if TYPE_CHECKING:
    from drafttrace.hooks.doctor import Diagnosis


def _show(found: Diagnosis) -> None:
    from rich.table import Table

    console = output.console()
    for name, value in found.environment.items():
        console.print(f"{name:13} {value}", markup=False)
    console.print(f"{'plugin':13} {'registered' if found.plugin_registered else 'not registered'}", markup=False)
    if found.hooks:
        table = Table("hook", "symbol of SGLang", "state", box=None, pad_edge=False)
        for hook in found.hooks:
            state = "applies" if hook.error is None else (hook.error if hook.needed else f"optional, {hook.error}")
            table.add_row(hook.name, hook.target, state)
        console.print()
        console.print(table)
    console.print()
    console.print(found.problem or "Every needed hook applies; the recorder works with this SGLang.", markup=False)


def doctor(
    json_out: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="The machine form.")] = None,
) -> None:
    """Print the environment, and tell whether every hook applies to the installed SGLang.

    Exit code: 0 the recorder works here, 1 it does not.
    """
    from drafttrace.hooks.doctor import examine

    found = examine()
    output.emit(json_out, found.to_json, lambda: _show(found))
    raise typer.Exit(0 if found.problem is None else 1)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="On the server")(doctor)
