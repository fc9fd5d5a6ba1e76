"""Token ids to text for reports: where a tokenizer is found, and how it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.served_paths import served_path

if TYPE_CHECKING:
    from drafttrace.tracer.capture import Capture


def tokenizer_folder(explicit: Path | None, *captures: Capture | None) -> Path | None:
    """Where tokens can be decoded from: the option, else the target that a trace names, if it is on this machine.

    Nobody asked for the second: where the package that reads it is not installed, tokens stay numbers. A redacted trace's
    ids are pseudonyms: whatever a tokenizer made of them would be somebody else's text.
    """
    if any(capture is not None and capture.redacted for capture in captures):
        return None
    if explicit is not None:
        if not (explicit / "tokenizer.json").is_file() and explicit.suffix != ".json":
            raise DrafttraceError(f"The tokenizer '{explicit}' holds no tokenizer.json; give the target's folder.")
        return explicit
    if find_spec("tokenizers") is None:
        return None
    for capture in captures:
        path = served_path(capture, "tokenizer") if capture is not None else None
        if path is not None and (Path(path) / "tokenizer.json").is_file():
            return Path(path)
    return None


def decoder(folder: Path | None) -> Callable[[int], str] | None:
    """Token id to text, or None where no tokenizer is at hand."""
    if folder is None:
        return None
    from drafttrace.tracer.tokenizer import load_decoder

    return load_decoder(folder)
