"""Faults put into a running SGLang server of both tiny pairs, alone and two at a time, and healthy servers.

One server start per pair: the faults are switched while it runs (``served_site``). Every trace is recorded and compared
with the commands that a user types. Faults of configs and checkpoints, which need a start each, are in
``test_served_drafts.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recording
from fault_server import NEW_TOKENS, PLACEHOLDER, TRAINED, FaultServer, diff, drafttrace, dump_of, record, replay

from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import tokens_of

pytestmark = [pytest.mark.faults, pytest.mark.live]

NAMES = ("tiny-kimi", "tiny-llama")
AGAINST_DUMP, ALONE, REPLAY = "diff TRACE DUMP", "diff TRACE", "replay TRACE"

# fault: (word of the switch, the id that must come first, the command that a user runs)
SINGLE: dict[str, tuple[str, str, str]] = {
    "one slot one boundary late": ("one-slot-late", "boundary-offset", AGAINST_DUMP),
    "all slots one boundary late": ("all-slots-late", "boundary-offset", AGAINST_DUMP),
    "one slot four boundaries late": ("far-slot", "wrong-boundary", AGAINST_DUMP),
    "first slot left out": ("first-left-out", "slot-shift", AGAINST_DUMP),
    "two slots swapped": ("swapped", "slot-permutation", AGAINST_DUMP),
    "slot 0 all zero": ("zero-slot", "zero-rows", AGAINST_DUMP),
    "two rows zero": ("zero-rows", "zero-rows", AGAINST_DUMP),
    "one NaN": ("one-nan", "nan-inf", AGAINST_DUMP),
    "one row for every token": ("constant-rows", "constant-rows", AGAINST_DUMP),
    "each verify hands over the pass before": ("stale-rounds", "stale-rows", AGAINST_DUMP),
    "one stale row": ("stale-row", "stale-rows", AGAINST_DUMP),
    "bf16 bytes read as fp16": ("as-fp16", "dtype-reinterpretation", AGAINST_DUMP),
    "rotation": ("rotation", "rotation", AGAINST_DUMP),
    "scale 1.04": ("scaled", "scale", AGAINST_DUMP),
    "sqrt(H) on slot 0": ("sqrt-h", "scale", AGAINST_DUMP),
    "gain w - 1 on a slot": ("gain", "norm-gain", AGAINST_DUMP),
    "captured behind the input norm": ("normed", "norm-extra", AGAINST_DUMP),
    "residual missing": ("residual-missing", "residual-missing", AGAINST_DUMP),
    "slot 1 with noise of its own": ("wrong-later", "unexplained", AGAINST_DUMP),
    "a window in the target's layers": ("target-window", "window-mismatch", AGAINST_DUMP),
    "rope base of the target's layers changed": ("target-rope", "rope-mismatch", AGAINST_DUMP),
    "rows one token late": ("rows-shifted", "token-shift", AGAINST_DUMP),
    "hand-over: two slots swapped": ("handover-swapped", "slot-permutation", ALONE),
    "hand-over: rows of the pass before": ("handover-stale", "stale-rows", ALONE),
    "hand-over: rows one token late": ("handover-shifted", "token-shift", ALONE),
    "hand-over: a norm too many": ("handover-normed", "norm-extra", ALONE),
    "hand-over: slot 0 times 1.5": ("handover-scaled", "scale", ALONE),
    "draft positions off by one": ("positions-off", "position-seam", ALONE),
    "recycled state normed once more": ("recycled-normed", "norm-extra", ALONE),
    "recycled state of the round before": ("recycled-stale", "stale-rows", ALONE),
    "d2t missing": ("map-missing", "vocab-map-missing", ALONE),
    "draft head never filled": ("head-at-random", "downstream", AGAINST_DUMP),
    "draft head is the target's": ("head-of-target", "weights-replaced", REPLAY),
}

PAIRS = [
    ("two slots swapped", "draft positions off by one"),
    ("all slots one boundary late", "d2t missing"),
    ("one slot one boundary late", "slot 0 all zero"),
    ("scale 1.04", "draft positions off by one"),
    ("all slots one boundary late", "scale 1.04"),
    ("rotation", "recycled state normed once more"),
    ("residual missing", "draft positions off by one"),
    ("first slot left out", "hand-over: rows of the pass before"),
    ("captured behind the input norm", "d2t missing"),
    ("one slot one boundary late", "one NaN"),
    ("two slots swapped", "one stale row"),
    ("bf16 bytes read as fp16", "draft positions off by one"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fault-lab")


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, start_server: Callable[..., Any], pairs: Any, home: Path) -> FaultServer:
    """The server of each pair in turn, without faults."""
    return FaultServer.start(start_server, pairs[request.param], home)


def compare(server: FaultServer, trace: Path, command: str) -> Any:
    if command == REPLAY:
        return replay(trace)
    return diff(trace, dump_of(server.pair) if command == AGAINST_DUMP else None)


@pytest.mark.parametrize("fault", SINGLE)
def test_a_fault_of_the_server_is_named_first(
    server: FaultServer, fault: str, tmp_path: Path, fault_row: Any
) -> None:
    word, wanted, command = SINGLE[fault]
    found = compare(server, server.record(tmp_path / "t.h5", word), command)
    row = server.row(fault, [wanted], found, command)
    fault_row(row)
    assert row.reached, found.explained
    assert found.code == 1
    if word == "gain":
        # Of all norm weights of target and draft, the one that the fault took, and the mistake with it.
        weight = found.result["findings"][0]["evidence"]["fits"]["1"]["weight"]
        layer = {"tiny-kimi": 3, "tiny-llama": 8}[server.pair.name]
        assert weight["in_place_of_w"] == "w-1" and weight["w"].endswith(f"layers.{layer}.input_layernorm.weight")


@pytest.mark.faults_slow
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_faults_of_the_server_are_both_named(
    server: FaultServer, first: str, second: str, tmp_path: Path, fault_row: Any
) -> None:
    trace = server.record(tmp_path / "t.h5", SINGLE[first][0], SINGLE[second][0])
    found = diff(trace, dump_of(server.pair))
    row = server.row(f"{first} + {second}", [SINGLE[first][1], SINGLE[second][1]], found, AGAINST_DUMP)
    fault_row(row)
    assert row.reached, found.explained
    assert found.code == 1


# Faults that need other requests


@contextmanager
def crowd(server: FaultServer) -> Iterator[None]:
    """Three more requests in the server's batch for as long as this lasts."""
    running = True

    def busy(seed: int) -> None:
        while running:
            ids = [5 + (seed * 37 + i * 11) % 240 for i in range(40)]
            server.traced.server.generate(
                input_ids=ids, max_new_tokens=40, ignore_eos=True, extra_key=f"crowd-{seed}"
            )

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(busy, seed) for seed in range(3)]
        try:
            yield
        finally:
            running = False
            for job in jobs:
                job.result()


