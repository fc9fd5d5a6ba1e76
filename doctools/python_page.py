"""The reference of the Python interface, from signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from doctools.markdown import docstring


def python_interface() -> Iterator[str]:
    import drafttrace
    from drafttrace import making, plots
    from drafttrace.compare.audit.result import CheckResult
    from drafttrace.compare.replay.result import ReplayResult
    from drafttrace.row_table import RowTable
    from drafttrace.tracer.capture import Capture

    yield "# Python"
    yield ""
    yield "Importing `drafttrace` is cheap: each name loads what it needs when it is first used."
    yield ""
    yield "`PathLike` is a `str` or `os.PathLike`, `Source` one of these (with `#i` for sample i) or an open `Capture`,"
    aliases = {"Form": plots.Form, "Layout": making.Layout, "Measure": plots.Measure, "Which": plots.Which}
    for name, alias in aliases.items():
        yield f"`{name}` one of {', '.join(f'`{value!r}`' for value in get_args(alias))},"
    yield "`Noise` what `noise` returns."
    yield ""
    functions = [name for name in drafttrace.__all__ if inspect.isfunction(getattr(drafttrace, name))]
    for name in functions:
        yield from _function(f"drafttrace.{name}", getattr(drafttrace, name))
    yield "## drafttrace.Result"
    yield ""
    yield "What `diff` and `load` return; its fields are those of [the result](result.md)."
    yield ""
    yield from _method("Result.save", drafttrace.Result.save)
    yield "`print(result)` is the terminal's report; a notebook shows it as a table. So it is with `check` and `replay`, "
    yield "and with one finding or slot alone."
    yield ""
    for title, kind in (("check", CheckResult), ("replay", ReplayResult)):
        yield f"## What {title} returns"
        yield ""
        yield from docstring(kind)
        for name in ("faults", "verdict", "exit_code", "summary", "best"):
            if hasattr(kind, name):
                yield f"* `{name}`: {getattr(kind, name).__doc__.replace('``', '`')}"
        yield ""
    yield "## drafttrace.Capture"
    yield ""
    yield from docstring(Capture)
    yield "## drafttrace.RowTable"
    yield ""
    yield from docstring(RowTable)
    yield from _method("RowTable.to_pandas", RowTable.to_pandas)
    yield from _method("RowTable.to_polars", RowTable.to_polars)
    yield "## drafttrace.plots"
    yield ""
    yield "`pip install 'drafttrace[plot]'`."
    yield ""
    yield from _function("drafttrace.plots.by_position", plots.by_position, level=3)
    yield from _function("drafttrace.plots.heatmap", plots.heatmap, level=3)


def _function(name: str, function: Any, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    yield ""
    yield from _method(name, function)
    yield f"Source: `{function.__module__.replace('.', '/')}.py`."
    yield ""


def _method(name: str, function: Any) -> Iterator[str]:
    yield "```text"
    yield _signature(name, function)
    yield "```"
    yield ""
    yield from docstring(function)


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    parts = [_parameter(p) for p in parameters]
    kinds = [p.kind for p in parameters]
    first = next((i for i, kind in enumerate(kinds) if kind is inspect.Parameter.KEYWORD_ONLY), None)
    if first is not None:
        parts.insert(first, "*")
    text = f"{name}({', '.join(parts)}) -> {signature.return_annotation}"
    if len(text) <= 100:
        return text
    return f"{name}(\n    " + ",\n    ".join(parts) + f",\n) -> {signature.return_annotation}"


def _parameter(parameter: inspect.Parameter) -> str:
    """As it stands in the code; annotations are texts already."""
    text = f"{parameter.name}: {parameter.annotation}"
    return text if parameter.default is inspect.Parameter.empty else f"{text} = {parameter.default!r}"
