"""drafttrace: a differential tracer for speculative decoding.

The code lives in three subpackages: :mod:`drafttrace.hooks` (inside the SGLang process),
:mod:`drafttrace.tracer` (trace files, training dumps, captures, the command line) and
:mod:`drafttrace.compare` (align, measure, locate, diagnose, report).
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("drafttrace")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
