"""What the processes of one server say about themselves, and the health that clients see made from it."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import drafttrace
from drafttrace.hooks.config import Settings
from drafttrace.hooks.sglang_engine.versions import HookSpec

if TYPE_CHECKING:
    from drafttrace.hooks.sglang_engine.runtime import SchedulerHooks


def applied(spec: HookSpec) -> str | None:
    """None where the hook stands on its symbol, else why it does not."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    try:
        symbol = pkgutil.resolve_name(spec.target)
    except Exception as error:
        return f"there is no {spec.target} in this SGLang ({type(error).__name__})"
    patched = getattr(HookRegistry, "_patched", None)
    done = spec.target in patched if patched is not None else hasattr(symbol, "__wrapped__")
    return None if done else f"SGLang did not apply the hook to {spec.target}"


def hook_report(specs: Sequence[HookSpec], fired: Mapping[str, int], process: str) -> list[dict[str, Any]]:
    """One line per hook; optional ones that this SGLang has no symbol for are left out."""
    report = []
    for spec in specs:
        error = applied(spec)
        if error is not None and not spec.needed:
            continue
        report.append(
            {
                "name": spec.name,
                "target": spec.target,
                "applied": error is None,
                "fired": int(fired.get(spec.name, 0)),
                "error": error,
                "process": process,
            }
        )
    return report


def scheduler_status(hooks: SchedulerHooks, report: list[dict[str, Any]]) -> dict[str, Any]:
    """What a scheduler process knows: its hooks, taps, models and errors."""
    recorder = hooks.recorder
    for side, reason in hooks.failed.items():
        report.append(
            {"name": f"taps_{side}", "target": side, "applied": False, "fired": 0, "error": reason, "process": ""}
        )
    status: dict[str, Any] = {
        "role": "scheduler",
        "rank": recorder.place.rank,
        "place": recorder.place.to_json(),
        "records": recorder.place.records,
        "gap": recorder.place.gap,
        "reason": recorder.place.refusal,
        "hooks": report,
        "taps": [f"{side}/{name}" for side, taps in hooks.taps.items() for name in taps.names],
        "errors": {"count": recorder.errors, "last": recorder.last_error},
    }
    if hooks.target is None:
        return status
    facts = hooks._facts()
    config = hooks.target.model_config
    status |= {
        "target": {
            "path": str(config.model_path),
            "model_class": type(hooks.target.model).__name__,
            "n": facts.n,
            "hidden_size": facts.hidden,
            "vocab_size": int(config.vocab_size),
        },
        "wiring": facts.about["wiring"],
        "context_length": int(config.context_len),
    }
    if hooks.draft is not None:
        status["draft"] = {
            "path": str(hooks.draft.model_config.model_path),
            "model_class": type(hooks.draft.model).__name__,
        }
    return status


def health(
    settings: Settings | None,
    version: str,
    reason: str | None,
    own: list[dict[str, Any]],
    statuses: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """``GET /drafttrace/health``: the answers of all processes in one object."""
    hooks = list(own)
    ranks, taps, last = set(), [], None
    places, gap = [], None
    count = 0
    first: Mapping[str, Any] = {}
    for status in statuses:
        hooks += status.get("hooks", [])
        errors = status.get("errors") or {}
        count += int(errors.get("count", 0))
        last = errors.get("last") or last
        reason = reason or status.get("reason")
        places += [status["place"]] if "place" in status else []
        gap = gap or status.get("gap")
        if not status.get("records", True):
            continue  # a later stage of the pipeline
        ranks.add(status.get("rank"))
        if "target" in status and (not first or status.get("rank") == 0):
            first, taps = status, status.get("taps", [])
    if reason is None and not first:
        reason = "no scheduler has reported to the plugin yet"
    return {
        "plugin_version": drafttrace.__version__,
        "sglang_version": version,
        "supported": reason is None,
        "reason": reason,
        "hooks": hooks,
        "taps": taps,
        "budgets": settings.budgets() if settings is not None else {},
        "token_required": settings is not None and settings.token is not None,
        "trace_dir": str(settings.directory) if settings is not None else None,
        "target": first.get("target"),
        "draft": first.get("draft"),
        "wiring": first.get("wiring"),
        "context_length": first.get("context_length"),
        "ranks": sorted(rank for rank in ranks if rank is not None),
        "all_ranks": settings is not None and settings.all_ranks,
        "places": places,
        "gap": gap,
        "errors": {"count": count, "last": last},
    }
