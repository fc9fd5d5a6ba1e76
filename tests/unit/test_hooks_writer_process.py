"""Trace files that a process of their own writes: the same files, and everything that can happen to that process."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from drafttrace.hooks.host import HostFrame, HostPart, Step
from drafttrace.hooks.identity import RowGroup, Verdict
from drafttrace.hooks.messages import STEP, Message, aligned, receive, send
from drafttrace.hooks.packing import packed, unpacked
from drafttrace.hooks.trace_file import TraceFile
from drafttrace.hooks.writer_link import OpenFile, WriterFailed, WriterLink
from drafttrace.hooks.writer_process import Files
from drafttrace.tracer.capture import Phase, Probe
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.reader import read_trace

LAYOUT = TraceLayout((TensorSpec("aux/0", 8, DType.BF16), TensorSpec("boundary/1", 8, DType.BF16)))


def step(at: int, rows: int = 3, width: int = 8) -> Step:
    """A scheduler step with ``rows`` prompt rows from position ``at`` on."""
    states = (np.arange(rows * width).reshape(rows, width) + 100 * at).astype(np.uint16)
    position = np.arange(at, at + rows)
    parts = {name: HostPart(states) for name in ("aux/0", "boundary/1")}
    frame = HostFrame(
        "target", RowGroup(Phase.PREFILL, -1, 0), rows, -1, at, position, position + 50, live_rows=rows, parts=parts
    )
    return Step((frame,), None, None)


def fill(file: OpenFile, steps: int = 2, rows: int = 3) -> None:
    for number in range(steps):
        file.append(step(number * rows, rows))


def end(file: OpenFile) -> None:
    file.finish(
        reason=None,
        tokens=list(range(7)),
        prompt_length=6,
        request={"rounds": 0},
        probes=[Probe("aux/0", 2, 2, 6, 0)],
    )


def open_file(link: WriterLink, path: Path, **about: Any) -> OpenFile:
    return link.open(path, LAYOUT, "drafttrace-x", about, [1, 2, 3])


def test_the_process_writes_the_file_that_a_thread_would(tmp_path: Path) -> None:
    made = {}
    for name, apart in (("apart", True), ("here", False)):
        link = WriterLink(apart)
        file = open_file(link, tmp_path / f"{name}.h5", environment={"sglang": "0.5.23"})
        assert isinstance(file, TraceFile) is not apart
        fill(file)
        assert file.written.rows == 6
        end(file)
        assert (link.pid is not None) is apart
        link.close()
        made[name] = read_trace(tmp_path / f"{name}.h5")
    first, second = made.values()
    assert first.complete and second.complete
    assert np.array_equal(first.table.position, second.table.position)
    assert np.array_equal(first.slots[0].rows.raw(0, 6), second.slots[0].rows.raw(0, 6))
    assert first.about["request"] == second.about["request"] and first.about["environment"] == {"sglang": "0.5.23"}
    assert first.probes == second.probes


def test_rows_of_a_sweep_that_do_not_connect_are_told_by_the_process(tmp_path: Path) -> None:
    link = WriterLink()
    file = open_file(link, tmp_path / "t.h5")
    first = step(0)
    without = HostFrame("target", RowGroup(Phase.PREFILL, -1, 0), 1, -1, 0, np.arange(1), np.arange(1), live_rows=1)
    file.append(Step((without,), None, None))
    file.append(first)
    assert file.written.dropped == {"boundary/1": 3}
    link.close()


def test_what_the_process_cannot_do_comes_back_in_its_words(tmp_path: Path) -> None:
    link = WriterLink()
    (tmp_path / "t.h5").write_bytes(b"somebody's")
    with pytest.raises(WriterFailed, match=r"exists|taken"):
        open_file(link, tmp_path / "t.h5")
    file = open_file(link, tmp_path / "u.h5")
    file.append(step(0, width=9))
    written = file.written
    assert written.problem is not None and "could not broadcast" in written.problem
    assert written.rows == 0 and written.lost == {"aux/0": 3, "boundary/1": 3}
    fill(file)  # neither the file nor the process is lost
    assert file.written.rows == 6 and file.written.problem == written.problem
    end(file)
    link.close()
    assert read_trace(tmp_path / "u.h5").complete


def test_a_killed_process_is_told_and_the_next_trace_gets_another(tmp_path: Path) -> None:
    link = WriterLink()
    lost = open_file(link, tmp_path / "lost.h5")
    fill(lost)
    assert link.pid is not None and lost.written.rows == 6
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(WriterFailed, match=r"the writer process is gone \(exit code -9\)"):
        for _ in range(3000):  # until the signal has arrived
            lost.append(step(6))
            time.sleep(0.01)
    file = open_file(link, tmp_path / "next.h5")
    with pytest.raises(WriterFailed, match="the writer process is gone"):
        end(lost)  # the file was the other process's
    fill(file)
    end(file)
    link.close()
    assert read_trace(tmp_path / "next.h5").complete
    kept = read_trace(tmp_path / "lost.h5")
    assert not kept.complete and len(kept.table) == 6


def rows_in(path: Path) -> int:
    with h5py.File(path, swmr=True) as file:
        return len(file[f"target/{schema.ROWS}"])


def test_steps_are_written_soon_whether_or_not_anybody_asks(tmp_path: Path) -> None:
    """Steps of a tenth of a second are written together: a dead machine loses no more than these."""
    link = WriterLink()
    file, other = open_file(link, tmp_path / "t.h5"), open_file(link, tmp_path / "u.h5")
    fill(file)
    fill(other)
    deadline = time.monotonic() + 30
    while rows_in(tmp_path / "t.h5") + rows_in(tmp_path / "u.h5") < 12 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert rows_in(tmp_path / "t.h5") == rows_in(tmp_path / "u.h5") == 6
    fill(file, steps=200)  # more steps without a pause
    end(file)
    link.close()
    assert len(read_trace(tmp_path / "t.h5").table) == 606


def test_a_large_step_is_not_kept_waiting(tmp_path: Path) -> None:
    files = Files()
    opened = ("open", 1, tmp_path / "t.h5", LAYOUT, "drafttrace-x", {}, [1])
    assert files.answer(Message(opened, memoryview(b""))) == (None, None)
    for rows, there in ((1, 0), (200_000, 200_001), (1, 200_001)):
        plain, arrays = packed(step(0, rows))
        data = b"".join(array.tobytes().ljust(aligned(array.nbytes)) for array in arrays)
        assert files.answer(Message((STEP, 1, plain), memoryview(data))) is None
        assert rows_in(tmp_path / "t.h5") == there
    assert files.patience <= 0.1  # the last row's turn comes
    files.close()
    assert rows_in(tmp_path / "t.h5") == 200_002


@pytest.mark.parametrize("together", [1, 2, 5])
def test_steps_that_are_written_together_are_the_same_rows(tmp_path: Path, together: int) -> None:
    """Prefill rows with a sweep, then rounds of both sides without one: merged, they stand where they stood."""
    layout = TraceLayout(LAYOUT.target, (TensorSpec("fc_in", 8, DType.BF16), TensorSpec("fc_out", 8, DType.BF16)))
    steps = [step(0), step(3), *(round_of(number) for number in range(5))]
    made = []
    for name, size in (("alone", 1), ("together", together)):
        file = TraceFile(tmp_path / f"{name}.h5", layout, "drafttrace-x", {}, [1])
        for number, one in enumerate(steps):
            file.take(one)
            if number % size == size - 1:
                file.write()
        file.write()
        end(file)
        with h5py.File(tmp_path / f"{name}.h5") as whole:
            made.append({key: whole[key][()] for key in DATA if key in whole})
    assert made[0].keys() == made[1].keys() and len(made[0]) == len(DATA)
    for key, rows in made[0].items():
        assert np.array_equal(rows, made[1][key]), key


DATA = ("target/rows", "target/aux/0", "target/boundary/1", "draft/rows", "draft/fc_in", "draft/fc_out")


def round_of(number: int) -> Step:
    """A verify pass of four rows, of which some hold, and two frames of the draft, of which one lacks a tap."""

    def frame(side: str, phase: Phase, at: int, *taps: str) -> HostFrame:
        states = (np.arange(32).reshape(4, 8) + 1000 * number + 100 * at).astype(np.uint16)
        position = np.arange(6 + number, 10 + number)
        parts = {name: HostPart(states + index) for index, name in enumerate(taps)}
        group = RowGroup(phase, at if phase is Phase.DRAFT_DECODE else -1, 0)
        return HostFrame(side, group, 4, number, 10 * number + at, position, position, live_rows=4, parts=parts)

    frames = (
        frame("target", Phase.VERIFY, 0, "aux/0"),
        frame("draft", Phase.DRAFT_EXTEND_VERIFY, 1, "fc_in", "fc_out"),
        frame("draft", Phase.DRAFT_DECODE, 2, "fc_out"),
    )
    return Step(frames, Verdict(np.array([0, 1, 2, 3]), 1 + number % 3), 9 + number)


def test_where_no_process_can_be_started_files_are_written_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    link = WriterLink()
    for name in ("one", "two"):
        file = open_file(link, tmp_path / f"{name}.h5")
        fill(file)
        end(file)
    assert isinstance(file, TraceFile)
    assert read_trace(tmp_path / "two.h5").complete
    assert len([record for record in caplog.records if "no writer process" in record.message]) == 1


SERVER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a test run in the background would not have
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_hooks_writer_process import fill, open_file
from drafttrace.hooks.writer_link import WriterLink
link = WriterLink()
file = open_file(link, Path({path!r}))
fill(file)
print(link.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("last", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_process_ends_with_its_server_and_closes_the_files(tmp_path: Path, last: signal.Signals) -> None:
    path = tmp_path / "t.h5"
    script = SERVER.format(tests=str(Path(__file__).parent), path=str(path))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as server:
        assert server.stdout is not None
        writer = psutil.Process(int(server.stdout.readline()))
        os.killpg(server.pid, last)  # as Ctrl-C does, to the whole group
        server.wait(30)
    psutil.wait_procs([writer], timeout=30)
    assert not writer.is_running() or writer.status() == psutil.STATUS_ZOMBIE
    with h5py.File(path) as file:
        assert len(file[f"target/{schema.ROWS}"]) == 6
    kept = read_trace(path)
    assert not kept.complete and len(kept.table) == 6


def test_the_process_is_small() -> None:
    """It imports neither torch nor SGLang, whatever the server's settings are made of."""
    code = "import sys, drafttrace.hooks.writer_process as w; print({'torch', 'sglang'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