@pytest.mark.faults_slow
def test_rows_of_another_request(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    """Two traced requests in one batch, of which the second is given the first one's rows."""
    running = server.traced.server
    asked = recording.start(running)
    ids = [int(token) for token in tokens_of(open_capture(str(dump_of(server.pair, 1))))[:30]]
    options: dict[str, Any] = {"max_new_tokens": 160, "ignore_eos": True, "rid": asked["rid"]}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: running.generate(input_ids=ids, extra_key=asked["id"], **options))
        while not first.done() and running.get(f"/drafttrace/traces/{asked['id']}")["rows"] < 40:
            time.sleep(0.05)
        trace = server.record(tmp_path / "t.h5", "another-request")
        first.result()
    other = recording.collect(server.traced, asked["id"]).path
    found = diff(trace, dump_of(server.pair), "--others", other)
    row = server.row("another request's rows", ["cross-request"], found, "diff TRACE DUMP --others OTHER")
    fault_row(row)
    assert row.reached and found.code == 1, found.explained


def shared_key(server: FaultServer, key: str, out: Path) -> Path:
    """A recording whose prefix the cache may hold: as a client that sends no extra_key of its own gets it."""
    sample = open_capture(str(dump_of(server.pair)))
    assert sample.mask is not None
    ids = [int(token) for token in tokens_of(sample)[: int(np.argmax(sample.mask > 0))]]  # the whole prompt
    made = recording.record(server.traced, ids, extra_key=key, max_new_tokens=NEW_TOKENS)
    out.write_bytes(made.path.read_bytes())
    return out


