"""What is wrong with the trace, and what is no fault of the server: it must be said, and must not be blamed on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest
from fault_server import FaultServer, diff, dump_of, record

from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import tokens_of
from drafttrace.tracer.trace.texts import get_text, replace_block

pytestmark = [pytest.mark.faults, pytest.mark.live]

NAMES = ("tiny-kimi", "tiny-llama")
AGAINST_DUMP = "diff TRACE DUMP"
WORDS = {"tap-silent": "a tap that never fires", "writer-fails": "the recorder's disk fails"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracer-faults")


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, start_server: Callable[..., Any], pairs: Any, home: Path) -> FaultServer:
    """The server of each pair in turn, without faults."""
    return FaultServer.start(start_server, pairs[request.param], home)


def test_a_tap_that_never_fires(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    trace = server.record(tmp_path / "t.h5", "tap-silent")
    found = diff(trace, dump_of(server.pair))
    row = server.row(WORDS["tap-silent"], ["probe-silent"], found, AGAINST_DUMP)
    fault_row(row)
    assert row.reached and found.code == 1, found.explained


def test_a_trace_that_ends_early_is_compared_as_far_as_it_goes(
    server: FaultServer, tmp_path: Path, fault_row: Any
) -> None:
    trace = server.record(tmp_path / "t.h5", "writer-fails")
    found = diff(trace, dump_of(server.pair))
    row = server.note(WORDS["writer-fails"], "trace-incomplete", found, AGAINST_DUMP)
    fault_row(row)
    assert row.reached and found.code == 0, found.explained
    assert found.result["alignment"]["rows_compared"] > 20
    told = [f["summary"] for f in found.result["findings"] if f["id"] in {"trace-incomplete", "rows-dropped"}]
    assert len(told) == 2 and all("the disk is gone" in text for text in told), told


@pytest.mark.faults_slow
@pytest.mark.parametrize("name", NAMES)
def test_rows_beyond_the_budget(
    name: str, start_server: Callable[..., Any], pairs: Any, home: Path, tmp_path: Path, fault_row: Any
) -> None:
    """1 MiB holds a prompt and not its whole answer."""
    server = FaultServer.start(start_server, pairs[name], home, serve=("--max-trace-mib", "1"))
    trace = server.record(tmp_path / "t.h5", more=("--boundaries", "all", "--max-new-tokens", "120"))
    found = diff(trace, dump_of(server.pair))
    row = server.note("rows beyond the trace's budget", "rows-dropped", found, AGAINST_DUMP)
    fault_row(row)
    assert row.reached and found.code == 0, found.explained


def test_another_prompt(server: FaultServer, tmp_path: Path, fault_row: Any) -> None:
    """Nothing can be compared: that is no match, and no fault of the server's either."""
    ids = [int(token) for token in tokens_of(open_capture(str(dump_of(server.pair))))[:40]]
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(ids[::-1]))
    trace = record(server.traced.url, tmp_path / "t.h5", source=["--input-ids", file])
    found = diff(trace, dump_of(server.pair))
    row = server.row("another prompt", ["no-overlap"], found, AGAINST_DUMP)
    fault_row(row)
    assert row.reached and found.code == 2, found.explained
    assert found.result["verdict"] == "incomparable"


# Graphs. SGLang's graph runner for the CPU refuses to draft, so that no pass is ever replayed here: the traces are
# real, and only their arguments are those of a GPU server.


def with_arguments(trace: Path, **arguments: Any) -> Path:
    """The trace with other arguments of its server."""
    with h5py.File(trace, "r+") as file:
        block = json.loads(get_text(file["about/server_args"][()]))
        replace_block(file, "server_args", block | arguments)
    return trace


@pytest.mark.parametrize("eager", [{"disable_cuda_graph": True}, {"cuda_graph_backend_decode": "disabled"}])
def test_states_that_differ_under_graphs_only(
    server: FaultServer, eager: dict[str, Any], tmp_path: Path, fault_row: Any
) -> None:
    one, two, wrong = (
        server.record(tmp_path / f"{i}.h5", *word) for i, word in enumerate(((), (), ("wrong-later",)))
    )
    reference = with_arguments(one, device="cuda", **eager)
    graphs = "graphs against eager, " + next(iter(eager))
    found = diff(with_arguments(two, device="cuda"), reference)
    row = replace(server.row(f"healthy: {graphs}", [], found, "diff GRAPHS EAGER"), place="trace")
    fault_row(row)
    assert row.reached and found.code == 0, found.explained
    found = diff(with_arguments(wrong, device="cuda"), reference)
    row = replace(server.row(graphs, ["graph-eager"], found, "diff GRAPHS EAGER"), place="trace")
    fault_row(row)
    assert row.reached and found.code == 1, found.explained
    for trace in (wrong, reference):
        with_arguments(trace, device="cpu")
    assert diff(wrong, reference).faults[0][0] == "decay"  # as they were: neither replayed a graph
