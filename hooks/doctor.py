"""Does every hook apply to the SGLang that is installed here? And the block of versions for a bug report."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from drafttrace.hooks.sglang_engine.symbols import (
    ReadFile,
    check_hook,
    installed_files,
    installed_version,
    refusal,
)
from drafttrace.hooks.sglang_engine.versions import (
    HTTP_HOOKS,
    NEWEST,
    OLDEST,
    SCHEDULER_HOOKS,
    HookSpec,
    parse_version,
)

GROUP = "sglang.srt.plugins"
NO_VERSION = "unknown (its dist-info has no METADATA)"
_DISTRIBUTIONS = ("drafttrace", "sglang", "torch", "transformers", "h5py", "numpy", "safetensors", "typer")


@dataclass(frozen=True)
class HookState:
    """One symbol of SGLang that the recorder hooks. error: None where it is there."""

    name: str
    target: str
    needed: bool
    error: str | None


@dataclass(frozen=True)
class Diagnosis:
    """What ``drafttrace doctor`` says. problem: why the recorder cannot work here, None where it can.

    note: what could not be told, and what was gone by instead.
    """

    environment: dict[str, str]
    plugin_registered: bool
    hooks: tuple[HookState, ...]
    problem: str | None
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The machine form, ``drafttrace.doctor/1``."""
        return {"schema": "drafttrace.doctor/1", **asdict(self)}


def releases() -> list[str]:
    """The releases of SGLang with the plugin framework that are known, the newest first."""
    return [".".join(map(str, (*NEWEST[:2], patch))) for patch in range(NEWEST[2], OLDEST[2] - 1, -1)]


def environment() -> dict[str, str]:
    """Python, platform and the version of every package that matters; "not installed" where it is missing."""
    block = {"python": platform.python_version(), "platform": platform.platform(), "executable": sys.executable}
    for name in _DISTRIBUTIONS:
        try:
            block[name] = installed_version(name) or NO_VERSION
        except importlib.metadata.PackageNotFoundError:
            block[name] = "not installed"
    return block


def examine() -> Diagnosis:
    """Look at the files of the installed SGLang: no server is started, and SGLang is not imported."""
    block = environment()
    registered = any(entry.name == "drafttrace" for entry in importlib.metadata.entry_points(group=GROUP))
    version = block["sglang"]
    if version == "not installed":
        problem: str | None = (
            "SGLang is not installed here; run this in the environment that holds the server, after installing "
            "drafttrace into it."
        )
        return Diagnosis(block, registered, (), problem)
    if version == NO_VERSION:
        problem = (
            "The installation of SGLang here is broken: its dist-info has no METADATA, which an interrupted pip leaves; "
            "install SGLang again."
        )
        return Diagnosis(block, registered, (), problem)
    problem = refusal(version)
    if problem is None and not registered:
        problem = f"The entry point of the group {GROUP} is missing; install drafttrace again with pip."
    read = installed_files()
    states = [_state(read, spec) for spec in (*SCHEDULER_HOOKS, *HTTP_HOOKS)] if read is not None else []
    # Optional hooks that this version has no symbol for (or has under another name) are no news.
    hooks = tuple(state for state in states if state.needed or state.error is None)
    missing = [hook for hook in hooks if hook.needed and hook.error]
    if problem is None and missing:
        problem = f"{missing[0].target} cannot be hooked: {missing[0].error}; the recorder cannot work with it."
    return Diagnosis(block, registered, hooks, problem, _note(version) if problem is None else None)


def _note(version: str) -> str | None:
    if parse_version(version) is not None:
        return None
    return (
        f"SGLang calls itself '{version}', which is no release number, so its version cannot be told; its symbols were "
        "looked at instead."
    )


def _state(read: ReadFile, spec: HookSpec) -> HookState:
    return HookState(spec.name, spec.target, spec.needed, check_hook(read, spec).problem)