def test_a_cached_prefix_is_said_and_is_no_fault(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    cold = shared_key(server, "gap", tmp_path / "cold.h5")
    warm = shared_key(server, "gap", tmp_path / "warm.h5")
    found = diff(warm, dump_of(server.pair))
    row = server.note("prefix from the cache", "prefix-gap", found, AGAINST_DUMP)
    fault_row(row)
    assert row.reached and found.code == 0, found.explained
    found = diff(warm, cold)
    fault_row(server.row("healthy: cold against warm", [], found))
    assert found.code == 0, found.explained


@pytest.mark.faults_slow
def test_what_is_wrong_behind_a_cached_prefix_only(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    server.put_in("wrong-when-warm")
    cold = shared_key(server, "warm", tmp_path / "cold.h5")
    warm = shared_key(server, "warm", tmp_path / "warm.h5")
    server.put_in()
    found = diff(warm, cold)
    row = server.row("wrong behind a cached prefix", ["cold-warm"], found, "diff WARM COLD")
    fault_row(row)
    assert row.reached and found.code == 1, found.explained


@pytest.mark.faults_slow
def test_a_server_that_has_gone_bad(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    early = server.record(tmp_path / "early.h5")
    late = server.record(tmp_path / "late.h5", "wrong-later")
    found = diff(late, early)
    row = server.row("the same prompt, later", ["decay"], found, "diff LATE EARLY")
    fault_row(row)
    assert row.reached and found.code == 1, found.explained


def watched(server: FaultServer, first: Path, out: Path, *faults: str) -> tuple[int, dict[str, list[str]]]:
    """One run of ``drafttrace watch`` while these faults are in force: its exit code, and what drifted by kind."""
    server.put_in(*faults)
    try:
        code = drafttrace(
            "watch",
            first,
            "--url",
            server.traced.url,
            "--count",
            "1",
            "--json",
            out,
            "--quiet",
            "--dir",
            out.parent / "kept",
        )
    finally:
        server.put_in()
    runs = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(run["problem"] is None for run in runs), runs
    return code, {run["kind"]: run["drift"] for run in runs}


def test_the_canary_names_what_the_server_has_come_to(server: FaultServer, tmp_path: Path) -> None:
    """`watch` on one server that is healthy, then wrong behind a cached prefix, then wrong altogether, then healthy."""
    first = server.record(tmp_path / "first.h5")
    assert watched(server, first, tmp_path / "1.jsonl") == (0, {"cold": [], "warm": []})
    assert watched(server, first, tmp_path / "2.jsonl", "wrong-when-warm") == (
        1,
        {"cold": [], "warm": ["cold-warm"]},
    )
    assert watched(server, first, tmp_path / "3.jsonl", "wrong-later") == (
        1,
        {"cold": ["decay"], "warm": ["decay"]},
    )
    assert watched(server, first, tmp_path / "4.jsonl") == (0, {"cold": [], "warm": []})
    kept = sorted(path.name.rsplit("-", 1)[1] for path in (tmp_path / "kept").iterdir())
    assert kept == ["cold.h5", "warm.h5", "warm.h5"]


@pytest.mark.faults_slow
def test_another_prompt_than_the_dumps(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    """Another chat template in front, and a prompt that was cut: the ids differ before any state does."""
    dump = open_capture(str(dump_of(server.pair)))
    ids = [int(token) for token in tokens_of(dump)]
    start = int(dump.mask.argmax()) if dump.mask is not None else len(ids)
    for fault, prompt in (
        ("other chat template", [*ids[:10], 401, 402, 403, *ids[10:start]]),
        ("truncated prompt", ids[: start // 2]),
    ):
        file = tmp_path / "ids.json"
        file.write_text(json.dumps(prompt))
        trace = record(server.traced.url, tmp_path / "t.h5", source=["--input-ids", file])
        found = diff(trace, dump_of(server.pair))
        row = server.row(fault, ["template-divergence"], found, AGAINST_DUMP)
        fault_row(row)
        assert row.reached and found.code == 1, (fault, found.explained)


@pytest.mark.faults_slow
def test_a_picture_that_only_one_side_saw(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    """Embeddings merged in the place of eight equal tokens, against the target without them: a text-only dump."""
    ids = [int(token) for token in tokens_of(open_capture(str(dump_of(server.pair))))[:48]]
    ids[16:24] = [PLACEHOLDER] * 8
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(ids))
    found = {}
    for word in ("", "picture"):
        server.put_in(word)
        trace = record(server.traced.url, tmp_path / f"t{word}.h5", source=["--input-ids", file])
        server.put_in()
        made = tmp_path / f"r{word}.safetensors"
        options = ["--wiring", TRAINED[server.pair.name], "-o", made, "--quiet"]
        assert drafttrace("reference", "--target", server.pair.target, "--from", trace, *options) == 0
        found[word] = diff(trace, made)
    row = server.row("healthy: the same eight tokens without a picture", [], found[""], "diff TRACE REFERENCE")
    fault_row(row)
    assert row.reached and found[""].code == 0, found[""].explained
    row = server.row(
        "a picture that only the server saw", ["modality-span"], found["picture"], "diff TRACE REFERENCE"
    )
    fault_row(row)
    assert row.reached and found["picture"].code == 1, found["picture"].explained


# Healthy servers


@pytest.mark.parametrize("index", range(4))
def test_a_healthy_server_raises_no_alarm(server: FaultServer, index: int, tmp_path: Path, fault_row: Any) -> None:
    trace = server.record(tmp_path / "t.h5", index=index)
    for command, reference in ((AGAINST_DUMP, dump_of(server.pair, index)), (ALONE, None)):
        found = diff(trace, reference)
        row = server.row(f"healthy: sample {index}", [], found, command)
        fault_row(row)
        assert row.reached and found.code == 0, found.explained
        assert "none" in dict(found.notes), found.explained


@pytest.mark.faults_slow
def test_a_healthy_server_against_transformers(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    """Held-out prompts, for which no dump exists: ``drafttrace reference`` computes what training would have stored."""
    from pairs.corpus import held_out_prompts

    for i, prompt in enumerate(held_out_prompts(2)):
        trace = record(server.traced.url, tmp_path / f"{i}.h5", source=["--prompt", prompt])
        made = tmp_path / f"{i}.safetensors"
        # Without a wiring the reference has the canonical one, which the kimi pair was not trained with.
        code = drafttrace(
            "reference", "--target", server.pair.target, "--from", trace, "--wiring", TRAINED[server.pair.name],
            "-o", made, "--quiet",
        )  # fmt: skip
        assert code == 0
        found = diff(trace, made)
        row = server.row(f"healthy: prompt {i} against transformers", [], found)
        fault_row(row)
        assert row.reached and found.code == 0, found.explained


@pytest.mark.faults_slow
def test_a_healthy_server_against_itself(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    """The same prompt twice, and once more in a crowd: other batch shapes round differently."""
    one, two = (server.record(tmp_path / f"{i}.h5") for i in range(2))
    with crowd(server):
        busy = server.record(tmp_path / "busy.h5")
    for name, left, right in (
        ("twice", one, two),
        ("alone against in a crowd", busy, one),
        ("in a crowd", busy, dump_of(server.pair)),
    ):
        found = diff(left, right)
        row = server.row(f"healthy: {name}", [], found)
        fault_row(row)
        assert row.reached and found.code == 0, (name, found.explained)
