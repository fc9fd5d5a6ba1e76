"""Faults of the draft's config and checkpoint, and of the server's arguments: each needs a server of its own.

They run with ``make faults`` and not with ``make test``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fault_drafts as drafts
import pytest
from fault_rows import OR, Row
from fault_server import (
    NEW_TOKENS,
    STEPS,
    TRAINED,
    FaultServer,
    Found,
    check,
    diff,
    dump_of,
    note_row,
    record,
    replay,
    right_draft,
)
from sglang_cpu.arguments import cpu_args
from sglang_cpu.server import ServerDied

from drafttrace.tracer.errors import DrafttraceError

pytestmark = [pytest.mark.faults, pytest.mark.live, pytest.mark.faults_slow]

ROOT = Path(__file__).resolve().parents[2]
DIFF, ALONE, CHECK, REPLAY = "diff TRACE DUMP", "diff TRACE", "check", "replay TRACE"
KIMI, LLAMA = "tiny-kimi", "tiny-llama"


@dataclass(frozen=True)
class Case:
    """A draft, or arguments, with a fault. wanted: command -> the id that it must name first (None: no fault). notes:
    command -> the id that it must tell beside no fault.

    as_trained: the kimi draft with the ids that its trainer wrote, which SGLang reads otherwise. dies: the server may
    end when it drafts with it, and then nothing is left but the audit. tokens: how many are generated. told: the audit is
    told the wiring of training, which a draft of another width would contradict.
    """

    fault: str
    pair: str
    wanted: Mapping[str, str | None]
    config: Callable[[drafts.Config], None] | None = None
    weights: Callable[[drafts.Weights], None] | None = None
    as_trained: bool = False
    dies: bool = False
    tokens: int = NEW_TOKENS
    serve: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    told: bool = True


def window(size: int) -> dict[str, Any]:
    """The server's argument that gives the draft a window: the tokens before a row."""
    return {"extra": ["--speculative-draft-window-size", str(size)]}


def on_both(fault: str, wanted: Mapping[str, str | None], **more: Any) -> tuple[Case, Case]:
    return Case(fault, KIMI, wanted, **more), Case(fault, LLAMA, wanted, **more)


# The default wiring of tiny-llama is the one that it was trained with: without ids it is served right. SGLang emits
# slots in ascending order whatever the order of the ids: only ``serve --wiring`` permutes them.
CASES = (
    Case("layer ids missing", KIMI, {DIFF: "default-wiring", CHECK: "default-wiring"}, drafts.no_ids),
    Case("healthy: no layer ids, the default is right", LLAMA, {DIFF: None}, drafts.no_ids),
    Case(
        "layer ids at the top level", KIMI, {DIFF: "default-wiring", CHECK: "default-wiring"}, drafts.at_top_level
    ),
    Case("healthy: ids at the top level, the default is right", LLAMA, {DIFF: None}, drafts.at_top_level),
    Case("ids of the other convention", KIMI, {DIFF: "slot-shift"}, as_trained=True),
    Case("ids of the other convention", LLAMA, {DIFF: "boundary-offset"}, drafts.ids(2, 8, 13)),
    Case("one id off by one", KIMI, {DIFF: "boundary-offset"}, drafts.ids(0, 3, 32)),
    Case("one id off by one", LLAMA, {DIFF: "boundary-offset"}, drafts.ids(1, 8, 12)),
    Case("the embedding left out", KIMI, {DIFF: "slot-shift"}, drafts.ids(3, 31, 59)),
    Case("the embedding put in front", LLAMA, {DIFF: "slot-shift"}, drafts.ids(-1, 1, 7)),
    Case("healthy: ids in descending order", KIMI, {DIFF: None}, drafts.ids(31, 3, 0)),
    Case("healthy: ids in descending order", LLAMA, {DIFF: None}, drafts.ids(12, 7, 1)),
    Case("slots in another order", KIMI, {DIFF: "slot-permutation"}, serve=("--wiring", "B3,B0,B31")),
    Case("slots in another order", LLAMA, {DIFF: "slot-permutation"}, serve=("--wiring", "B8,B2,B13")),
    *on_both("EAGLE for EAGLE3", {DIFF: "fc-not-called"}, arguments={"algorithm": "EAGLE"}),
    *on_both(
        "lm_head not in the checkpoint",
        # What the head's memory held decides whether its logits are numbers.
        {CHECK: "weights-missing", DIFF: OR.join(("downstream", "nan-inf", "zero-rows"))},
        weights=drafts.without("lm_head.weight"),
    ),
    *on_both(
        "d2t not in the checkpoint",
        {ALONE: "vocab-map-missing", CHECK: "vocab-map-missing"},
        weights=drafts.without("d2t"),
    ),
    *on_both(
        "d2t holds absolute ids",
        {CHECK: "vocab-map-offset", ALONE: "vocab-map-offset"},
        weights=drafts.absolute_map,
        dies=True,
    ),
    *on_both(
        "d2t points beyond the vocabulary",
        {CHECK: "vocab-map-range", ALONE: "vocab-map-range"},
        weights=drafts.map_out_of_range,
        dies=True,
    ),
    # The audit has a note only: drafts may be trained with another base than their target. The replay of the trace tells.
    *on_both(
        "rope theta of the draft changed", {DIFF: "rope-mismatch"}, config=drafts.other_theta, tokens=4 * NEW_TOKENS
    ),
    *on_both(
        "a window that only the server has", {REPLAY: "window-mismatch"}, arguments=window(7), tokens=4 * NEW_TOKENS
    ),
    *on_both("healthy: a window longer than the text", {DIFF: None, REPLAY: None}, arguments=window(1000)),
    *on_both("a window that only the config has", {CHECK: "window-mismatch"}, config=drafts.windowed),
    *on_both(
        "a vocabulary that is too small",
        {},
        config=drafts.small_vocabulary,
        weights=drafts.few_words,
        tokens=4 * NEW_TOKENS,
        notes={DIFF: "vocab-coverage"},
    ),
    *on_both(
        "a stray tensor in the checkpoint",
        {},
        weights=drafts.with_a_stray,
        notes={CHECK: "weights-unused", DIFF: "none"},
    ),
    *on_both("fc for two slots of three", {CHECK: "slot-count"}, weights=drafts.narrow_fc, dies=True, told=False),
    *on_both("fc_norm asked for, not in the checkpoint", {CHECK: "weights-missing"}, config=drafts.fc_norm_asked),
    *on_both("fc_norm in the checkpoint, not asked for", {CHECK: "norm-missing"}, weights=drafts.with_fc_norm),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served-drafts")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.pair}-{case.fault}")
