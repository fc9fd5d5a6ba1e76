"""Healthy servers under other arguments, and faults of several ranks. Each needs servers of its own: ``make faults``."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import recording
from fault_server import FaultServer, diff, drafttrace, dump_of

from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import tokens_of

pytestmark = [pytest.mark.faults, pytest.mark.live, pytest.mark.faults_slow]

NAMES = ("tiny-kimi", "tiny-llama")

# what is different: arguments of cpu_args
TWINS: dict[str, dict[str, Any]] = {
    "float32 against bf16": {"dtype": "float32"},
    "chunked against whole": {"chunked_prefill_size": 16},
    "a tree against a chain": {"topk": 2},
    "no prefix cache": {"extra": ["--disable-radix-cache"]},
    # A CPU has no graphs to replay: what can be had here is that the arguments alone accuse nothing.
    "graphs switched off": {"extra": ["--cuda-graph-backend-decode", "disabled"]},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("twins")


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_twin_raises_no_alarm(
    name: str, twin: str, start_server: Callable[..., Any], pairs: Any, home: Path, tmp_path: Path, fault_row: Any
) -> None:
    steady = FaultServer.start(start_server, pairs[name], home)
    plain, again = (steady.record(tmp_path / f"{word}.h5", index=1) for word in ("plain", "again"))
    server = FaultServer.start(start_server, pairs[name], home, **TWINS[twin])
    other = server.record(tmp_path / "twin.h5", index=1)
    dump = dump_of(pairs[name], 1)
    for command, left, right, options in (
        ("diff TWIN PLAIN", other, plain, ()),
        ("diff TRACE DUMP", other, dump, ()),
        ("diff TRACE DUMP --noise", other, dump, ("--noise", plain, again)),
        ("diff TRACE", other, None, ()),
    ):
        found = diff(left, right, *options)
        row = server.row(f"healthy: {twin}", [], found, command)
        fault_row(row)
        assert row.reached and found.code == 0, (command, found.explained)


# Two ranks

RANKS = {
    "captured before the ranks' sum": ("partial-sum", "partial-sum"),
    "one rank computes something else": ("one-rank-differs", "rank-divergence"),
    "one rank's blocks in another order": ("blocks-on-one-rank", "rows-by-rank"),
    "the ranks' blocks in another order": ("blocks-by-rank", "rows-by-rank"),
}


def recorded_by_all(server: FaultServer, out: Path, *faults: str) -> tuple[Path, list[Path]]:
    """A trace, and what the other ranks recorded of the same request (``serve --all-ranks``)."""
    said = out.with_suffix(".record.json")
    server.put_in(*faults)
    code = drafttrace(
        "record", "--url", server.traced.url, "--from-dump", dump_of(server.pair), "-o", out, "--keep", "--quiet",
        "--json", said, "--max-new-tokens", "16",
    )  # fmt: skip
    server.put_in()
    assert code in (0, 1)
    trace_id = json.loads(said.read_text())["id"]
    others = sorted(server.traced.trace_dir.glob(f"{trace_id}_rank*.h5"))
    assert len(others) == 1
    return out, others


@pytest.fixture(params=NAMES)
def ranked(request: pytest.FixtureRequest, start_server: Callable[..., Any], pairs: Any, home: Path) -> FaultServer:
    """A server of two ranks, both of which record."""
    return FaultServer.start(start_server, pairs[request.param], home, tp=2, serve=("--all-ranks",))


@pytest.mark.parametrize("fault", RANKS)
def test_a_fault_between_ranks_is_named_first(
    ranked: FaultServer, fault: str, tmp_path: Path, fault_row: Any
) -> None:
    word, wanted = RANKS[fault]
    trace, others = recorded_by_all(ranked, tmp_path / "t.h5", word)
    options = [option for other in others for option in ("--rank-trace", other)]
    found = diff(trace, dump_of(ranked.pair), *options)
    row = ranked.row(fault, [wanted], found, "diff TRACE DUMP --rank-trace")
    fault_row(row)
    assert row.reached and found.code == 1, found.explained


# Attention data parallelism, where ranks with fewer rows pad their batches: the one padding that a CPU server has


@pytest.fixture
def padded(start_server: Callable[..., Any], pairs: Any, home: Path) -> FaultServer:
    """Two attention ranks of the DeepSeek-like pair; SGLang's Llama takes no attention data parallelism."""
    extra = ["--dp-size", "2", "--enable-dp-attention"]
    return FaultServer.start(start_server, pairs["tiny-kimi"], home, tp=2, extra=extra)


def beside_a_crowd(server: FaultServer, out: Path, *faults: str) -> Path:
    """A recording on the first attention rank while the second has two requests, so that the first pads its batch."""
    ids = [int(token) for token in tokens_of(open_capture(str(dump_of(server.pair))))[:30]]
    running = True

    def busy(seed: int) -> None:
        while running:
            server.traced.server.generate(
                input_ids=ids[seed:],
                max_new_tokens=40,
                ignore_eos=True,
                routed_dp_rank=1,
                extra_key=f"crowd-{seed}",
            )

    server.put_in(*faults)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(busy, seed) for seed in range(2)]
        try:
            made = recording.record(server.traced, ids, max_new_tokens=60, ignore_eos=True, routed_dp_rank=0)
        finally:
            running = False
            for job in jobs:
                job.result()
            server.put_in()
    assert made.trace.padding, "the other rank was never the larger one: no batch was padded"
    out.write_bytes(made.path.read_bytes())
    return out


def test_a_padding_row_in_a_live_rows_place(padded: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    found = diff(beside_a_crowd(padded, tmp_path / "healthy.h5"), None)
    row = padded.row("healthy: attention DP 2, padded batches", [], found, "diff TRACE")
    fault_row(row)
    assert row.reached and found.code == 0, found.explained
    found = diff(beside_a_crowd(padded, tmp_path / "t.h5", "padding-row"), None)
    row = padded.row("a padding row is read for a live one", ["padding-leak"], found, "diff TRACE")
    fault_row(row)
    assert row.reached and found.code == 1, found.explained
    assert found.result["findings"][0]["confidence"] == 0.99  # bit for bit, not inferred


def test_two_healthy_ranks_raise_no_alarm(
    ranked: FaultServer, start_server: Callable[..., Any], home: Path, tmp_path: Path, fault_row: Any
) -> None:
    trace, others = recorded_by_all(ranked, tmp_path / "t.h5")
    single = FaultServer.start(start_server, ranked.pair, home).record(tmp_path / "single.h5")
    for command, reference, more in (
        ("diff TRACE DUMP --rank-trace", dump_of(ranked.pair), ["--rank-trace", others[0]]),
        ("diff TP2 TP1", single, []),
        ("diff TRACE", None, []),
    ):
        found = diff(trace, reference, *more)
        row = ranked.row("healthy: TP 2", [], found, command)
        fault_row(row)
        assert row.reached and found.code == 0, (command, found.explained)
