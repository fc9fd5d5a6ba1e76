"""A result as a file: the ending of the name says in which form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.printable import utf8
from drafttrace.tracer.report_file import dump_json, write_bytes

if TYPE_CHECKING:
    from drafttrace.compare.result import Result


def save(result: Result, path: Path) -> None:
    """Write the file, whole or not at all. Raises DrafttraceError as :meth:`Result.save` says."""
    forms: dict[str, Callable[[Result], bytes]] = {
        ".json": _json,
        ".md": _markdown,
        ".html": _html,
        **dict.fromkeys((".png", ".pdf", ".svg"), lambda result: _picture(result, path)),
    }
    form = forms.get(path.suffix.lower())
    if form is None:
        raise DrafttraceError(f"The report '{path}' has no known form; let its name end in {', '.join(forms)}.")
    write_bytes(path, form(result))


def _json(result: Result) -> bytes:
    return utf8(dump_json(result.to_json()))


def _markdown(result: Result) -> bytes:
    from drafttrace.compare.report_markdown import render

    return utf8(render(result))


def _html(result: Result) -> bytes:
    from drafttrace.compare.report_html import render

    return utf8(render(result))


def _picture(result: Result, path: Path) -> bytes:
    from drafttrace.plots import form_of, overview

    return overview(result, form_of(path))