def test_settings_of_any_type_reach_the_process_as_text(tmp_path: Path) -> None:
    """They were pickled as they are: the process then imported torch for a dtype among them, half a gigabyte."""
    import torch

    link = WriterLink()
    file = open_file(link, tmp_path / "t.h5", server_args={"dtype": torch.bfloat16, "path": tmp_path})
    assert link.pid is not None
    maps = Path(f"/proc/{link.pid}/maps")
    if maps.exists():
        assert "libtorch" not in maps.read_text()
    end(file)
    link.close()
    assert read_trace(tmp_path / "t.h5").about["server_args"] == {"dtype": "torch.bfloat16", "path": str(tmp_path)}


@pytest.mark.parametrize("size", [0, 5, 1 << 15, 1 << 17])
def test_messages_arrive_as_they_were_sent(size: int) -> None:
    ours, theirs = socket.socketpair()
    said = {"hashes": np.arange(6, dtype=np.uint64), "text": "x" * size}
    arrays = [np.arange(size, dtype=np.uint16), np.arange(3, dtype=np.uint8), np.arange(size + 1.0).reshape(-1, 1)]
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(receive(theirs)))
    reader.start()
    send(ours, said, arrays)
    reader.join(30)
    message = found[0]
    assert message.said["text"] == said["text"] and np.array_equal(message.said["hashes"], said["hashes"])
    at = 0
    for array in arrays:
        assert bytes(message.data[at : at + array.nbytes]) == array.tobytes()
        at += aligned(array.nbytes)
    assert at == message.data.nbytes
    ours.close()
    assert receive(theirs) is None
    theirs.close()


