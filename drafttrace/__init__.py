"""drafttrace: a differential tracer for speculative decoding.

From a notebook or a script::

    import drafttrace

    result = drafttrace.diff("trace.h5", "data_0.pt")
    result                                   # in Jupyter: the verdict, the causes and the slots as a table
    result.findings[0].remedy
    drafttrace.measure("trace.h5", "data_0.pt").to_pandas()

The code lives in three subpackages: :mod:`drafttrace.hooks` (inside the SGLang process),
:mod:`drafttrace.tracer` (trace files, training dumps, captures, the command line) and
:mod:`drafttrace.compare` (align, measure, locate, diagnose, report).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drafttrace import plots as plots
    from drafttrace.api import check as check
    from drafttrace.api import diff as diff
    from drafttrace.api import load as load
    from drafttrace.api import measure as measure
    from drafttrace.api import noise as noise
    from drafttrace.api import open as open
    from drafttrace.api import record as record
    from drafttrace.api import replay as replay
    from drafttrace.api import rows as rows
    from drafttrace.compare.result import Finding as Finding
    from drafttrace.compare.result import Result as Result
    from drafttrace.making import convert as convert
    from drafttrace.making import redact as redact
    from drafttrace.making import reference as reference
    from drafttrace.row_table import RowTable as RowTable
    from drafttrace.tracer.capture import Capture as Capture
    from drafttrace.tracer.errors import DrafttraceError as DrafttraceError

    __version__: str

# Public name -> the module that holds it. Each is imported when it is first used: `import drafttrace` costs nothing.
_HOMES = {
    **dict.fromkeys(
        ("check", "diff", "load", "measure", "noise", "open", "record", "replay", "rows"), "drafttrace.api"
    ),
    **dict.fromkeys(("convert", "redact", "reference"), "drafttrace.making"),
    "Capture": "drafttrace.tracer.capture",
    "DrafttraceError": "drafttrace.tracer.errors",
    "Finding": "drafttrace.compare.result",
    "Result": "drafttrace.compare.result",
    "RowTable": "drafttrace.row_table",
}

__all__ = [
    "Capture",
    "DrafttraceError",
    "Finding",
    "Result",
    "RowTable",
    "__version__",
    "check",
    "convert",
    "diff",
    "load",
    "measure",
    "noise",
    "open",
    "record",
    "redact",
    "reference",
    "replay",
    "rows",
]


def __getattr__(name: str) -> Any:
    if name == "plots":
        from importlib import import_module

        return import_module("drafttrace.plots")
    if name in _HOMES:
        from importlib import import_module

        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
    if name == "__version__":
        found = globals()["__version__"] = _version()
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version() -> str:
    """The installed version, out of the name of the folder that pip made: importlib.metadata would read the same, and
    imports an e-mail parser for it, which is a good part of a short command's time."""
    import os
    import sys

    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:  # a zip file, a folder that went away
            continue
        for name in names:
            if name.startswith("drafttrace-") and name.endswith(".dist-info"):
                return name.removeprefix("drafttrace-").removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("drafttrace")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "plots"} - {"Any", "TYPE_CHECKING", "annotations"})
