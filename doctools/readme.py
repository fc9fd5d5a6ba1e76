"""The README's tables, made from the code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doctools.markdown import between, cell, table

if TYPE_CHECKING:
    from drafttrace.tracer.dumps.registry import FolderLayout, Layout

ROOT = Path(__file__).resolve().parents[1]

_CLASSES = {
    "wiring": "which boundary is in which slot",
    "norm": "norms, residual, scale",
    "weights": "the draft's weights",
    "vocabulary": "the map from draft to target vocabulary",
    "position": "positions, rope, window",
    "token": "tokens and mask against states",
    "cache": "prefix cache and uptime",
    "ranks": "tensor-parallel ranks",
    "batching": "graphs, overlap, batches",
    "number-format": "number formats",
    "multimodal": "image and audio tokens",
    "data": "prompts that differ",
    "downstream": "everything up to fc is right",
    "unknown": "none of these",
    "tracer": "the recorder itself",
}
_RECORDED = {
    "tiny-llama": "tiny-llama, whose rounds take milliseconds: the worst case",
    "smol": "SmolLM2-135M",
}
_SHARE = "{value:.2f} of the speed without ({low:.2f} to {high:.2f})"
_COSTS = (
    (
        "two servers without the plugin: what equal ones differ by",
        "two servers without plugin, by processor time",
        _SHARE,
    ),
    ("the plugin, nothing traced", "plugin on, nothing traced / no plugin, by processor time", _SHARE),
    ("one request of eight traced", "one of eight traced / none traced, by processor time", _SHARE),
    (
        "SGLang's own `return_hidden_states` for one of eight",
        "return_hidden_states, one of eight / none, by processor time",
        _SHARE,
    ),
    ("memory of the scheduler", "memory of the scheduler, MiB more", "{value:.0f} MiB more"),
)
# The order of the table's rows. A project that has no place here comes before those of _LAST.
_FIRST = (
    "SpecForge",
    "speculators",
    "vLLM hidden-states connector",
    "TorchSpec",
    "NVIDIA Model-Optimizer and TensorRT-LLM",
    "NeMo Automodel",
    "AngelSlim",
    "EAGLE-1/2, HASS",
    "BaldEagle",
)
_LAST = ("SGLang's own dumps", "traces and references of drafttrace", "any file, with the names of its fields")


def readme() -> str:
    """The README with its tables made anew, between their ``begin`` and ``end`` comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return between(
        text,
        {
            "demo": _demo(),
            "findings": _named(),
            "formats": _read(),
            "commands": _commands(),
            "versions": _versions(),
            "cost": _cost(),
        },
    )


def _demo() -> Iterator[str]:
    """What ``make demo`` wrote into its ``summary.json``, for the tiny pair and for the real model."""
    tiny, smol = (
        json.loads((ROOT / f"pairs/{pair}/demo_summary.json").read_text("utf-8")) for pair in ("tiny-kimi", "smol")
    )

    def lengths(summary: Mapping[str, Any]) -> str:
        return f"{summary['accept_length_before']:.2f} to {summary['accept_length_after']:.2f}"

    found = " and ".join(f"`{name}`" for name in tiny["findings_before"][:2])
    yield (
        f"On a clean clone it named {found}, and the printed line took the accept length from {lengths(tiny)} on the same "
        f"{tiny['prompts']} prompts, in a few minutes on two cores once the environment is built. `make demo PAIR=smol` "
        f"tells it on a real language model, SmolLM2-135M: {lengths(smol)} "
        "([what that showed](docs/explanation/real-model.md))."
    )


def _named() -> Iterator[str]:
    from drafttrace.compare.vocabulary import classes

    page = "docs/reference/findings.md"
    rows = [
        (_CLASSES[kind], ", ".join(f"[`{name}`]({page}#{name})" for name in names))
        for kind, names in classes().items()
    ]
    yield from table("about", "findings", rows=rows)


def _read() -> Iterator[str]:
    from drafttrace.tracer.dumps.registry import folder_layouts, layouts

    grouped = by_project([*layouts().values(), *folder_layouts().values()])
    rows = [(who, ", ".join(f"`{name}`" for name in ids)) for who, ids in grouped.items()]
    yield from table("written by", "formats", rows=rows)


def by_project(known: Sequence[Layout | FolderLayout]) -> dict[str, list[str]]:
    """The ids of layouts by the project that each names, in the order of the README's rows."""
    found: dict[str, list[str]] = {}
    for layout in known:
        found.setdefault(layout.project, []).append(layout.id)
    new = [project for project in found if project not in {*_FIRST, *_LAST}]
    return {project: found[project] for project in (*_FIRST, *new, *_LAST) if project in found}


def _commands() -> Iterator[str]:
    import typer.main

    from drafttrace.tracer.cli import app

    group: Any = typer.main.get_command(app)
    page = "docs/reference/command-line.md"
    rows = [
        (f"[`drafttrace {name}`]({page}#drafttrace-{name})", cell((command.help or "").split("\n\n")[0]))
        for name, command in group.commands.items()
    ]
    yield from table("command", "what it does", rows=rows)


def _cost() -> Iterator[str]:
    """The figures of ``bench/recorder.py --json bench/recorder.json``: the median of its runs, the least and the most."""
    found = json.loads((ROOT / "bench/recorder.json").read_text("utf-8"))
    figures = {figure["name"]: figure for figure in found["figures"]}
    pairs = [pair for pair in _RECORDED if any(name.startswith(f"{pair}: ") for name in figures)]

    def shown(pair: str, name: str, form: str) -> str:
        figure = figures[f"{pair}: {name}"]
        runs = (
            [float(value) for value in figure["detail"].removeprefix("runs ").split(";")[0].split()]
            if "{low" in form
            else [0.0]
        )
        return form.format(value=figure["value"], low=min(runs), high=max(runs))

    rows = [(what, *(shown(pair, name, form) for pair in pairs)) for what, name, form in _COSTS]
    yield from table("what", *(_RECORDED[pair] for pair in pairs), rows=rows)
    yield (
        "Speed is tokens per second of processor time, on servers that took turns on two cores with a load of "
        f"{found['load']:.0f}. In brackets the least and the most of the runs: what is no more than two equal "
        "servers differ by is not to be told from nothing. `make bench-recorder` measures it on your machine."
    )


def _versions() -> Iterator[str]:
    from drafttrace.hooks.sglang_engine.versions import NEWEST, OLDEST

    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    yield f"SGLang {oldest} to {newest}, the releases with the plugin framework; `drafttrace doctor` checks yours."
