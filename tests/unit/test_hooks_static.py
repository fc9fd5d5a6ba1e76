"""Taps inside graphs: the copy is part of the graph, and Python is not."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from graph_modules import SLOTS, VOCAB, H, Target, recorder_of, tapped
from torch.fx.experimental.proxy_tensor import make_fx

from drafttrace.hooks import recorder as recorder_module
from drafttrace.hooks.config import Settings
from drafttrace.hooks.recorder import Entry, Recorder
from drafttrace.hooks.sglang_engine import attach
from drafttrace.hooks.static import StaticTaps
from drafttrace.hooks.store import Store
from drafttrace.tracer.capture import Phase


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that a graph is being captured: what follows is what the taps do then."""
    monkeypatch.setattr(recorder_module, "graph_is_captured", lambda: True)
    monkeypatch.setattr(attach, "graph_is_captured", lambda: True)


def replayable(
    recorder: Recorder, scope: str, call: Callable[..., Any], *example: torch.Tensor
) -> Callable[..., Any]:
    """``call`` as a graph of tensor operations alone, captured after one warm-up run as engines do."""
    recorder.scope = scope
    with torch.no_grad():
        call(*example)
        graph = make_fx(call)(*example)
    recorder.scope = ""
    assert any("copy_" in str(node.target) for node in graph.graph.nodes)
    return graph


