"""Does every hook apply to the SGLang that is installed here? And the block of versions for a bug report."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from drafttrace.hooks.sglang_engine.symbols import ReadFile, check_hook, installed_files
from drafttrace.hooks.sglang_engine.versions import (
    HTTP_HOOKS,
    NEWEST,
    OLDEST,
    SCHEDULER_HOOKS,
    HookSpec,
    unsupported,
)

GROUP = "sglang.srt.plugins"
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
    """What ``drafttrace doctor`` says. problem: why the recorder cannot work here, None where it can."""

    environment: dict[str, str]
    plugin_registered: bool
    hooks: tuple[HookState, ...]
    problem: str | None

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
            block[name] = importlib.metadata.version(name)
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
    problem = unsupported(version)
    if problem is None and not registered:
        problem = f"The entry point of the group {GROUP} is missing; install drafttrace again with pip."
    read = installed_files()
    states = [_state(read, spec) for spec in (*SCHEDULER_HOOKS, *HTTP_HOOKS)] if read is not None else []
    # Optional hooks that this version has no symbol for (or has under another name) are no news.
    hooks = tuple(state for state in states if state.needed or state.error is None)
    missing = [hook for hook in hooks if hook.needed and hook.error]
    if problem is None and missing:
        problem = f"{missing[0].target} cannot be hooked: {missing[0].error}; the recorder cannot work with it."
    return Diagnosis(block, registered, hooks, problem)


def _state(read: ReadFile, spec: HookSpec) -> HookState:
    return HookState(spec.name, spec.target, spec.needed, check_hook(read, spec).problem)
