"""What a terminal can show. One that knows ASCII only gets ASCII, and never an encoding error."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Mapping

_PLAIN = {
    "→": "->",
    "←": "<-",
    "×": "x",
    "±": "+/-",
    "·": "-",
    "•": "*",
    "…": "...",
    "–": "-",
    "—": "-",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "√": "sqrt ",
    "─": "-",
    "━": "-",
    "│": "|",
    "█": "#",
}


def wants_ascii(environment: Mapping[str, str]) -> bool:
    """Whether the locale is the C one, which promises ASCII and nothing more.

    Python sets LC_CTYPE to C.UTF-8 by itself where LANG is C (PEP 538), so that value does not speak against it.
    """
    plain = {"C", "POSIX"}
    if environment.get("LC_ALL"):
        return environment["LC_ALL"] in plain
    return environment.get("LANG") in plain and environment.get("LC_CTYPE", "C.UTF-8") in {*plain, "", "C.UTF-8"}


def prepare_streams() -> None:
    """Let standard output and error replace what they cannot show."""
    codecs.register_error("drafttrace-plain", _replace)
    ascii_only = wants_ascii(os.environ)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:  # replaced by a test runner or a notebook
            continue
        if ascii_only:
            reconfigure(encoding="ascii", errors="drafttrace-plain")
        else:
            reconfigure(errors="drafttrace-plain")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    shown = (_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text)
    return "".join(shown), error.end
