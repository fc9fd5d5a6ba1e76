"""Whatever breaks in the recorder, the server goes on, and the client is told."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import psutil
import pytest
import recording
from sglang_cpu.arguments import cpu_args
from site_folder import python_path_with

from drafttrace.tracer.client import Client, Prompt, Sampling
from drafttrace.tracer.commands.record import record_one
from drafttrace.tracer.errors import ServerProblem
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.reader import read_trace

pytestmark = [pytest.mark.live, pytest.mark.faults]

PROMPT = list(range(7, 27))


@pytest.fixture(scope="module")
def fault_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fault") / "fault"


@pytest.fixture
def fault(fault_file: Path) -> Iterator[Callable[[str], None]]:
    fault_file.write_text("")
    yield fault_file.write_text
    fault_file.write_text("")


def server_args(pairs: Any) -> list[str]:
    return cpu_args(pairs["tiny-llama"].target, pairs["tiny-llama"].draft)


@pytest.fixture
def breakable(start_server: Callable[..., Any], pairs: Any, fault_file: Path) -> Any:
    """A server whose recorder can be broken while it runs."""
    path = python_path_with(Path(__file__).parent / "fault_site")
    return start_server(server_args(pairs), env={"PYTHONPATH": path, "DRAFTTRACE_TEST_FAULT": str(fault_file)})


def scheduler_of(server: Any) -> psutil.Process:
    """The scheduler process of a server that the test started."""
    for child in psutil.Process(server.pid).children(recursive=True):
        if "scheduler" in " ".join(child.cmdline()) or "scheduler" in child.name():
            return child
    raise AssertionError("the server has no scheduler process")


def healthy(traced: Any) -> None:
    """A request without a trace, and then one with, work."""
    text = traced.server.generate(input_ids=PROMPT, max_new_tokens=6, ignore_eos=True)["output_ids"]
    assert len(text) == 6
    made = recording.record(traced, PROMPT, max_new_tokens=6, ignore_eos=True)
    assert made.state["state"] == "complete", made.state


@pytest.mark.parametrize(
    ("name", "says"),
    [("tap", "a fault in a hook"), ("writer", "a fault in the writer"), ("disk", "No space left on device")],
)
def test_an_error_of_ours_is_the_traces_problem(
    breakable: Any, fault: Callable[[str], None], name: str, says: str
) -> None:
    expected = breakable.server.generate(input_ids=PROMPT, max_new_tokens=12, ignore_eos=True)["output_ids"]
    fault(name)
    asked = recording.start(breakable.server)
    answer = breakable.server.generate(
        input_ids=PROMPT, rid=asked["rid"], extra_key=asked["id"], max_new_tokens=12, ignore_eos=True
    )
    assert answer["output_ids"] == expected  # the text does not change
    state = recording.wait(breakable.server, asked["id"])
    assert state["state"] == "incomplete" and says in state["reason"]
    fault("")
    healthy(breakable)


def test_a_removed_folder_is_told_and_survived(breakable: Any, fault: Callable[[str], None]) -> None:
    shutil.rmtree(breakable.trace_dir)
    with pytest.raises(RuntimeError, match="507"):
        recording.start(breakable.server)
    assert len(breakable.server.generate(input_ids=PROMPT, max_new_tokens=6, ignore_eos=True)["output_ids"]) == 6
    breakable.trace_dir.mkdir()
    healthy(breakable)


def test_two_requests_under_one_id_make_one_trace(breakable: Any, fault: Callable[[str], None]) -> None:
    first = recording.record(breakable, PROMPT, max_new_tokens=6, ignore_eos=True)
    before = first.path.read_bytes()
    again = breakable.server.generate(
        input_ids=PROMPT[::-1], rid=f"drafttrace-{first.id}", max_new_tokens=6, ignore_eos=True
    )
    assert len(again["output_ids"]) == 6
    assert first.path.read_bytes() == before
    assert breakable.server.get(f"/drafttrace/traces/{first.id}")["state"] == "complete"


def test_a_killed_writer_process_is_told_and_replaced(breakable: Any, fault: Callable[[str], None]) -> None:
    """What it had flushed stays readable; the text does not change, and the next trace is complete."""
    server = breakable.server
    expected = server.generate(input_ids=PROMPT, max_new_tokens=200, ignore_eos=True)["output_ids"]
    asked = recording.start(server)
    answers: list[Any] = []
    sender = threading.Thread(
        target=lambda: answers.append(
            server.generate(
                input_ids=PROMPT, rid=asked["rid"], extra_key=asked["id"], max_new_tokens=200, ignore_eos=True
            )
        )
    )
    sender.start()
    deadline = time.monotonic() + 60
    path = breakable.trace_dir / f"{asked['id']}.h5"
    while not rows_in(path) and time.monotonic() < deadline:
        time.sleep(0.02)
    writers = [p for p in scheduler_of(server).children() if "drafttrace.hooks.writer_process" in p.cmdline()]
    assert len(writers) == 1
    writers[0].kill()
    sender.join(120)
    assert answers[0]["output_ids"] == expected
    state = recording.wait(server, asked["id"])
    assert state["state"] == "incomplete" and "the writer process is gone" in state["reason"]
    assert len(read_trace(path).table) > 0
    healthy(breakable)


def rows_in(path: Path) -> int:
    """Target rows that a file holds by now; 0 where it is not there, or not yet whole."""
    try:
        with h5py.File(path, swmr=True) as file:
            return len(file[f"target/{schema.ROWS}"])
    except (OSError, KeyError):
        return 0


def test_a_dead_writer_thread_is_told(breakable: Any, fault: Callable[[str], None]) -> None:
    """The last test of this server: its writer is gone for good."""
    fault("thread")
    asked = recording.start(breakable.server)
    answer = breakable.server.generate(input_ids=PROMPT, rid=asked["rid"], max_new_tokens=12, ignore_eos=True)
    assert len(answer["output_ids"]) == 12
    state = recording.wait(breakable.server, asked["id"])
    assert state["state"] == "incomplete" and "writer thread" in state["reason"]


def test_a_killed_server_leaves_every_flushed_round(
    start_server: Callable[..., Any], pairs: Any, tmp_path: Path
) -> None:
    """And ``record``, which was waiting for it, ends with one sentence and no half file."""
    traced = start_server(server_args(pairs), fresh=True)
    told: list[str] = []

    def send() -> None:
        sampling = Sampling(max_new_tokens=1200, ignore_eos=True)
        try:
            record_one(
                Client(traced.url),
                Prompt(input_ids=tuple(PROMPT)),
                sampling,
                tmp_path / "t.h5",
                taps={},
                quiet=True,
            )
        except ServerProblem as error:
            told.append(str(error))

    sender = threading.Thread(target=send)
    sender.start()
    seen, traces = 0, []
    deadline = time.monotonic() + 60
    while seen < 60 and time.monotonic() < deadline:
        time.sleep(0.2)
        traces = traced.server.get("/drafttrace/traces")["traces"]
        seen = int(traces[0]["rows"] or 0) if traces else 0
    scheduler_of(traced.server).send_signal(signal.SIGKILL)
    sender.join(60)
    assert len(told) == 1 and traced.url in told[0] and "\n" not in told[0], told
    assert not list(tmp_path.iterdir())
    trace = read_trace(traced.trace_dir / f"{traces[0]['id']}.h5")
    assert trace.draft is not None
    # What the server had said of the trace is a little older than what it had flushed.
    assert len(trace.table) + len(trace.draft.table) >= seen >= 60
    assert not trace.complete
    rounds = trace.table.round
    assert sorted(set(rounds.tolist())) == list(range(-1, int(rounds.max()) + 1))


def test_a_terminated_server_completes_its_traces(start_server: Callable[..., Any], pairs: Any) -> None:
    traced = start_server(server_args(pairs), fresh=True)
    asked = recording.start(traced.server)
    answers: list[Any] = []
    sender = threading.Thread(
        target=lambda: answers.append(
            traced.server.generate(input_ids=PROMPT, rid=asked["rid"], max_new_tokens=60, ignore_eos=True)
        )
    )
    sender.start()
    deadline = time.monotonic() + 60
    while not traced.server.get(f"/drafttrace/traces/{asked['id']}")["rows"] and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(traced.server.pid, signal.SIGTERM)  # SGLang lets running requests finish
    sender.join(120)
    assert len(answers[0]["output_ids"]) == 60
    deadline = time.monotonic() + 60
    while traced.server.is_running and time.monotonic() < deadline:
        time.sleep(0.2)
    trace = read_trace(traced.trace_dir / f"{asked['id']}.h5")
    assert trace.complete
    recording.assert_text_is_reproduced(trace)
