"""The target and the draft that a trace was served with: the defaults of commands that need their folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.hub_cache import cached_model, is_hub_name, model_folder

if TYPE_CHECKING:
    from drafttrace.tracer.capture import Capture

Role = Literal["target", "draft", "tokenizer"]
_KEYS: Mapping[Role, tuple[str, ...]] = {
    "target": ("model_path",),
    "draft": ("speculative_draft_model_path",),
    "tokenizer": ("tokenizer_path", "model_path"),
}
_REVISIONS: Mapping[Role, str] = {
    "target": "revision",
    "draft": "speculative_draft_model_revision",
    "tokenizer": "revision",
}


def served_path(capture: Capture, role: Role) -> str | None:
    """What the server was started with, as the trace has it; None for a dump, or where it is not recorded.

    A name of the hub is the folder that this machine's cache holds for it, where it does.
    """
    arguments = capture.about.get("server_args")
    if not isinstance(arguments, Mapping):
        return None
    values = (arguments.get(key) for key in _KEYS[role])
    path = next((value for value in values if isinstance(value, str) and value), None)
    if path is None or Path(path).is_dir():
        return path
    revision = arguments.get(_REVISIONS[role])
    held = cached_model(path, revision if isinstance(revision, str) else None)
    return path if held is None else str(held)


def folder_of(explicit: Path | None, captures: Iterable[Capture], role: Role) -> Path:
    """The folder that the option names, else the one that the first trace with one names.

    Raises DrafttraceError where there is none, or where the trace's is not on this machine.
    """
    if explicit is not None:
        return model_folder(explicit, role)
    for capture in captures:
        path = served_path(capture, role)
        if path is None:
            continue
        if not Path(path).is_dir():
            raise DrafttraceError(
                f"The {role} '{path}', which '{capture.path}' was served with, is no folder on this machine"
                f"{' and not in its hub cache' if is_hub_name(path) else ''}; give its place with --{role}."
            )
        return Path(path)
    raise DrafttraceError(f"No file names the {role}; give its folder with --{role}.")
