"""The recorder without an engine: from taps to a trace file, and everything that can go wrong on the way."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from drafttrace.hooks.config import Settings
from drafttrace.hooks.plan import DraftFacts, ModelFacts
from drafttrace.hooks.recorder import Entry, Recorder
from drafttrace.hooks.store import Store
from drafttrace.tracer.capture import Accepted, Capture, Phase
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace.reader import read_trace

H, SLOTS, N = 8, 3, 4
RID = "drafttrace-one"


def facts() -> ModelFacts:
    draft = DraftFacts(hidden=H, hidden_in=SLOTS * H, fc_in=SLOTS * H, fc_out=H, dtype=DType.BF16)
    wiring = {"boundaries": [1, 2, 3], "source": "default"}
    return ModelFacts(N, H, SLOTS, DType.BF16, draft, {"wiring": wiring})


@pytest.fixture
def recorder(store: Store) -> Iterator[Recorder]:
    made = build(store)
    yield made
    made.thread.close()


def build(store: Store, **settings: Any) -> Recorder:
    made = Recorder(Settings(store.directory, **settings), store, facts)
    made.starting = False
    return made


def states(rows: int, width: int = H, start: float = 0.0) -> torch.Tensor:
    return (torch.arange(rows * width, dtype=torch.float32).reshape(rows, width) + start).to(torch.bfloat16)


def target_pass(
    recorder: Recorder, phase: Phase, entries: list[Entry], position: list[int], ids: list[int]
) -> dict[str, torch.Tensor]:
    """One forward pass of a made-up target over the whole batch; gives what its taps saw."""
    rows = len(position)
    recorder.begin_frame("target", phase, entries, position=torch.tensor(position), token_id=torch.tensor(ids))
    seen = {"embed": states(rows), "last": states(rows, start=7.0)}
    seen |= {f"aux/{slot}": states(rows, start=100.0 * slot) for slot in range(SLOTS)}
    seen |= {f"boundary/{k}": states(rows, start=-10.0 * k) for k in range(N + 1)}
    for name, tensor in seen.items():
        recorder.tap("target", name, tensor)
    recorder.end_frame()
    return seen


def draft_pass(recorder: Recorder, phase: Phase, entries: list[Entry], position: list[int], step: int = -1) -> None:
    rows = len(position)
    frame = recorder.begin_frame(
        "draft", phase, entries, position=torch.tensor(position), token_id=torch.tensor(position), step=step
    )
    extend = phase is not Phase.DRAFT_DECODE
    recorder.tap("draft", "hidden_in", states(rows, SLOTS * H if extend else H))
    if extend:
        recorder.tap("draft", "fc_in", states(rows, SLOTS * H))
        recorder.tap("draft", "fc_out", states(rows))
    recorder.tap("draft", "embed_in", states(rows))
    recorder.tap("draft", "hidden_out", states(rows))
    for span in frame.spans if frame else ():
        k = span.session.options.topk
        for name, dtype in (
            ("topk/ids", torch.int32),
            ("topk/draft_ids", torch.int32),
            ("topk/logits", torch.float32),
        ):
            frame.take_part(span, name, torch.ones(span.stop - span.start, k, dtype=dtype), 0)  # type: ignore[union-attr]
    recorder.end_frame()


def prefill(recorder: Recorder, prompt: list[int], rid: str = RID) -> None:
    recorder.open_batch({rid: prompt}, verifies=False)
    entries = [Entry(rid, 0, len(prompt))]
    position = list(range(len(prompt)))
    target_pass(recorder, Phase.PREFILL, entries, position, prompt)
    draft_pass(recorder, Phase.DRAFT_EXTEND_PREFILL, entries, position)
    recorder.close_batch()
    recorder.settle(rid, len(prompt) + 1, None)


def verify_round(recorder: Recorder, at: int, accepted: int, rid: str = RID) -> None:
    """One round of two draft steps and three verify rows, in a batch where another request stands first."""
    recorder.open_batch({rid: []}, verifies=True)
    for step in range(2):
        draft_pass(recorder, Phase.DRAFT_DECODE, [Entry("other", 0, 1), Entry(rid, 1, 2, 1)], [0, at + step], step)
    entries = [Entry("other", 0, 3), Entry(rid, 3, 6, 1)]
    position = [0, 1, 2, at, at + 1, at + 2]
    target_pass(recorder, Phase.VERIFY, entries, position, [500 + p for p in position])
    nodes = torch.tensor([3, 4, 5])
    nodes[accepted:] = -1
    recorder.verdict(rid, nodes, torch.tensor(accepted))
    draft_pass(recorder, Phase.DRAFT_EXTEND_VERIFY, entries, position)
    recorder.close_batch()
    recorder.settle(rid, at + accepted + 1, accepted)


def finish(recorder: Recorder, tokens: list[int], prompt: int, rid: str = RID) -> None:
    recorder.end(rid, tokens, prompt, {"finish_reason": {"type": "length"}})
    assert recorder.thread.drain(10)


def trace_of(store: Store, name: str = "one") -> Capture:
    return read_trace(store.trace_path(name))


def test_a_request_becomes_a_complete_trace(recorder: Recorder, store: Store) -> None:
    store.ask("one", {})
    prefill(recorder, [11, 12, 13])
    verify_round(recorder, at=3, accepted=2)
    finish(recorder, [11, 12, 13, 503, 504, 9], 3)
    trace = trace_of(store)
    assert trace.complete and store.state("one").state == "complete"  # type: ignore[union-attr]
    assert trace.table.position.tolist() == [0, 1, 2, 3, 4, 5]
    assert trace.table.token_id.tolist() == [11, 12, 13, 503, 504, 505]
    assert trace.table.accepted.tolist() == [1, 1, 1, 1, 1, int(Accepted.REJECTED)]
    assert trace.table.round.tolist() == [-1, -1, -1, 0, 0, 0]
    # Only the request's own rows of the batch: rows 3..5 of the verify pass.
    assert np.array_equal(trace.slots[1].rows.floats(3, 6), states(6, start=100.0)[3:].float().numpy())
    assert trace.about["request"]["accept_counts"] == [2]
    assert trace.draft is not None and trace.draft.present["fc_in"].sum() == 6
    assert trace.draft.table.step.tolist() == [-1, -1, -1, 0, 1, -1, -1, -1]


def test_taps_are_copied_when_they_fire(recorder: Recorder, store: Store) -> None:
    store.ask("one", {})
    recorder.open_batch({RID: [1, 2]}, verifies=False)
    recorder.begin_frame(
        "target", Phase.PREFILL, [Entry(RID, 0, 2)], position=torch.arange(2), token_id=torch.arange(2)
    )
    live = states(2)
    recorder.tap("target", "embed", live)
    live.zero_()  # what a fused kernel does to its input
    part = recorder.frame.spans[0].rows.parts["embed"]  # type: ignore[union-attr]
    assert torch.equal(part.tensor, states(2))


def test_a_token_that_the_output_was_cut_before_is_not_accepted(recorder: Recorder, store: Store) -> None:
    store.ask("one", {})
    prefill(recorder, [1, 2])
    recorder.open_batch({RID: []}, verifies=True)
    entries = [Entry(RID, 0, 3)]
    target_pass(recorder, Phase.VERIFY, entries, [2, 3, 4], [7, 8, 9])
    recorder.verdict(RID, torch.tensor([0, 1, 2]), torch.tensor(3))
    recorder.close_batch()
    recorder.settle(RID, 4, 3)  # the limit of 2 output tokens cut the round after position 3
    finish(recorder, [1, 2, 7, 8], 2)
    assert trace_of(store).table.accepted.tolist() == [1, 1, 1, 1, 0]


def test_the_sweep_covers_the_first_rows_only(recorder: Recorder, store: Store) -> None:
    store.ask("one", {"boundaries": [0, 2], "boundary_rows": 4})
    prefill(recorder, [1, 2, 3])
    verify_round(recorder, at=3, accepted=1)
    verify_round(recorder, at=4, accepted=1)
    finish(recorder, [1, 2, 3, 4, 5], 3)
    trace = trace_of(store)
    assert trace.complete and {k: len(rows) for k, rows in trace.boundaries.items()} == {0: 4, 2: 4}


def test_a_tap_that_did_not_fire_is_a_finding(recorder: Recorder, store: Store) -> None:
    store.ask("one", {"boundaries": "none"})
    recorder.open_batch({RID: [1]}, verifies=False)
    recorder.begin_frame(
        "draft", Phase.DRAFT_EXTEND_PREFILL, [Entry(RID, 0, 1)], position=torch.arange(1), token_id=torch.arange(1)
    )
    recorder.tap("draft", "hidden_in", states(1, SLOTS * H))
    recorder.end_frame()
    recorder.close_batch()
    recorder.settle(RID, 2, None)
    finish(recorder, [1, 2], 1)
    trace = trace_of(store)
    silent = {probe.name for probe in trace.probes if probe.fired < probe.expected}
    assert not trace.complete and "fc_in" in silent and "hidden_in" not in silent


def test_an_fc_that_the_server_never_calls_is_told_by_its_probe(
    recorder: Recorder, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace is whole: it shows what the server did (and did not do)."""
    tap = Recorder.tap
    monkeypatch.setattr(
        Recorder, "tap", lambda self, side, name, tensor: name.startswith("fc_") or tap(self, side, name, tensor)
    )
    store.ask("one", {})
    prefill(recorder, [1, 2, 3])
    finish(recorder, [1, 2, 3, 4], 3)
    trace = trace_of(store)
    probes = {probe.name: probe for probe in trace.probes}
    assert trace.complete and (probes["fc_in"].expected, probes["fc_in"].fired) == (1, 0)


