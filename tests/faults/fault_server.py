"""A real server with faults that can be switched, and the commands that a user runs against it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_rows import Row
from sglang_cpu.arguments import cpu_args
from site_folder import python_path_with

from pairs.accept_length import rewired

SITE = Path(__file__).parent / "served_site"
PLACEHOLDER = 900  # the token in whose place served_site puts a picture
STEPS = 5
NEW_TOKENS = 24
# What training fed fc with.
TRAINED = {"tiny-kimi": "B0,B3,B31", "tiny-llama": "B2,B8,B13"}
# The ids that give the wiring of training in the SGLang of the tests; None: the draft's config is right as it is.
RIGHT_IDS = {"tiny-kimi": (0, 3, 31), "tiny-llama": None}


def drafttrace(*arguments: str | Path) -> int:
    """One command in this process, as `drafttrace ARGUMENTS` runs it; its exit code."""
    from drafttrace.tracer.cli import app

    return int(app([str(argument) for argument in arguments], standalone_mode=False) or 0)


@dataclass(frozen=True)
class Found:
    """What a command said: exit code, faults and notes with confidences, seconds, and the whole JSON."""

    code: int
    faults: tuple[tuple[str, float], ...]
    notes: tuple[tuple[str, float], ...]
    seconds: float
    result: Any

    @property
    def explained(self) -> list[str]:
        """The findings as text, for a failing test."""
        return [f"{f['id']}: {f['summary']}" for f in self.result["findings"]]


def _found(out: Path, *arguments: str | Path) -> Found:
    begin = time.perf_counter()
    code = drafttrace(*arguments, "--json", out, "--quiet")
    result = json.loads(out.read_text())
    listed = [(f["severity"], (f["id"], f["confidence"])) for f in result["findings"]]
    faults = tuple(one for severity, one in listed if severity == "fault")
    notes = tuple(one for severity, one in listed if severity != "fault")
    return Found(code, faults, notes, time.perf_counter() - begin, result)


def diff(left: Path, reference: Path | str | None, *more: str | Path) -> Found:
    """``drafttrace diff``; without a reference the trace is checked against itself."""
    sides: list[str | Path] = [left] if reference is None else [left, reference]
    return _found(left.with_suffix(".diff.json"), "diff", *sides, *more)


def check(target: Path, draft: Path, out: Path, *more: str | Path) -> Found:
    """``drafttrace check``."""
    return _found(out, "check", "--target", target, "--draft", draft, *more)


def replay(trace: Path, *more: str | Path) -> Found:
    """``drafttrace replay``, with the folders that the trace names."""
    return _found(replayed(trace), "replay", trace, *more)


def replayed(trace: Path) -> Path:
    """The file that :func:`replay` writes."""
    return trace.with_suffix(".replay.json")


def record(url: str, out: Path, *more: str | Path, source: Sequence[str | Path]) -> Path:
    """``drafttrace record``; ``source`` are the options that name the prompt."""
    arguments = ["--url", url, *source, "-o", out, "--force", "--quiet", *more]
    if "--max-new-tokens" not in more:
        arguments += ["--max-new-tokens", str(NEW_TOKENS)]
    code = drafttrace("record", *arguments)
    assert code in (0, 1), code  # 1: an incomplete trace, which the comparison then tells
    return out


def note_row(what: str, pair: str, expected: str, found: Found, command: str) -> Row:
    """The line for a note: faults come first, so that any of them keeps it from being reached."""
    told = (*found.faults, *(one for one in found.notes if one[0] == expected))
    return Row(what, pair, (expected,), told, found.seconds, "server", command, note=True)


def dump_of(pair: Any, index: int = 0) -> Path:
    """One sample of the pair's training dump."""
    return Path(pair.dump.parent / pair.dump.name.replace("0", str(index)))


def right_draft(pair: Any, home: Path) -> Path:
    """The draft of a pair with the ids that serve it as it was trained."""
    ids = RIGHT_IDS[pair.name]
    if ids is None:
        return Path(pair.draft)
    copy = home / f"{pair.name}-draft"
    return copy if copy.exists() else rewired(pair.draft, ids, copy)


@dataclass(frozen=True)
class FaultServer:
    """A server of one pair, wired as it was trained, whose faults are the words in the file ``switch``."""

    pair: Any
    traced: Any
    switch: Path
    home: Path

    @staticmethod
    def start(
        start_server: Callable[..., Any],
        pair: Any,
        home: Path,
        *,
        draft: Path | None = None,
        serve: Sequence[str] = (),
        **arguments: Any,
    ) -> FaultServer:
        """Start it, or take the one that is running with the same arguments; no fault is in force."""
        switch = home / f"{pair.name}-faults"
        switch.write_text("")
        path = python_path_with(SITE)
        args = cpu_args(
            pair.target, draft or right_draft(pair, home), steps=STEPS, num_draft_tokens=STEPS + 1, **arguments
        )
        env = {"PYTHONPATH": path, "DRAFTTRACE_SERVED_FAULTS": str(switch)}
        return FaultServer(pair, start_server(args, env=env, serve=serve), switch, home)

    def put_in(self, *faults: str) -> None:
        """Put these faults in force, and no others."""
        self.switch.write_text(" ".join(faults))

    def record(self, out: Path, *faults: str, index: int = 0, more: Sequence[str | Path] = ()) -> Path:
        """Record a training sample's prompt while these faults are in force."""
        self.put_in(*faults)
        try:
            return record(self.traced.url, out, *more, source=["--from-dump", dump_of(self.pair, index)])
        finally:
            self.put_in()

    def row(self, fault: str, expected: Sequence[str], found: Found, command: str = "diff") -> Row:
        """The line of the table."""
        return Row(fault, self.pair.name, tuple(expected), found.faults, found.seconds, "server", command)

    def note(self, what: str, expected: str, found: Found, command: str = "diff") -> Row:
        """The line for something that has to be said and is no fault."""
        return note_row(what, self.pair.name, expected, found, command)
