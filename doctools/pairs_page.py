"""The figures about the pairs, made from their training logs and from what their servers reached."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from doctools.markdown import between, table
from doctools.noise_table import noise_table, noise_words
from drafttrace.compare.thresholds import DEFAULT

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "pairs/README.md"
SMOL = ROOT / "pairs/smol"
REAL_MODEL = ROOT / "docs/explanation/real-model.md"
PAIRS = ("tiny-kimi", "tiny-llama")


def pairs_page() -> str:
    """The page with its tables made anew."""
    logs = {name: json.loads((ROOT / "pairs" / name / "training_log.json").read_text("utf-8")) for name in PAIRS}
    return between(README.read_text("utf-8"), {"minutes": _minutes(logs), "outcome": _outcome(logs)})


def real_model_page() -> str:
    """The page about the real model: its head's training log, what its servers reached, and what its demo did."""
    log = [json.loads(line) for line in (SMOL / "draft/training.jsonl").read_text("utf-8").splitlines()]
    measured = json.loads((SMOL / "accept_length.json").read_text("utf-8"))
    demo = json.loads((SMOL / "demo_summary.json").read_text("utf-8"))
    noise = json.loads((ROOT / "bench/noise.json").read_text("utf-8"))
    parts = {
        "training": _training(log),
        "demo": _demo(demo),
        "wirings": _wirings(measured),
        "epochs": _epochs(log),
        "noise": noise_table(noise),
        "noise-words": noise_words(noise, DEFAULT.match),
    }
    return between(REAL_MODEL.read_text("utf-8"), parts)


def _training(log: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What went in and what came out: the first line of the log, and its last."""
    begun, ended = log[0], log[-1]
    plan, shape, held_out = begun["plan"], begun["shape"], ended["held_out_as_saved"]
    shares = [f"{share:.1%}" for share in held_out["accuracy"]]
    wiring = ", ".join(f"B{k}" for k in plan["wiring"])
    yield from table(
        "from `pairs/smol/draft/training.jsonl`",
        "",
        rows=[
            ("answers, tokens", f"{begun['talks']:,}, {begun['tokens']:,}"),
            ("the draft reads", f"`[{wiring}]`"),
            ("draft vocabulary", f"{shape['vocab']:,} tokens, {begun['vocabulary_share']:.1%} of the answers'"),
            ("steps of the training-time test", str(plan["ttt_steps"])),
            (
                "updates, minutes",
                f"{ended['updates']:,} in {ended['seconds'] / 60:.1f} (the plan: at most {plan['updates']:,} in "
                f"{plan['minutes']:.0f}{', so the clock ended it' if ended['updates'] < plan['updates'] else ''})",
            ),
            (f"right on {held_out['rows']:,} held-out rows, step by step", ", ".join(shares)),
            ("tokens of these that the draft can say", f"{held_out['coverage']:.1%}"),
        ],
    )


def _demo(summary: Mapping[str, Any]) -> Iterator[str]:
    """What ``make demo`` wrote into its ``summary.json``."""
    yield from table(
        f"{summary['prompts']} prompts, {summary['new_tokens']} new tokens each",
        "accept length",
        "`drafttrace diff` says",
        rows=[
            (
                words,
                f"{summary[f'accept_length_{when}']:.2f}",
                ", ".join(f"`{name}`" for name in dict.fromkeys(summary[f"findings_{when}"])),
            )
            for words, when in (("as its trainer left it", "before"), ("with the printed remedy", "after"))
        ],
    )


def _epochs(log: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for line in log:
        held_out = line.get("held_out")
        if held_out is not None:
            shares = [f"{share:.1%}" for share in held_out["accuracy"]]
            length = f"{held_out['expected_accept_length_5_steps']:.2f}"
            rows.append((str(line["epoch"]), f"{line['seconds'] / 60:.0f}", *shares, length))
    steps = [f"step {k}" for k in range(1, len(rows[0]) - 2)]
    yield from table("epochs", "minutes", *steps, "expected accept length, 5 steps", rows=rows)


def _wirings(measured: Mapping[str, Any]) -> Iterator[str]:
    asked = f"{measured['prompts']} prompts, {measured['new_tokens']} new tokens each"
    yield f"{asked}, {measured['steps']} drafted tokens a round:"
    yield ""
    rows = [
        (f"{name}, `{one['boundaries']}`", f"`{one['layer_ids']}`", f"{one['accept_length']:.3f}")
        for name, one in measured["wirings"].items()
    ]
    yield from table("the server hands over", "layer ids", f"accept length (of {measured['steps'] + 1})", rows=rows)
    other = measured["ordinary"]
    yield (
        f"As trained, on {other['prompts']} ordinary questions (`pairs/smol/questions.json`), which come from none of the "
        f"training prompts' templates: **{other['accept_length']:.2f}**."
    )
    yield ""
    unlike = measured["unlike_training"]
    rows = [
        (
            name,
            str(one["prompts"]),
            f"{one['accept_length']:.2f}",
            str(one["rounds"]),
            f"{one['outside_draft_vocabulary']:.0%}",
        )
        for name, one in unlike.items()
    ]
    yield "As trained, on texts unlike any training prompt (in the same file):"
    yield ""
    yield from table("", "prompts", "accept length", "rounds", "of the answers the draft cannot say", rows=rows)


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