def test_a_full_queue_drops_and_counts(store: Store) -> None:
    recorder = build(store, queue_bytes=4000)
    gate = threading.Event()

    class Busy:
        def run(self) -> None:
            gate.wait(10)

        def fail(self, error: BaseException) -> None:
            raise AssertionError(error)

    store.ask("one", {})
    recorder.thread.put(Busy(), 10)
    prefill(recorder, [1, 2, 3])  # fits
    prefill_bytes = recorder.thread.waiting_bytes
    for at in range(3, 20):
        verify_round(recorder, at=at, accepted=1)
    assert recorder.thread.waiting_bytes <= 4000 and prefill_bytes > 0
    gate.set()
    finish(recorder, [1, 2, 3, 4], 3)
    trace = trace_of(store)
    assert not trace.complete and "queue" in store.state("one").reason  # type: ignore[union-attr, operator]
    assert all(probe.dropped > 0 for probe in trace.probes if probe.name == "last")
    recorder.thread.close()


def test_a_pass_larger_than_the_queue_is_not_even_copied(store: Store) -> None:
    recorder = build(store, queue_bytes=1000)
    store.ask("one", {"boundaries": "none"})
    prefill(recorder, list(range(40)))  # 640 bytes a tap
    finish(recorder, [1, 2], 1)
    state = store.state("one")
    assert state is not None and state.state == "incomplete" and "larger than the queue" in (state.reason or "")
    recorder.thread.close()


