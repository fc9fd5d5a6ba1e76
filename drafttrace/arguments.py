"""Arguments that Python's callers get wrong: refused by name, value and remedy, before anything is read."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError


def refuse_no_path(given: Any, name: str) -> None:
    """Raise DrafttraceError for what is no path: bytes, None, a number. name: of the argument."""
    if not isinstance(given, (str, os.PathLike)) or isinstance(os.fspath(given), bytes):
        raise DrafttraceError(f"The {name} {given!r:.60} is no path; give a str or a pathlib.Path.")


def refuse_no_source(given: Any, name: str) -> None:
    """Raise DrafttraceError for what is neither a path nor an open capture. name: of the argument."""
    if isinstance(given, Capture):
        return
    if not isinstance(given, (str, os.PathLike)) or isinstance(os.fspath(given), bytes):
        raise DrafttraceError(f"The {name} {given!r:.60} is no trace or dump; give its path, or an open capture.")


def refuse_other(given: Any, name: str, allowed: Collection[str]) -> None:
    """Raise DrafttraceError for a word that is none of those allowed. name: of the argument."""
    if not isinstance(given, str) or given not in allowed:
        raise DrafttraceError(f"The {name} {given!r:.60} is not known; give one of {', '.join(sorted(allowed))}.")
