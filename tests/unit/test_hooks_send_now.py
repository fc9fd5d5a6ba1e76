"""Small steps go to the writer process at once, on the thread that serves; never where that could wait for anything."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_hooks_recorder import build, finish, prefill, trace_of, verify_round

from drafttrace.hooks.frames import Batch
from drafttrace.hooks.recorder import Recorder
from drafttrace.hooks.session import Session
from drafttrace.hooks.store import Store
from drafttrace.hooks.writer_link import FileApart

PROMPT = [11, 12, 13]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every committed step whether it went at once."""
    found: list[bool] = []
    send = Session._send_now

    def told(self: Session, batch: Batch, nbytes: int) -> bool:
        found.append(send(self, batch, nbytes))
        return found[-1]

    monkeypatch.setattr(Session, "_send_now", told)
    return found


@pytest.fixture
def recorder(store: Store, ways: list[bool]) -> Iterator[Recorder]:
    made = build(store)
    store.ask("one", {})
    prefill(made, PROMPT)
    assert made.thread.drain(30)  # the file is there
    yield made
    made.thread.close()


def rounds(recorder: Recorder, first: int, last: int) -> None:
    for number in range(first, last):
        verify_round(recorder, at=3 + number, accepted=1)


def text(count: int) -> list[int]:
    return [*PROMPT, *range(500, 500 + count)]


def test_after_the_first_step_rounds_go_at_once_and_in_their_order(
    recorder: Recorder, store: Store, ways: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafttrace.hooks.session._STATE_EVERY", 3600.0)
    rounds(recorder, 0, 5)
    finish(recorder, text(6), len(PROMPT))
    trace = trace_of(store)
    assert trace.complete and ways == [False, *[True] * 5]
    assert list(dict.fromkeys(trace.table.round.tolist())) == [-1, 0, 1, 2, 3, 4]


def test_the_thread_has_its_turn_when_the_state_is_due(
    recorder: Recorder, store: Store, ways: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafttrace.hooks.session._STATE_EVERY", 0.0)
    rounds(recorder, 0, 2)
    assert ways == [False] * 3 and recorder.thread.drain(30)
    told = store.state("one")
    finish(recorder, text(3), len(PROMPT))
    ended = store.state("one")
    assert told is not None and ended is not None and ended.state == "complete"
    assert told.rows == ended.rows > len(trace_of(store).table)  # those of the draft, too


def test_nothing_overtakes_what_is_queued(
    recorder: Recorder, store: Store, ways: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafttrace.hooks.session._STATE_EVERY", 3600.0)
    monkeypatch.setattr(FileApart, "takes_now", lambda self, nbytes: len(ways) != 2)  # the second round must queue
    append, seen = FileApart.append, []

    def slow(self: FileApart, step: Any) -> None:
        seen.append(step.frames[0].round)
        append(self, step)

    monkeypatch.setattr(FileApart, "append", slow)
    rounds(recorder, 0, 30)
    finish(recorder, text(31), len(PROMPT))
    assert seen == list(range(30)) and not ways[2] and trace_of(store).complete


def test_a_copy_that_is_under_way_is_left_to_the_thread(
    recorder: Recorder, store: Store, ways: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the rows come on a stream of their own."""

    class Event:
        waited = 0

        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            Event.waited += 1

    monkeypatch.setattr("drafttrace.hooks.session._STATE_EVERY", 3600.0)
    say = Batch.say

    def late(self: Batch, nodes: torch.Tensor, count: torch.Tensor) -> None:
        say(self, nodes, count)
        self.copies.append(Event())

    monkeypatch.setattr(Batch, "say", late)
    rounds(recorder, 0, 2)
    finish(recorder, text(3), len(PROMPT))
    assert ways == [False] * 3 and Event.waited == 2 and trace_of(store).complete


def test_a_writer_process_that_does_not_read_holds_nobody_up(
    recorder: Recorder, store: Store, ways: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafttrace.hooks.session._STATE_EVERY", 3600.0)
    pid = recorder.thread.files.pid
    assert pid is not None
    link = recorder.thread.files._link
    assert link is not None
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    os.kill(pid, signal.SIGSTOP)
    try:
        rounds(recorder, 0, 300)  # more than the socket takes
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ways[1] and not ways[-1]
    finish(recorder, text(301), len(PROMPT))
    trace = trace_of(store)
    assert trace.complete and trace.table.round.max() == 299


def test_a_process_that_died_is_told_as_from_the_thread(
    recorder: Recorder, store: Store, ways: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafttrace.hooks.session._STATE_EVERY", 3600.0)
    pid = recorder.thread.files.pid
    assert pid is not None
    process = recorder.thread.files._process
    os.kill(pid, signal.SIGKILL)
    assert process is not None
    process.wait(30)
    rounds(recorder, 0, 2)
    assert ways[1]
    recorder.end("drafttrace-one", text(3), len(PROMPT), {})
    assert recorder.thread.drain(30)
    state = store.state("one")
    assert (
        state is not None and state.state == "incomplete" and "the writer process is gone" in (state.reason or "")
    )


def test_with_the_files_here_every_step_is_the_threads(store: Store, ways: list[bool]) -> None:
    """``DRAFTTRACE_WRITER_PROCESS=0``: the thread that serves would wait for the disk."""
    made = build(store, writer_process=False)
    store.ask("one", {})
    prefill(made, PROMPT)
    assert made.thread.drain(30)
    rounds(made, 0, 3)
    finish(made, text(4), len(PROMPT))
    made.thread.close()
    assert ways == [False] * 4 and trace_of(store).complete
