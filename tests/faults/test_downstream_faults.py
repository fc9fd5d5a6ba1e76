"""Faults behind fc: the target's states are right, and what the draft makes of them is not. And where the naming ends.

What the draft should reach on a text is not in a trace. Without it ``diff`` calls an accept length too low only where
hardly any draft has it; with it (``--expected``, here the replay of a healthy trace of the same prompt) it is judged
by what this draft reaches. The replay needs neither: it computes what the draft's own weights make of these states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Found, diff, dump_of, replay, replayed

pytestmark = [pytest.mark.faults, pytest.mark.live, pytest.mark.faults_slow]

NAMES = ("tiny-kimi", "tiny-llama")
TOKENS = ("--max-new-tokens", "96")
DIFF, EXPECTED, REPLAY = "diff TRACE DUMP", "diff TRACE DUMP --expected REPLAY", "replay TRACE"


@dataclass(frozen=True)
class Damage:
    """A fault of the draft behind fc. wanted: command -> the id that comes first, None for none: the accept length is
    one that a draft may have. place: the tensor and step (from 0) at which live and replay part. parts: what the replay
    blames for it. slight: pairs on whose text it costs so little (3.48 of 4.05) that no accept length proves it, with an
    expected one beside it or not; the replay does."""

    word: str
    wanted: dict[str, str | None]
    place: tuple[str, int]
    parts: tuple[str, ...]
    slight: tuple[str, ...] = ()


DOWNSTREAM = {DIFF: "downstream", EXPECTED: "downstream", REPLAY: "downstream"}
UNPROVEN = {DIFF: None, EXPECTED: "downstream", REPLAY: "downstream"}
HEAD_OR_NORM = ("the final norm", "lm_head")
DAMAGES = {
    "draft head permuted": Damage("head-permuted", DOWNSTREAM, ("proposal", 0), HEAD_OR_NORM),
    "half of the draft head permuted": Damage("head-partly-permuted", UNPROVEN, ("proposal", 0), HEAD_OR_NORM),
    "final norm of the draft at random": Damage(
        "final-norm-at-random", {REPLAY: "downstream"}, ("proposal", 0), ("the final norm",)
    ),
    "draft layer puts out nothing": Damage("layer-lost", UNPROVEN, ("hidden_out", 0), ("layers.0",)),
    "draft attention puts out nothing": Damage(
        "attention-lost", UNPROVEN, ("hidden_out", 0), ("layers.0.self_attn",)
    ),
    "rope base of the draft's layer changed": Damage(
        "draft-rope", UNPROVEN, ("hidden_out", 0), ("layers.0",), slight=("tiny-llama",)
    ),
    "a window in the draft's layer": Damage("draft-window", UNPROVEN, ("hidden_out", 0), ("layers.0",)),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downstream")


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, start_server: Callable[..., Any], pairs: Any, home: Path) -> FaultServer:
    """The server of each pair in turn, without faults."""
    return FaultServer.start(start_server, pairs[request.param], home)


def healthy(server: FaultServer) -> Path:
    """A trace of the same prompt without a fault, and its replay beside it; made once for each server."""
    trace = server.home / f"{server.pair.name}-healthy.h5"
    if not replayed(trace).exists():
        server.record(trace, more=TOKENS)
        replay(trace)
    return trace


def judged(server: FaultServer, trace: Path, command: str) -> Found:
    if command == REPLAY:
        return replay(trace)
    more = ("--expected", replayed(healthy(server))) if command == EXPECTED else ()
    return diff(trace, dump_of(server.pair), *more)


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_fault_behind_fc(server: FaultServer, fault: str, tmp_path: Path, fault_row: Any) -> None:
    damage = DAMAGES[fault]
    trace = server.record(tmp_path / "t.h5", damage.word, more=TOKENS)
    rows = []
    for command, named in damage.wanted.items():
        wanted = None if command == EXPECTED and server.pair.name in damage.slight else named
        found = judged(server, trace, command)
        # None: no fault is named, and the observed length is told beside what nobody knows.
        row = server.row(fault, [wanted], found, command) if wanted else server.note(fault, "none", found, command)
        fault_row(row)
        rows.append((row, found))
    for row, found in rows:
        assert row.reached, (row, found.explained)
        assert found.code == (1 if not row.note else 0)
    first = rows[-1][1].result["findings"][0]["evidence"]
    assert (first["tensor"], first["step"]) == damage.place
    assert tuple(first["parts"]) == damage.parts, first


@pytest.mark.parametrize("command", [DIFF, EXPECTED, REPLAY])
def test_the_same_prompt_without_a_fault(server: FaultServer, command: str, fault_row: Any) -> None:
    """The other side of every limit: the draft as it is, on the same text."""
    found = judged(server, healthy(server), command)
    row = server.note("healthy: the same long answer", "none", found, command)
    fault_row(row)
    assert row.reached and found.code == 0, found.explained
    if command == EXPECTED:
        told = found.result["findings"][0]
        assert told["id"] == "none" and "expected" in told["summary"] and told["evidence"]["expected"] > 2
