"""A usage error says which value was wrong: "Input should be greater than or equal to 1" alone does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Commands and options are typer's own or, in its older versions, click's: neither has types that fit both.
Command = Any
Option = Any


def tell_values(command: Command) -> Command:
    """Make the options of a command line name the value that they refuse."""
    for one in (command, *getattr(command, "commands", {}).values()):
        for option in one.params:
            option.handle_parse_result = _Told(option, option.handle_parse_result)
    return command


class _Told:
    """Stands for an option's parsing."""

    def __init__(self, option: Option, parse: Any) -> None:
        self._option, self._parse = option, parse

    def __call__(self, ctx: Any, opts: Mapping[str, Any], args: list[str]) -> Any:
        given = opts.get(self._option.name)
        try:
            return self._parse(ctx, opts, args)
        except Exception as error:  # typer's or click's, which share no type; a usage error has a message
            said = getattr(error, "message", None)
            if isinstance(said, str) and isinstance(given, str) and f"'{given}'" not in said:
                error.message = f"{said.rstrip('.')}, and it is '{given}'"  # type: ignore[attr-defined]
            raise
