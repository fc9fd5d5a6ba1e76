"""The first padding row of a padded batch: hashed into the trace, and found again where a live row holds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_modules import SLOTS, VOCAB, H, Target, recorder_of, tapped
from torch.fx.experimental.proxy_tensor import make_fx

from drafttrace.compare.diff import diff
from drafttrace.compare.padding import find_leaks
from drafttrace.compare.result import FAULT, Result
from drafttrace.hooks import recorder as recorder_module
from drafttrace.hooks.recorder import Entry, Recorder
from drafttrace.hooks.sglang_engine import attach
from drafttrace.hooks.static import StaticTaps
from drafttrace.tracer.capture import Capture, Phase
from drafttrace.tracer.row_hash import row_hashes
from drafttrace.tracer.trace.reader import read_rows, read_trace
from drafttrace.tracer.trace.redact import redact
from drafttrace.tracer.trace.schema import SOURCE_PYTHON_SEAM

RID = "drafttrace-one"
LIVE, PADDED = 6, 8
TAPS = [f"aux/{slot}" for slot in range(SLOTS)] + ["embed", "last"]


class Gathering(torch.nn.Module):
    """A target whose states are put in order by an index over the padded batch, as accept indices do."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target

    def forward(self, ids: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        target = self.target
        hidden, aux = target.model(ids)
        logits: torch.Tensor = target.logits_processor(
            ids, hidden[index], target.lm_head, None, [a[index] for a in aux]
        )
        return logits


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that a graph is being captured: what follows is what the taps do then."""
    monkeypatch.setattr(recorder_module, "graph_is_captured", lambda: True)
    monkeypatch.setattr(attach, "graph_is_captured", lambda: True)


@pytest.fixture
def server(capturing: None, tmp_path: Path) -> tuple[Recorder, Target, Callable[..., Any]]:
    """A recorder, its target, and the graph of a verify pass over 8 rows, captured with the taps in it."""
    recorder = recorder_of(tmp_path)
    target, _ = tapped(recorder)
    model = Gathering(target)
    example = torch.randint(0, VOCAB, (PADDED,)), torch.arange(PADDED)
    recorder.scope = "target/verify"
    with torch.no_grad():
        model(*example)
        graph = make_fx(model)(*example)
    recorder.scope, recorder.starting = "", False
    recorder.store.ask("one", {"draft": False, "boundaries": "none"})
    return recorder, target, graph


def verify(recorder: Recorder, graph: Callable[..., Any], ids: torch.Tensor, at: int, index: list[int]) -> None:
    """One round: three rows of another request, three of ours, two of padding."""
    recorder.open_batch({RID: [1]}, verifies=True)
    entries = [Entry("other", 0, 3), Entry(RID, 3, LIVE, 1)]
    position = torch.tensor([0, 1, 2, at, at + 1, at + 2])
    recorder.begin_frame("target", Phase.VERIFY, entries, position=position, token_id=ids[:LIVE])
    with torch.no_grad():
        graph(ids, torch.tensor(index))
    assert recorder.take_static("target/verify")
    recorder.end_frame(graph=True)
    recorder.verdict(RID, torch.tensor([3, 4, 5]), torch.tensor(3))
    recorder.close_batch()
    recorder.settle(RID, at + 4, 3)


def finished(recorder: Recorder, tokens: list[int]) -> Capture:
    recorder.end(RID, tokens, 1, {"finish_reason": {"type": "length"}})
    assert recorder.thread.drain(10)
    recorder.thread.close()
    return read_trace(recorder.store.trace_path("one"))


def rounds(
    server: Any, index: list[int], count: int = 4, tokens: int | None = None
) -> tuple[Capture, torch.Tensor]:
    """A trace of some rounds, in all of which the rows are gathered as ``index`` says, and the last round's ids."""
    recorder, _, graph = server
    drawn = torch.randperm(VOCAB)
    text = [1]
    for number in range(count):
        ids = drawn[number * PADDED : (number + 1) * PADDED].clone()
        if tokens is not None:
            ids[LIVE] = ids[tokens]  # the padding is fed a live row's token
        verify(recorder, graph, ids, len(text), index)
        text += ids[3:LIVE].tolist()
    return finished(recorder, text), ids


def faults(found: Result) -> list[str]:
    return [one.id for one in found.findings if one.severity == FAULT]


IN_ORDER = list(range(PADDED))


def test_a_replays_first_padding_row_is_hashed_into_the_trace(server: Any) -> None:
    trace, ids = rounds(server, IN_ORDER)
    target = server[1]
    with torch.no_grad():
        hidden, aux = target.model(ids)
    behind = {f"aux/{slot}": aux[slot] for slot in range(SLOTS)} | {"last": hidden, "embed": aux[0]}
    assert sorted(trace.padding) == sorted(TAPS)
    for tap, states in behind.items():
        assert sorted(trace.padding[tap]) == [0, 1, 2, 3]
        assert trace.padding[tap][3] == row_hashes(states[LIVE : LIVE + 1].numpy())[0]
    rows = read_rows(trace.path)
    assert set(rows["live_rows"]) == {LIVE} and set(rows["padded_rows"]) == {PADDED}
    assert trace.padded is not None and trace.padded.all()


def test_a_healthy_padded_trace_has_no_leak(server: Any) -> None:
    trace, _ = rounds(server, IN_ORDER)
    assert find_leaks(trace) == () and faults(diff(trace, None)) == []


@pytest.mark.parametrize("count", [1, 4])
def test_a_live_row_that_was_gathered_from_the_padding_is_named(server: Any, count: int) -> None:
    """One row in one pass is enough: nothing is inferred from several."""
    trace, _ = rounds(server, [0, 1, 2, 3, LIVE, 5, 6, 7], count)
    found = diff(trace, None)
    assert faults(found) == ["padding-leak"], [(f.id, f.summary) for f in found.findings]
    leak = found.findings[0]
    assert leak.slots == (1, 2) and leak.confidence == 0.99 and "bit for bit" in leak.summary
    assert set(leak.evidence) == {"aux/1", "aux/2", "last"}
    assert leak.evidence["aux/1"]["equal_to_padding"] == count
    assert leak.evidence["aux/1"]["rows_of_padded_passes"] == 3 * count
    assert [row["position"] for row in leak.evidence["aux/1"]["rows"]] == [2 + 3 * n for n in range(count)]


def test_a_copy_of_a_live_row_is_no_padding(server: Any) -> None:
    trace, _ = rounds(server, [0, 1, 2, 3, 3, 5, 6, 7])
    assert faults(diff(trace, None)) == ["stale-rows"]


def test_a_row_that_was_fed_the_paddings_token_may_equal_it(server: Any) -> None:
    """In a target without attention, one token gives one state: equal rows then prove nothing."""
    trace, _ = rounds(server, IN_ORDER, tokens=4)
    assert trace.padding["embed"] and find_leaks(trace) == ()


def test_an_eager_pass_over_a_padded_batch_is_hashed_too(capturing: None, tmp_path: Path) -> None:
    """Attention data parallelism pads the batch inside the forward pass, without any graph."""
    recorder = recorder_of(tmp_path)
    target, _ = tapped(recorder)
    recorder.starting = False
    recorder.store.ask("one", {"draft": False, "boundaries": "none"})
    recorder.open_batch({RID: [1, 2]}, verifies=False)
    ids = torch.tensor([9, 8, 7, 6, 0])
    entries = [Entry("other", 0, 1), Entry(RID, 1, 4, 1)]
    recorder.begin_frame("target", Phase.PREFILL, entries, position=torch.arange(4), token_id=ids[:4])
    with torch.no_grad():
        target(ids)
        hidden, _ = target.model(ids)
    recorder.end_frame()
    recorder.close_batch()
    recorder.settle(RID, 4, None)
    trace = finished(recorder, ids[1:4].tolist())
    assert trace.padding["last"] == {0: row_hashes(hidden[4:5].numpy())[0]}
    assert set(read_rows(trace.path)["padded_rows"]) == {5}


def test_a_batch_without_padding_costs_nothing(server: Any) -> None:
    recorder, _, graph = server
    recorder.open_batch({RID: [1]}, verifies=True)
    ids = torch.randint(0, VOCAB, (PADDED,))
    entries = [Entry(RID, 0, PADDED)]
    frame = recorder.begin_frame("target", Phase.VERIFY, entries, position=torch.arange(PADDED), token_id=ids)
    with torch.no_grad():
        graph(ids, torch.arange(PADDED))
    recorder.take_static("target/verify")
    assert frame.spans[0].rows.padding == {} and frame.spans[0].rows.parts


def test_one_row_per_tap_and_pass_however_many_requests_are_traced(server: Any) -> None:
    recorder, _, graph = server
    recorder.store.ask("two", {"draft": False, "boundaries": "none"})
    recorder.open_batch({RID: [1], "drafttrace-two": [1]}, verifies=True)
    ids = torch.randint(0, VOCAB, (PADDED,))
    entries = [Entry(RID, 0, 3), Entry("drafttrace-two", 3, LIVE, 1)]
    frame = recorder.begin_frame("target", Phase.VERIFY, entries, position=torch.arange(LIVE), token_id=ids[:LIVE])
    with torch.no_grad():
        graph(ids, torch.arange(PADDED))
    recorder.take_static("target/verify")
    one, two = (span.rows for span in frame.spans)
    assert sorted(one.padding) == sorted(two.padding) == sorted(TAPS)
    assert all(one.padding[tap] is two.padding[tap] for tap in TAPS)
    padding = sum(row.numel() * row.element_size() for row in one.padding.values())
    assert padding == len(TAPS) * H * 4  # and the queue's budget knows of it
    assert one.nbytes == sum(part.nbytes for part in one.parts.values()) + padding + 64 * one.rows


def test_rows_behind_a_replays_own_padding_are_never_read() -> None:
    """Two sizes share a buffer: what stands behind the smaller one is the larger one's."""
    taps = StaticTaps(10_000)
    taps.write("s", "last", torch.full((8, 4), 8.0))
    taps.write("s", "last", torch.full((4, 4), 4.0))
    full = taps.read("s", "last", 4, padding=1)
    assert full is not None and full.shape == (4, 4)
    behind = taps.read("s", "last", 3, padding=1)
    assert behind is not None and behind.unique().tolist() == [4.0] and behind.shape == (4, 4)
    assert (
        taps.size("s", "last", 5) == 8 and taps.size("s", "last", 9) is None and taps.size("s", "none", 1) is None
    )


def test_the_python_seam_has_no_padding(server: Any) -> None:
    recorder, _, _ = server
    recorder.open_batch({RID: [1]}, verifies=True)
    frame = recorder.begin_frame(
        "target", Phase.VERIFY, [Entry(RID, 0, 3)], position=torch.arange(3), token_id=torch.arange(3)
    )
    frame.take("aux/0", torch.randn(5, H), SOURCE_PYTHON_SEAM)
    assert frame.spans[0].rows.padding == {} and frame.padded_rows == 0


def test_a_draft_that_was_handed_the_padding_row_is_named(capturing: None, tmp_path: Path) -> None:
    """The target's rows are right; the hand-over reads a row behind the live ones."""
    recorder = recorder_of(tmp_path)
    target, draft = tapped(recorder)
    recorder.starting = False
    recorder.store.ask("one", {"boundaries": "none"})
    ids, position = torch.tensor([5, 6, 7, 8, 0]), torch.arange(4)
    recorder.open_batch({RID: ids[:4].tolist()}, verifies=False)
    with torch.no_grad():
        recorder.begin_frame("target", Phase.PREFILL, [Entry(RID, 0, 4)], position=position, token_id=ids[:4])
        _, packed = target(ids)
        recorder.end_frame()
        packed[2] = packed[4]
        shifted = torch.tensor([6, 7, 8, 9, 0])
        recorder.begin_frame(
            "draft", Phase.DRAFT_EXTEND_PREFILL, [Entry(RID, 0, 4)], position=position, token_id=shifted[:4]
        )
        recorder.tap("draft", "hidden_in", packed)
        draft(shifted, packed)
        recorder.end_frame()
        out = draft.model.fc(packed)
    recorder.close_batch()
    recorder.settle(RID, 5, None)
    found = diff(finished(recorder, [5, 6, 7, 8, 9]), None)
    assert "padding-leak" in faults(found) and "unexplained" not in faults(found), [
        f.summary for f in found.findings
    ]
    leak = next(one for one in found.findings if one.id == "padding-leak")
    # Some processors' kernels round the rows of one product differently: then fc_out is not the padding row's.
    same = {"hidden_in", "fc_in"} | ({"fc_out"} if torch.equal(out[2], out[4]) else set())
    assert leak.slots == () and same <= set(leak.evidence)
    assert "the draft's hidden_in" in leak.summary and "position 2" in leak.summary


def test_a_redacted_trace_keeps_the_hashes_but_not_the_embeddings(server: Any, tmp_path: Path) -> None:
    """Padding holds tokens of other requests, and an embedding is its token."""
    trace, _ = rounds(server, [0, 1, 2, 3, LIVE, 5, 6, 7])
    redact(trace.path, tmp_path / "shared.h5")
    shared = read_trace(tmp_path / "shared.h5")
    assert sorted(shared.padding) == sorted(set(TAPS) - {"embed"})
    assert shared.padding["aux/1"] == trace.padding["aux/1"]
    assert faults(diff(shared, None)) == ["padding-leak"]


def test_rows_of_one_byte_numbers_and_an_odd_width_have_hashes() -> None:
    rows = np.arange(21, dtype=np.uint8).reshape(3, 7)
    same = np.vstack([rows, rows])
    assert len(set(row_hashes(rows).tolist())) == 3 and (row_hashes(same)[:3] == row_hashes(same)[3:]).all()
    changed = rows.copy()
    changed[:, -1] += 1
    assert not (row_hashes(changed) == row_hashes(rows)).any()