def test_a_faulty_draft_is_named(
    case: Case, start_server: Callable[..., Any], pairs: Any, home: Path, tmp_path: Path, fault_row: Any
) -> None:
    pair = pairs[case.pair]
    draft = pair.draft if case.as_trained else right_draft(pair, home)
    if case.config is not None or case.weights is not None:
        draft = drafts.copied(draft, tmp_path / "draft", case.config, case.weights)
    args = cpu_args(pair.target, draft, steps=STEPS, num_draft_tokens=STEPS + 1, **case.arguments)
    trace: Path | None = tmp_path / "t.h5"
    try:
        server = start_server(args, serve=case.serve, fresh=True)
        more = ("--max-new-tokens", str(case.tokens))
        record(server.url, tmp_path / "t.h5", *more, source=["--from-dump", dump_of(pair)])
    except (ServerDied, DrafttraceError):
        if not case.dies:
            raise
        trace = None
    rows = []
    for command in {**case.wanted, **case.notes}:
        if trace is None and command != CHECK:
            continue
        found = _found(case, command, trace, pair, draft, tmp_path)
        row = _row(case, command, found)
        fault_row(row)
        rows.append((row, found))
    for row, found in rows:
        assert row.reached, (row, found.explained)
        assert found.code == (1 if row.expected and not row.note else 0)


def _found(case: Case, command: str, trace: Path | None, pair: Any, draft: Path, folder: Path) -> Found:
    """What this command says of the served draft."""
    if command == CHECK:
        more = ("--trained", TRAINED[case.pair]) if case.told else ()
        return check(pair.target, draft, folder / "check.json", *more)
    assert trace is not None
    if command == REPLAY:
        return replay(trace)
    return diff(trace, dump_of(pair) if command == DIFF else None)


def _row(case: Case, command: str, found: Found) -> Row:
    """Its line of the table."""
    if command in case.notes:
        return note_row(case.fault, case.pair, case.notes[command], found, command)
    wanted = case.wanted[command]
    expected = () if wanted is None else (wanted,)
    return Row(case.fault, case.pair, expected, found.faults, found.seconds, "server", command)


@pytest.mark.parametrize("name", [KIMI, LLAMA])
def test_a_norm_before_fc_that_the_server_skips(
    name: str, start_server: Callable[..., Any], pairs: Any, home: Path, tmp_path: Path, fault_row: Any
) -> None:
    """The config asks for ``fc_norm`` and the checkpoint has it: healthy as served, and wrong once it is dropped."""
    pair = pairs[name]
    draft = drafts.copied(right_draft(pair, home), tmp_path / "draft", drafts.fc_norm_asked, drafts.with_fc_norm)
    server = FaultServer.start(start_server, pair, home, draft=draft)
    found = diff(server.record(tmp_path / "healthy.h5"), None)
    row = server.row("healthy: fc_norm", [], found, ALONE)
    fault_row(row)
    assert row.reached and found.code == 0, found.explained
    found = diff(server.record(tmp_path / "t.h5", "fc-norm-skipped"), None)
    row = server.row("fc_norm skipped by the server", ["norm-missing"], found, ALONE)
    fault_row(row)
    assert row.reached and found.code == 1, found.explained
