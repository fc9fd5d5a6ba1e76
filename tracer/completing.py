"""What a shell is offered as the value of an option: formats, releases, thresholds, and what the files that the line names
already say of themselves. An option that is not here takes a file, which the shell completes by itself."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Commands, options and contexts are typer's own or, in its older versions, click's: neither has types that fit both.
Command = Any
Option = Any
Context = Any

Offered = Iterator[tuple[str, str]]
"""Values, each with a word on it (empty: none is needed)."""


@dataclass(frozen=True)
class Item:
    """One completion, as typer and click print it."""

    value: str
    help: str | None
    type: str = "plain"


def complete_values(command: Command) -> Command:
    """Make the options of a command line offer their values."""
    for one in (command, *getattr(command, "commands", {}).values()):
        for option in one.params:
            offer = next((_OFFERS[name] for name in option.opts if name in _OFFERS), None)
            if offer is not None:
                option.shell_complete = _Offer(offer)
    return command


def options() -> frozenset[str]:
    """The options whose values are offered."""
    return frozenset(_OFFERS)


class _Offer:
    """Stands for an option's completion."""

    def __init__(self, offer: Callable[[Context], Offered]) -> None:
        self._offer = offer

    def __call__(self, ctx: Context, incomplete: str) -> list[Item]:
        done, comma, begun = incomplete.rpartition(",")
        found: dict[str, str] = {}
        try:
            for value, word in self._offer(ctx):
                found.setdefault(value, word)
        except (
            Exception
        ):  # a damaged file, a package that is missing: a shell must not be answered with a traceback
            pass
        whole = [Item(value, word or None) for value, word in found.items() if value.startswith(incomplete)]
        if whole or not comma:
            return whole
        # The next of several names: those that stand there already stay.
        return [
            Item(f"{done},{value}", word or None)
            for value, word in found.items()
            if value.startswith(begun) and value not in done.split(",")
        ]


def _formats(ctx: Context) -> Offered:
    from drafttrace.tracer.dumps.registry import folder_layouts, layouts

    titles = {name: layout.title for known in (layouts(), folder_layouts()) for name, layout in known.items()}
    yield from sorted(titles.items())


def _releases(ctx: Context) -> Offered:
    from drafttrace.hooks.doctor import releases

    yield from ((release, "") for release in releases())


def _algorithms(ctx: Context) -> Offered:
    from drafttrace.compare.audit.sglang_rules import ALGORITHMS

    yield from ((name, "") for name in ALGORITHMS)


def _thresholds(ctx: Context) -> Offered:
    from drafttrace.compare.thresholds import DEFAULT

    for field in dataclasses.fields(DEFAULT):
        yield f"{field.name}={getattr(DEFAULT, field.name):g}", "the default"


def _wirings(ctx: Context) -> Offered:
    """The wirings that the files of the line declare, and the ones of no file: the canonical, with and without B0."""
    from drafttrace.tracer.boundary import boundary_name, canonical_wiring
    from drafttrace.tracer.open import open_capture

    def text(wiring: Sequence[int]) -> str:
        return ",".join(boundary_name(k) for k in wiring)

    depths = []
    for path in _files(ctx):
        try:
            capture = open_capture(path)
        except Exception:  # no trace and no dump, or one of many samples
            continue
        known = [k for k in capture.wiring if k is not None]
        if known and len(known) == len(capture.wiring):
            yield text(known), f"what {Path(path).name} declares"
        declared = capture.about.get("wiring")
        depths.append(declared.get("n") if isinstance(declared, dict) else None)
    for n in depths:
        if isinstance(n, int) and n > 5:
            usual = canonical_wiring(n)
            yield text(usual), f"the canonical wiring of {n} layers"
            yield text((0, *usual[:-1])), "the embedding in front of it"
            yield text([k + 1 for k in usual]), "the outputs of these layers"


def _boundaries(ctx: Context) -> Offered:
    words = {
        "record": (
            ("auto", "all boundaries, on the first rows"),
            ("all", "on every row"),
            ("none", "the slots alone"),
        ),
        "reference": (("all", "every boundary"), ("canonical", "the slots alone")),
    }
    yield from words.get(str(ctx.info_name), ())
    yield from _wirings(ctx)


def _fields(ctx: Context) -> Offered:
    """The names on the top level of the files of the line."""
    from drafttrace.tracer.dumps.document import open_document

    for path in _files(ctx):
        if Path(path).is_file():
            yield from ((name, "") for name in sorted(open_document(Path(path)).keys))


def _files(ctx: Context) -> Iterator[str]:
    """The files and folders that the line names so far, the dumps among them first: they say what was trained."""
    values = [ctx.params.get(name) for name in ("dump", "from_dump", "sources", "reference", "trace")]
    # An option that still waits for its value keeps the parser from giving the arguments their names.
    for value in (*values, ctx.args, *ctx.params.values()):
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, (str, Path)) and os.path.exists(str(one).partition("#")[0]):
                yield str(one)


def _words(*words: str) -> Callable[[Context], Offered]:
    def offer(ctx: Context) -> Offered:
        yield from ((word, "") for word in words)

    return offer


_OFFERS: dict[str, Callable[[Context], Offered]] = {
    "--format": _formats,
    "--left-format": _formats,
    "--sglang-version": _releases,
    "--algorithm": _algorithms,
    "--threshold": _thresholds,
    "--layer-ids": _wirings,
    "--wiring": _wirings,
    "--trained": _wirings,
    "--slots-are": _wirings,
    "--boundaries": _boundaries,
    "--slots": _fields,
    "--tokens": _fields,
    "--last": _fields,
    "--mask": _fields,
    "--last-norm": _words("pre", "post", "unknown"),
    "--device-map": _words("auto", "cuda", "cpu"),
    "--every": _words("30s", "10m", "1h"),
    "--ray": _words("auto", "local"),
}
