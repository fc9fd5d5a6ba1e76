"""drafttrace: a differential tracer for speculative decoding.

The code lives in three subpackages: :mod:`drafttrace.hooks` (inside the SGLang process),
:mod:`drafttrace.tracer` (trace files, training dumps, captures, the command line) and
:mod:`drafttrace.compare` (align, measure, locate, diagnose, report).
"""

from __future__ import annotations

from typing import Any

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    # Looked up only when asked for: importlib.metadata costs 45 ms, and `--help` must be instant.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("drafttrace")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