def test_a_step_is_the_same_after_its_way() -> None:
    """Every field of every record, arrays of any size and form among them."""
    states = np.arange(48, dtype=np.float32).reshape(6, 8)
    parts = {
        "aux/0": HostPart(states[::2], None, 2),
        "aux/1": HostPart(states.astype(np.uint8)[:, :3], 1),
        "last": HostPart(np.zeros((0, 8), np.uint16)),
    }
    frame = HostFrame(
        "draft",
        RowGroup(Phase.DRAFT_DECODE, 3, 7, 4),
        3,
        5,
        9,
        np.array([4, 5, 6]),
        np.array([1, 2, 3]),
        graph=True,
        live_rows=11,
        padded_rows=16,
        cached_prefix=2,
        rank=1,
        parts=parts,
        padding={"aux/0": states[:1]},
    )
    for sent in (Step((frame, frame), Verdict(np.array([7, 8, -1]), 2), 40), Step((), None, None)):
        plain, arrays = packed(sent)
        data = b"".join(array.tobytes().ljust(aligned(array.nbytes)) for array in arrays)
        found = unpacked(pickle.loads(pickle.dumps(plain)), memoryview(bytearray(data)))
        _same(found, sent)


def _same(found: Any, sent: Any) -> None:
    assert type(found) is type(sent)
    if isinstance(sent, np.ndarray):
        assert found.dtype == sent.dtype and found.shape == sent.shape and np.array_equal(found, sent)
        assert found.flags.aligned
    elif is_dataclass(sent):
        for field in fields(sent):
            _same(getattr(found, field.name), getattr(sent, field.name))
    elif isinstance(sent, tuple):
        assert len(found) == len(sent)
        for one, other in zip(found, sent, strict=True):
            _same(one, other)
    elif isinstance(sent, dict):
        assert list(found) == list(sent)
        for key in sent:
            _same(found[key], sent[key])
    else:
        assert found == sent