def test_a_replay_without_python_fills_the_buffers(capturing: None, tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    target, _ = tapped(recorder)
    graph = replayable(recorder, "target/verify", target, torch.randint(0, VOCAB, (6,)))
    recorder.starting = False

    def silent(*args: Any) -> None:
        raise AssertionError("Python ran at replay")

    recorder.tap = silent  # type: ignore[method-assign]
    ids = torch.randint(0, VOCAB, (6,))
    with torch.no_grad():
        _, packed = graph(ids)
        hidden, aux = target.model(ids)
    for slot in range(SLOTS):
        read = recorder.static.read("target/verify", f"aux/{slot}", 6)
        assert read is not None and torch.equal(read, aux[slot])
        assert torch.equal(read, packed[:, slot * H : (slot + 1) * H])
    assert torch.equal(recorder.static.read("target/verify", "last", 6), hidden)  # type: ignore[arg-type]
    assert torch.equal(recorder.static.read("target/verify", "embed", 6), aux[0])  # type: ignore[arg-type]


def test_the_drafts_taps_are_in_the_graph_too(capturing: None, tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    _, draft = tapped(recorder)
    example = (torch.randint(0, VOCAB, (4,)), torch.randn(4, SLOTS * H))
    graph = replayable(recorder, "draft/extend", draft, *example)
    recorder.starting = False
    ids, hidden = torch.randint(0, VOCAB, (4,)), torch.randn(4, SLOTS * H)
    with torch.no_grad():
        graph(ids, hidden)
        state = draft.model(ids, hidden)
    assert torch.equal(recorder.static.read("draft/extend", "fc_in", 4), hidden)  # type: ignore[arg-type]
    assert torch.equal(recorder.static.read("draft/extend", "hidden_out", 4), state)  # type: ignore[arg-type]


def test_rows_are_cut_to_the_live_ones_and_reach_the_trace(capturing: None, tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    target, _ = tapped(recorder)
    graph = replayable(recorder, "target/verify", target, torch.randint(0, VOCAB, (8,)))
    recorder.starting = False
    recorder.store.ask("one", {"draft": False, "boundaries": "none"})
    ids = torch.randint(0, VOCAB, (8,))  # 6 live rows, 2 of padding
    with torch.no_grad():
        hidden, _ = target.model(ids)
    recorder.open_batch({"drafttrace-one": [1]}, verifies=True)
    entries = [Entry("other", 0, 3), Entry("drafttrace-one", 3, 6, 1)]
    recorder.begin_frame("target", Phase.VERIFY, entries, position=torch.arange(6), token_id=ids[:6])
    with torch.no_grad():
        graph(ids)
    assert recorder.take_static("target/verify", padded=8)
    rows = recorder.frame.spans[0].rows  # type: ignore[union-attr]
    recorder.end_frame(graph=True, padded_rows=8)
    assert torch.equal(rows.parts["last"].tensor, hidden[3:6])
    assert {part.source for part in rows.parts.values()} == {1}
    assert (rows.graph, rows.live_rows, rows.padded_rows) == (True, 6, 8)


def test_sizes_share_the_buffer_of_the_largest() -> None:
    taps = StaticTaps(10_000)
    assert taps.write("s", "last", torch.ones(8, 4)) and taps.write("s", "last", torch.full((2, 4), 2.0))
    assert taps.nbytes == 8 * 4 * 4
    assert taps.read("s", "last", 2).unique().tolist() == [2.0]  # type: ignore[union-attr]
    assert taps.read("s", "last", 5).shape == (5, 4)  # type: ignore[union-attr]
    assert taps.read("s", "last", 9) is None and taps.read("s", "last", 3, padded=4) is None
    assert taps.read("other", "last", 1) is None


def test_a_graph_captured_before_a_larger_one_keeps_its_buffer() -> None:
    taps = StaticTaps(10_000)
    taps.write("s", "last", torch.ones(2, 4))
    taps.write("s", "last", torch.full((8, 4), 3.0))
    assert taps.read("s", "last", 2, padded=2).unique().tolist() == [1.0]  # type: ignore[union-attr]


def test_a_tap_beyond_the_limit_is_not_graph_safe_and_nothing_breaks() -> None:
    taps = StaticTaps(100)
    assert not taps.write("s", "last", torch.ones(8, 4))
    assert taps.read("s", "last", 8) is None and list(taps.names("s")) == []


def test_a_prefill_graph_keeps_the_first_rows_of_a_sweep() -> None:
    taps = StaticTaps(10_000)
    taps.write("target/prefill", "boundary/2", torch.arange(40.0).reshape(10, 4), keep=3)
    assert taps.read("target/prefill", "boundary/2", 9).shape == (3, 4)  # type: ignore[union-attr]


def test_an_idle_recorder_has_no_hook_on_any_module(tmp_path: Path) -> None:
    """A hook costs microseconds at every call of its module, whether or not it does anything."""
    recorder = recorder_of(tmp_path)
    target = Target()
    taps = attach.Taps(recorder, "target")
    taps.target(target, 4)
    assert not _hooked(target)
    taps.attach()
    taps.attach()  # twice is once
    assert len(_hooked(target)) == 3  # embedding, norm, logits processor
    taps.attach(sweep=False)
    assert (
        len(_hooked(target)) == 2
    )  # a sweep that is over costs nothing more: no hook on the norm (and on the layers)
    taps.attach(sweep=True)
    assert len(_hooked(target)) == 3
    taps.detach()
    assert not _hooked(target)


def test_hooks_go_on_with_a_traced_request_and_off_with_it(tmp_path: Path) -> None:
    """To put them on and off at every step took as long as a small model's round."""
    pytest.importorskip("sglang")
    from drafttrace.hooks.sglang_engine.runtime import SchedulerHooks

    store = Store(tmp_path)
    store.create()
    store.ask("one", {"boundary_rows": 2})
    hooks = SchedulerHooks(Settings(tmp_path), store, "0.5.23")
    hooks._known = recorder_of(tmp_path)._facts()
    hooks.recorder.starting = False
    target = Target()
    taps = hooks.taps["target"] = attach.Taps(hooks.recorder, "target")
    taps.target(target, 4)
    request = SimpleNamespace(
        rid="drafttrace-one",
        origin_input_ids=[5, 6],
        output_ids=[7],
        finished_reason=None,
        sampling_params=None,
        finished=lambda: False,
    )
    batch = SimpleNamespace(reqs=[request], forward_mode=SimpleNamespace(is_decode=lambda: False))
    seen: list[int] = []

    def step(*args: Any) -> None:
        hooks.recorder.begin_frame(
            "target", Phase.PREFILL, [Entry(request.rid, 0, 2)], position=torch.arange(2), token_id=torch.arange(2)
        )
        hooks.recorder.end_frame()
        seen.append(len(_hooked(target)))

    for _ in range(2):
        hooks.run_batch(step, (None, batch), {})
        hooks.process_batch_result(None, None, batch, None)
    assert seen == [3, 2] and len(_hooked(target)) == 2  # the second step is no part of the sweep any more
    request.finished = lambda: True
    hooks.process_batch_result(None, None, batch, None)
    assert not hooks.recorder.sessions and not _hooked(target) and hooks.recorder.errors == 0
    hooks.recorder.thread.close()


def test_an_idle_recorder_does_next_to_nothing_in_a_round(tmp_path: Path) -> None:
    """Every hook of one round of eight untraced requests: function calls are counted, since times are the machine's."""
    pytest.importorskip("sglang")
    from drafttrace.hooks.sglang_engine.runtime import SchedulerHooks
    from drafttrace.hooks.sglang_engine.versions import SCHEDULER_HOOKS

    hooks = SchedulerHooks(Settings(tmp_path), Store(tmp_path), "0.5.23")
    hooks.recorder.starting = False
    found = {spec.name: hooks.hook(spec) for spec in SCHEDULER_HOOKS}
    batch = SimpleNamespace(reqs=[SimpleNamespace(rid=f"{number:032x}") for number in range(8)])
    calls = collections.Counter[str]()

    def engine(*args: Any) -> None:
        pass

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[event] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found["run_batch"](engine, None, batch)
        for _ in range(4):  # two draft steps, the target, draft extend
            found["forward"](engine, None, batch)
        found["draft_forward"](engine, None, batch)
        found["verify"](engine, None, batch)
        found["process_batch_result"](None, None, batch, None)
    finally:
        sys.setprofile(None)
    assert hooks.recorder.errors == 0 and not hooks.recorder.active
    assert calls["call"] <= 28  # seven of them the engine's own, two for each hook
    assert calls["c_call"] <= 14  # eight of them look at a request's id


def _hooked(model: torch.nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if module._forward_hooks or module._forward_pre_hooks]
