"""Taps in real CUDA graphs. Skipped where there is no GPU; the make_fx tests stand in for it then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from graph_modules import VOCAB, Target, recorder_of, tapped

from drafttrace.hooks.frames import Batch
from drafttrace.hooks.recorder import Entry, Recorder
from drafttrace.tracer.capture import Phase

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine"),
]


def capture(recorder: Recorder, target: Target, rows: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of one verify pass over ``rows`` rows, and the ids that it reads."""
    ids = torch.zeros(rows, dtype=torch.long, device="cuda")
    recorder.scope = "target/verify"
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        target(ids)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        target(ids)
    return graph, ids


def test_two_sizes_share_buffers_and_padding_is_cut(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    target, _ = tapped(recorder, "cuda")
    large, large_ids = capture(recorder, target, 16)
    small, small_ids = capture(recorder, target, 4)
    recorder.starting = False
    for graph, ids, live in ((large, large_ids, 13), (small, small_ids, 3), (large, large_ids, 9)):
        ids.random_(0, VOCAB)
        graph.replay()
        with torch.no_grad():
            expected, aux = target.model(ids)
        read = recorder.static.read("target/verify", "last", live, padded=len(ids))
        assert read is not None and read.shape[0] == live
        assert torch.allclose(read, expected[:live], atol=1e-5)
        slot = recorder.static.read("target/verify", "aux/1", live, padded=len(ids))
        assert slot is not None and torch.allclose(slot, aux[1][:live], atol=1e-5)


def test_host_copies_survive_the_next_replay(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    target, _ = tapped(recorder, "cuda")
    graph, ids = capture(recorder, target, 8)
    recorder.starting = False
    recorder.store.ask("one", {"draft": False, "boundaries": "none"})
    kept: list[tuple[Batch, torch.Tensor]] = []
    for _ in range(20):  # copies of one replay run while the next one overwrites the buffers
        ids.random_(0, VOCAB)
        with torch.no_grad():
            expected = target.model(ids)[0][2:6].clone()
        recorder.open_batch({"drafttrace-one": [1]}, verifies=True)
        entries = [Entry("drafttrace-one", 2, 6)]
        recorder.begin_frame("target", Phase.VERIFY, entries, position=torch.arange(8).cuda(), token_id=ids)
        graph.replay()
        recorder.take_static("target/verify", padded=8)
        recorder.end_frame(graph=True, padded_rows=8)
        recorder.close_batch()
        kept.append((recorder.sessions["drafttrace-one"].pending[-1], expected))
    for batch, expected in kept:
        last = torch.from_numpy(batch.on_host().frames[0].parts["last"].array)
        assert torch.allclose(last, expected.cpu(), atol=1e-5)
