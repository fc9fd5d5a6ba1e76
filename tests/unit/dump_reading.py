"""Reading a dump to its last byte, as a comparison does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.open import open_capture


def read_states(capture: Capture) -> Capture:
    """Read every state of a capture."""
    for slot in capture.slots:
        slot.rows.floats()
    if capture.last is not None:
        capture.last.rows.floats()
    return capture


def read_all(path: Path, request: Request | None = None, **arguments: Any) -> Capture:
    """Open a capture and read every byte of it."""
    return read_states(open_capture(str(path), request=request, **arguments))
