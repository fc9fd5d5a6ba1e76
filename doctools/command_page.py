"""The page of the command line, made from the commands themselves."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from doctools.markdown import cell, table


def command_line() -> Iterator[str]:
    import typer.main

    from drafttrace.tracer.cli import app
    from drafttrace.tracer.commands.common import PANELS

    group: Any = typer.main.get_command(app)
    commands: Mapping[str, Any] = group.commands
    yield "# Command line"
    yield ""
    yield (
        "`drafttrace COMMAND --help` says the same. Every command takes `--verbose` (what is read and asked for, on "
        "stderr) and nearly every one `--quiet` and `--json FILE` (`-` for standard output)."
    )
    yield ""
    yield "Exit codes: **0** match / fine, **1** mismatch / problem found, **2** could not compare, bad input, usage."
    yield ""
    for panel in PANELS:
        mine = [name for name, command in commands.items() if command.rich_help_panel == panel]
        yield f"## {panel}"
        yield ""
        for name in mine:
            yield from _command(name, commands[name])
    yield "## Shell completion"
    yield ""
    yield (
        "Commands, options and their values complete in bash, zsh, fish and PowerShell: formats, releases, thresholds, the "
        "wirings that the files of the line declare. This writes what the shell needs into your home folder; open a new "
        "shell then:"
    )
    yield ""
    yield "<!-- not run: it writes into the home folder; tests/cli runs it in a home of its own, and lets bash complete -->"
    yield "```console"
    yield "$ drafttrace --install-completion"
    yield "```"
    yield ""
    yield (
        "`drafttrace --show-completion` only prints it. Both are for the shell in which they are typed; name another one "
        "behind them, as in `--show-completion zsh`."
    )
    yield ""
    yield "## Environment"
    yield ""
    yield from table(
        "variable",
        "what it does",
        rows=[
            ("`NO_COLOR`", "no colours, whatever the terminal can show"),
            ("`COLUMNS`", "the width of the output where it is no terminal (default 120)"),
            ("`LANG=C`, `LC_ALL=C`", "ASCII only: `->` for an arrow, plain frames"),
            ("`SGLANG_API_KEY`", "the server's API key, as `--api-key`"),
            ("`BROWSER`", "what `drafttrace view` opens pages with"),
            ("`DRAFTTRACE_DEBUG`", "a traceback in place of an error's sentence"),
        ],
    )


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"### drafttrace {name}"
    yield ""
    help_text = re.sub(r"\[/?(bold|dim)\]", "**", inspect.cleandoc(command.help or ""))
    yield help_text.replace("[", "\\[")
    yield ""
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        shown = " ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            shown = f"`{parameter.metavar or parameter.name.upper()}`"
        elif parameter.metavar:
            shown += f" `{parameter.metavar}`"
        rows.append((_in_table(shown), cell(parameter.help or ""), _default(parameter)))
    yield from table("option", "what it does", "default", rows=rows)
    yield "Examples:"
    yield ""
    yield "<!-- not run: tests/cli and tests/live run the examples of every help -->"
    yield "```console"
    for line in (command.epilog or "").replace("\\[", "[").splitlines()[2:]:
        comment = re.search(r"\[dim\](# .*)\[/dim\]", line)
        if comment:
            yield comment[1]
        elif line:
            yield line
    yield "```"
    yield ""


def _in_table(shown: str) -> str:
    """Code for a table's cell. A backslash before a bar is shown by the site and not on the forge: neither shows this."""
    bar = "&#124;"
    return re.sub(r"`([^`]*\|[^`]*)`", lambda code: f"<code>{html.escape(code[1]).replace('|', bar)}</code>", shown)


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or callable(value) or value == ():
        return ""
    return f"`{getattr(value, 'value', value)}`"