def test_a_trace_stops_at_its_limit(store: Store) -> None:
    recorder = build(store, max_trace_bytes=3000)
    store.ask("one", {})
    prefill(recorder, [1, 2, 3])
    verify_round(recorder, at=3, accepted=1)
    verify_round(recorder, at=4, accepted=1)
    finish(recorder, [1, 2, 3, 4], 3)
    state = store.state("one")
    assert state is not None and state.state == "incomplete" and "3000" in (state.reason or "")
    assert store.trace_path("one").stat().st_size > 0
    recorder.thread.close()


def test_a_folder_at_its_limit_is_told(store: Store) -> None:
    recorder = build(store, max_dir_bytes=100)
    store.ask("one", {})
    prefill(recorder, [1, 2, 3])
    finish(recorder, [1, 2, 3, 4], 3)
    state = store.state("one")
    assert state is not None and state.state == "incomplete" and "MAX_DIR_BYTES" in (state.reason or "")
    recorder.thread.close()


def test_a_folder_that_vanishes_does_not_raise(recorder: Recorder, store: Store) -> None:
    store.ask("one", {})
    prefill(recorder, [1, 2, 3])
    assert recorder.thread.drain(10)
    shutil.rmtree(store.directory)
    verify_round(recorder, at=3, accepted=1)
    finish(recorder, [1, 2, 3, 4], 3)
    store.create()
    store.ask("two", {})
    prefill(recorder, [1, 2], rid="drafttrace-two")  # the recorder goes on
    finish(recorder, [1, 2, 3], 2, rid="drafttrace-two")
    assert trace_of(store, "two").complete


