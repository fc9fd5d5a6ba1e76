"""Keeps SGLang's CPU attention backend selected on CPUs without AMX."""

from __future__ import annotations

import os
from typing import Any

_FALLBACK_PASS = "sglang.srt.arg_groups.overrides._attention_backend_platform_fallbacks"


def register() -> None:
    """Called by SGLang (entry point group ``sglang.srt.plugins``) in each process, before arguments are resolved."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # SGLang swaps intel_amx for torch_native where it finds no AMX kernels, and torch_native cannot speculate. It
    # also replaces the name in the modules that have imported it.
    HookRegistry.register(_FALLBACK_PASS, no_fallback, HookType.REPLACE)


def no_fallback(view: Any) -> dict[str, Any]:
    """An argument pass that changes no argument."""
    return {}
