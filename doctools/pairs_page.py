"""The figures about the pairs, made from their training logs and from what their servers reached."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from doctools.markdown import between, table

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "pairs/README.md"
REAL_MODEL = ROOT / "docs/explanation/real-model.md"
PAIRS = ("tiny-kimi", "tiny-llama")


def pairs_page() -> str:
    """The page with its tables made anew."""
    logs = {name: json.loads((ROOT / "pairs" / name / "training_log.json").read_text("utf-8")) for name in PAIRS}
    return between(README.read_text("utf-8"), {"minutes": _minutes(logs), "outcome": _outcome(logs)})


def real_model_page() -> str:
    """What ``pairs.smol.accept`` measured, in the page about the real model."""
    measured = json.loads((ROOT / "pairs/smol/accept_length.json").read_text("utf-8"))
    return between(REAL_MODEL.read_text("utf-8"), {"wirings": _wirings(measured)})


def _wirings(measured: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (f"{name}, `{one['boundaries']}`", f"`{one['layer_ids']}`", f"{one['accept_length']:.3f}")
        for name, one in measured["wirings"].items()
    ]
    yield from table("the server hands over", "layer ids", f"accept length (of {measured['steps'] + 1})", rows=rows)


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
