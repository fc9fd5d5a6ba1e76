"""LEFT and REFERENCE given the wrong way round: a training dump held against what the server computed gives the opposite
remedy, with full confidence. What the two files are tells it."""

from __future__ import annotations

import os
from dataclasses import replace

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.dumps.from_traces import FORMAT as FOLDER_OF_TRACES
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import is_trace_file, open_capture, split_spec

Side = str | os.PathLike[str] | Capture

# What some engine computed, which may be held against a trace; and files that do not say what they are.
_OF_AN_ENGINE = frozenset({"SG-PASS", "SG-JSON", "SG-DUMPER", "VLLM-HS", "MO-TRT-RAW", "MAPPED"})


def are_exchanged(
    left: Side,
    reference: Side,
    *,
    left_format: str | None = None,
    reference_format: str | None = None,
    request: Request | None = None,
) -> bool:
    """Whether LEFT is a training dump and REFERENCE the recording of a live server. Raises nothing: what cannot be read is
    said by whoever opens it."""
    try:
        return _is_recorded(reference, reference_format) and _is_training(left, left_format, request)
    except DrafttraceError:
        return False


def told(left: Capture, reference: Capture) -> Capture:
    """The left side, with a note that the two were given the other way round."""
    said = (
        f"LEFT and REFERENCE were given the other way round and are exchanged: '{left.path}' is what a server computed, "
        f"'{reference.path}' ({reference.format}) what training stored"
    )
    return replace(left, notes=(said, *left.notes))


def _is_recorded(side: Side, format: str | None) -> bool:
    """Whether a side was recorded from a server; a trace that was converted from a dump was not."""
    if format is not None and format != FOLDER_OF_TRACES:
        return False
    if isinstance(side, Capture):
        return side.format.startswith("drafttrace.trace") and "server_args" in side.about
    path, _number = split_spec(os.fspath(side))
    if is_trace_file(path):
        return "server_args" in open_capture(os.fspath(side)).about
    if not path.is_dir():
        return False
    collection = open_collection(path)
    return collection.layout.id == FOLDER_OF_TRACES and "server_args" in open_capture(f"{path}#0").about


def _is_training(side: Side, format: str | None, request: Request | None) -> bool:
    if isinstance(side, Capture):
        known = side.format
    elif format is not None:
        known = format.upper()
    else:
        path, _number = split_spec(os.fspath(side))
        known = "drafttrace.trace" if is_trace_file(path) else open_collection(path, None, request).layout.id
    return not known.startswith("drafttrace.trace") and known not in {*_OF_AN_ENGINE, FOLDER_OF_TRACES}
