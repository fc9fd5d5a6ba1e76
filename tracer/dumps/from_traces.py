"""A folder of traces, one per sample, as ``drafttrace convert --to trace`` writes it for a dump of several."""

from __future__ import annotations

import os
import re
from pathlib import Path

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import FolderLayout, Request, SampleRef, register

FORMAT = "DRAFTTRACE-TRACES"
_NAME = re.compile(r"trace_(0|[1-9]\d{0,11})\.h5")


def _traces(folder: Path) -> list[SampleRef]:
    """The traces of a folder by their numbers; none where anything else lies there, hidden files aside."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                named = _NAME.fullmatch(entry.name)
                if named is None or not entry.is_file():
                    return []
                found.append(SampleRef(int(named[1]), Path(entry.path)))
    except OSError:  # whoever lists the folder next says so
        return []
    return sorted(found, key=lambda ref: ref.number)


def _detect(folder: Path) -> str | None:
    from drafttrace.tracer.open import is_trace_file

    found = _traces(folder)
    return "files trace_{i}.h5 and nothing else" if found and is_trace_file(found[0].file) else None


def _read(_folder: Path, ref: SampleRef, _request: Request) -> Capture:
    from drafttrace.tracer.trace.reader import read_trace

    return read_trace(ref.file)


register(
    FolderLayout(
        FORMAT,
        "traces and references of drafttrace",
        "a folder of traces, as drafttrace convert writes it",
        _detect,
        _traces,
        _read,
    )
)
