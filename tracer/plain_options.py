"""Options that need no conversion go round the one that typer does: its newer versions import pydantic for that and build
a validator for every option, given or not. That was a third of what ``drafttrace inspect`` costs."""

from __future__ import annotations

from typing import Any

import typer.main

from drafttrace.tracer.empty_paths import refuse_empty_path

# Commands and options are typer's own or, in its older versions, click's: neither has types that fit both.
Command = Any
Option = Any


def command_of(app: typer.Typer) -> Command:
    """The command line of ``app``, to be called."""
    command = typer.main.get_command(app)
    for one in (command, *getattr(command, "commands", {}).values()):
        for option in one.params:
            _spare(option)
            refuse_empty_path(option)
        one.get_help_option = _Help(one.get_help_option)
    return command


def _spare(option: Option) -> None:
    make = getattr(option, "get_runtime_param", None)
    if make is not None and not isinstance(make, _Given):  # versions without it convert without pydantic
        option.get_runtime_param = _Given(make)


class _Help:
    """Makes a command's ``--help`` option, which is not among its parameters."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, context: Any) -> Option:
        option = self._make(context)
        if option is not None:
            _spare(option)
        return option


class _Given:
    """Stands for an option's conversion: what is not given, and text that is wanted as text, stays as it is; anything
    else goes the usual way."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self) -> _Given:
        return self

    def coerce(self, value: Any, param: Option, ctx: Any) -> Any:
        """The value that the command gets."""
        wanted = param.type_descriptor
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is str and wanted.annotation is str and wanted.parameter_info.parser is None:
            return value
        return self._make().coerce(value, param=param, ctx=ctx)