@pytest.mark.parametrize("cut", [1, 8, 17, 40, 70_000])
def test_a_message_that_breaks_off_is_none(cut: int) -> None:
    ours, theirs = socket.socketpair()
    whole, sink = socket.socketpair()
    data = bytearray()
    reader = threading.Thread(target=lambda: data.extend(_all(sink)))
    reader.start()
    send(whole, ("verb", 1), [np.zeros(100_000, np.uint8)])
    whole.close()
    reader.join(30)
    writer = threading.Thread(target=lambda: (ours.sendall(data[:cut]), ours.close()))
    writer.start()
    assert receive(theirs) is None
    writer.join(30)
    theirs.close()
    sink.close()


def _all(link: socket.socket) -> bytes:
    found = bytearray()
    while piece := link.recv(1 << 16):
        found += piece
    return bytes(found)


def test_an_orphan_that_hears_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the server started meanwhile can hold the other end of the socket open."""
    from drafttrace.hooks import writer_process

    monkeypatch.setattr(writer_process, "_ORPHAN_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    parents = iter([11, 11, 11, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    began = time.monotonic()
    writer_process.serve(theirs, 11)
    assert time.monotonic() - began < 30 and next(parents, None) is None
    ours.close()
    theirs.close()


def test_serving_goes_first_also_where_sessions_share_the_processor(tmp_path: Path) -> None:
    """Linux's autogroups give every session the same share: the process's own niceness means nothing between two."""
    link = WriterLink()
    file = open_file(link, tmp_path / "nice.h5")
    assert link.pid is not None
    assert psutil.Process(link.pid).nice() == min(19, os.nice(0) + 10)
    session = Path(f"/proc/{link.pid}/autogroup")
    if session.exists():
        assert session.read_text().split()[-1] == "10"
    end(file)
    link.close()
