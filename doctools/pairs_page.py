"""The figures in pairs/README.md, made from the pairs' training logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from doctools.markdown import between, table

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "pairs/README.md"
PAIRS = ("tiny-kimi", "tiny-llama")


def pairs_page() -> str:
    """The page with its tables made anew."""
    logs = {name: json.loads((ROOT / "pairs" / name / "training_log.json").read_text("utf-8")) for name in PAIRS}
    return between(README.read_text("utf-8"), {"minutes": _minutes(logs), "outcome": _outcome(logs)})


def _minutes(logs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for name, log in logs.items():
        stages = log["target_training"]
        seconds = [float(stages[key]["seconds"]) if key in stages else None for key in ("shallow", "full")]
        seconds.append(float(log["draft_training"]["seconds"]))
        whole = log.get("minutes_from_nothing")
        rows.append((f"`{name}`", *(_of(s) for s in seconds), "" if whole is None else f"{whole:.1f}"))
    yield from table("minutes", "11 layers", "whole target", "draft", "all, with dump and measures", rows=rows)


def _of(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 60:.1f}"


def _outcome(logs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for name, log in logs.items():
        right = "[" + ", ".join(f"B{k}" for k in log["wiring"]) + "]"
        for wiring, length in log["simulated_accept_length"].items():
            as_trained = " (as trained)" if wiring == right else ""
            rows.append((f"`{name}`", f"`{wiring}`{as_trained}", f"{length:.2f}"))
    yield from table("pair", "draft fed with", "accept length, of 6", rows=rows)
    yield from table(
        "pair",
        "smallest median distance between neighbouring boundaries",
        rows=[(f"`{name}`", f"{min(log['neighbour_distance']):.2f}") for name, log in logs.items()],
    )