def test_an_exception_in_a_tap_marks_the_trace_and_nothing_else(
    recorder: Recorder, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.ask("one", {"boundaries": "none"})
    recorder.open_batch({RID: [1, 2]}, verifies=False)
    recorder.begin_frame(
        "target", Phase.PREFILL, [Entry(RID, 0, 2)], position=torch.arange(2), token_id=torch.arange(2)
    )
    recorder.tap("target", "last", states(1))  # fewer rows than the batch has
    recorder.tap("target", "last", None)  # type: ignore[arg-type]
    recorder.end_frame()
    recorder.close_batch()
    recorder.settle(RID, 3, None)
    finish(recorder, [1, 2, 3], 2)
    state = store.state("one")
    assert state is not None and state.state == "incomplete" and "last" in (state.reason or "")
    assert recorder.errors == 2 and len([r for r in caplog.records if r.name == "drafttrace"]) == 1


class Gate:
    """A job of the writer thread that says when it runs and waits to be let through."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def run(self) -> None:
        self.reached.set()
        self.opened.wait(10)

    def fail(self, error: BaseException) -> None:
        raise AssertionError(error)


def test_a_trace_whose_writing_failed_is_not_there_before_its_file_is_closed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the end waiting behind the batch that failed, clients fetched a file that was still cut to its length."""
    recorder = build(store, writer_process=False)  # so that this process can break what writes
    store.ask("one", {})
    prefill(recorder, [1, 2, 3])
    assert recorder.thread.drain(10)
    first, second = Gate(), Gate()
    recorder.thread.put(first, 0)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("drafttrace.tracer.trace.writer.TraceWriter.append_target", full)
    verify_round(recorder, at=3, accepted=1)
    recorder.thread.put(second, 0)
    recorder.end(RID, [1, 2, 3, 4], 3, {"finish_reason": {"type": "length"}})
    first.opened.set()
    assert second.reached.wait(10)
    state = store.state("one")
    assert state is not None and state.state == "recording", state
    second.opened.set()
    assert recorder.thread.drain(10)
    state = store.state("one")
    assert state is not None and state.state == "incomplete" and "the disk is full" in (state.reason or "")
    assert not trace_of(store).complete
    recorder.thread.close()


def test_a_request_without_a_trace_is_left_alone(recorder: Recorder, store: Store) -> None:
    prefill(recorder, [1, 2, 3])  # the prefix is there, but nobody asked
    assert not recorder.sessions and not list(store.directory.glob("*.h5"))
    store.ask("one", {})
    recorder.open_batch({RID: [1]}, verifies=False)
    assert recorder.active


def test_a_second_request_with_the_same_id_does_not_touch_the_first(recorder: Recorder, store: Store) -> None:
    store.ask("one", {})
    prefill(recorder, [1, 2, 3])
    finish(recorder, [1, 2, 3, 4], 3)
    before = store.trace_path("one").read_bytes()
    prefill(recorder, [9, 9])
    assert recorder.thread.drain(10)
    assert store.trace_path("one").read_bytes() == before
    assert store.state("one").state == "complete"  # type: ignore[union-attr]
    # After the trace is deleted and asked for again, the id works again.
    store.delete("one")
    time.sleep(0.01)
    store.ask("one", {})
    prefill(recorder, [5, 6])
    finish(recorder, [5, 6, 7], 2)
    assert trace_of(store).tokens.tolist() == [5, 6, 7]


def test_too_many_traces_at_once_are_refused(store: Store) -> None:
    recorder = build(store, max_traces=1)
    for name in ("one", "two"):
        store.ask(name, {})
        prefill(recorder, [1, 2], rid=f"drafttrace-{name}")
    assert store.state("two").state == "incomplete"  # type: ignore[union-attr]
    assert "DRAFTTRACE_MAX_TRACES" in store.state("two").reason  # type: ignore[union-attr, operator]
    finish(recorder, [1, 2, 3], 2)
    assert trace_of(store).complete
    recorder.thread.close()


def test_stopping_ends_what_is_running(recorder: Recorder, store: Store) -> None:
    store.ask("one", {})
    prefill(recorder, [1, 2, 3])
    recorder.stop()
    trace = trace_of(store)
    assert not trace.complete and len(trace.table) == 3
    assert "stopped" in store.state("one").reason  # type: ignore[union-attr, operator]


def test_an_aborted_request_that_never_ran_is_told(recorder: Recorder, store: Store) -> None:
    store.ask("one", {})
    recorder.abandon(RID, "the request was aborted while it waited")
    state = store.state("one")
    assert state is not None and state.state == "incomplete" and "aborted" in (state.reason or "")


def test_a_step_after_the_end_is_ignored(recorder: Recorder, store: Store) -> None:
    """Overlap scheduling has launched one step more when the request finishes."""
    store.ask("one", {})
    prefill(recorder, [1, 2])
    recorder.open_batch({RID: []}, verifies=True)
    target_pass(recorder, Phase.VERIFY, [Entry(RID, 0, 1)], [2], [7])
    recorder.close_batch()
    finish(recorder, [1, 2, 3], 2)
    recorder.settle(RID, 4, 1)
    recorder.open_batch({RID: []}, verifies=True)
    assert not recorder.active
    assert len(trace_of(store).table) == 2


def test_a_part_of_a_batch_is_known_before_its_file_is(store: Store) -> None:
    """The writer thread was still waiting for the file of another part, and the server answered 404 for this one."""
    recorder, held = build(store), threading.Event()
    store.ask("batch", {})

    def busy() -> None:
        held.wait(10)

    recorder.aside(busy)  # on the writer thread
    try:
        prefill(recorder, [5, 6, 7], "drafttrace-batch_0")
        state = store.state("batch_0")
        assert state is not None and state.state == "recording" and not store.trace_path("batch_0").exists()
    finally:
        held.set()
        recorder.thread.close()
