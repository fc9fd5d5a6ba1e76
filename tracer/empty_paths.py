"""An empty text where a path is wanted, such as an unset variable of a shell: pathlib takes it for the working folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafttrace.tracer.errors import DrafttraceError

# Options are typer's own or, in its older versions, click's: neither has types that fit both.
Option = Any


def refuse_empty_path(option: Option) -> None:
    """Make an option that wants a path refuse an empty text before it becomes one. Others stay as they are."""
    if _wants_path(option):
        option.handle_parse_result = _NotEmpty(option, option.handle_parse_result)


def _wants_path(option: Option) -> bool:
    descriptor = getattr(option, "type_descriptor", None)
    if descriptor is not None:
        return descriptor.annotation is Path
    return "Path" in type(getattr(option, "type", None)).__name__  # click.Path or typer's own of it


class _NotEmpty:
    """Stands for an option's parsing."""

    def __init__(self, option: Option, parse: Any) -> None:
        self._option, self._parse = option, parse

    def __call__(self, ctx: Any, opts: Mapping[str, Any], args: list[str]) -> Any:
        given = opts.get(self._option.name)
        if "" in (given if isinstance(given, (list, tuple)) else [given]):
            name = next((text for text in self._option.opts if text.startswith("--")), self._option.name.upper())
            raise DrafttraceError(
                f"{name} is empty; give a path, or leave it out (is a variable of the shell not set?)."
            )
        return self._parse(ctx, opts, args)
