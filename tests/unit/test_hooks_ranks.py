"""Several processes of one server and one trace: other ranks, later stages, and an earlier trace of the same name."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from test_hooks_recorder import RID, N, build, facts, finish, prefill, trace_of, verify_round

from drafttrace.hooks.config import Settings
from drafttrace.hooks.options import TapOptions
from drafttrace.hooks.place import Place
from drafttrace.hooks.plan import layout_of
from drafttrace.hooks.recorder import Recorder
from drafttrace.hooks.sglang_engine import status
from drafttrace.hooks.sglang_engine.facts import layers_held
from drafttrace.hooks.store import Store

PROMPT, TEXT = [1, 2, 3], [1, 2, 3, 4]


def ranks(store: Store, **settings: Any) -> tuple[Recorder, Recorder]:
    """Both ranks of a server; their files are written by threads, so that this process can break what writes."""
    made = []
    for rank in (0, 1):
        wanted = Settings(store.directory, writer_process=False, **settings)
        made.append(Recorder(wanted, store, facts, place=Place(rank, 2)))
        made[-1].starting = False
    return made[0], made[1]


def record(both: tuple[Recorder, ...], rid: str = RID) -> None:
    """One request on both; rank 1 ends first, and rank 0 then finds its report."""
    for recorder in reversed(both):
        prefill(recorder, PROMPT, rid)
        finish(recorder, TEXT, 3, rid)


def test_an_id_of_64_characters_ends_no_ranks_writer(store: Store) -> None:
    """Its name for the rank was too long: ValueError in the writer thread's own error handling, which ended it for good."""
    both = ranks(store, all_ranks=True)
    name = "z" * 64
    for trace_id in (name, "after"):
        store.ask(trace_id, {})
        record(both, f"drafttrace-{trace_id}")
        assert trace_of(store, trace_id).complete and trace_of(store, f"{trace_id}_rank1").complete
    assert both[0].errors == both[1].errors == 0


def test_an_error_in_the_error_handling_ends_no_writer_thread(store: Store) -> None:
    recorder = build(store)

    class Hopeless:
        def run(self) -> None:
            raise ValueError("the first")

        def fail(self, error: BaseException) -> None:
            raise ValueError("the second")

    recorder.thread.put(Hopeless(), 0)
    store.ask("one", {})
    prefill(recorder, PROMPT)
    finish(recorder, TEXT, 3)
    assert trace_of(store).complete
    assert recorder.errors == 1 and recorder.last_error == "the writer thread: the second"
    recorder.thread.close()


def test_a_state_that_cannot_be_written_is_counted_and_the_next_trace_is_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = build(store)
    store.ask("one", {})
    with monkeypatch.context() as patch:

        def broken(*args: Any) -> None:
            raise ValueError("no state")

        patch.setattr("drafttrace.hooks.session.write_json", broken)
        prefill(recorder, PROMPT)
        finish(recorder, TEXT, 3)
    assert recorder.errors > 0 and "no state" in (recorder.last_error or "")
    store.ask("two", {})
    prefill(recorder, PROMPT, "drafttrace-two")
    finish(recorder, TEXT, 3, "drafttrace-two")
    assert store.state("two").state == "complete"  # type: ignore[union-attr]
    recorder.thread.close()


def test_a_rank_that_lost_its_file_is_told_by_the_first_ranks_trace(store: Store) -> None:
    """It said complete, without a file of rank 1."""
    both = ranks(store, all_ranks=True)
    store.ask("one", {})
    store.trace_path("one_rank1").mkdir()  # nothing can be written there
    record(both)
    state = store.state("one")
    assert state is not None and state.state == "incomplete" and "rank 1: writing failed" in (state.reason or "")
    assert not trace_of(store).complete and both[1].errors > 0


def test_a_deleted_trace_says_nothing_of_the_next_one_of_its_name(store: Store) -> None:
    """The new trace got the old session's state: complete, with 0 bytes and 3,024 rows."""
    recorder = build(store)
    store.ask("one", {})
    prefill(recorder, PROMPT)
    assert recorder.thread.drain(10)
    store.delete("one")
    time.sleep(0.01)
    store.ask("one", {})
    verify_round(recorder, at=3, accepted=1)
    finish(recorder, TEXT, 3)
    state = store.state("one")
    assert state is not None and (state.state, state.rows, state.bytes) == ("waiting", 0, 0)
    prefill(recorder, [7, 8])
    finish(recorder, [7, 8, 9], 2)
    assert trace_of(store).complete and trace_of(store).tokens.tolist() == [7, 8, 9]
    recorder.thread.close()


def test_a_deleted_trace_that_had_no_file_yet_does_not_take_the_next_ones(store: Store) -> None:
    recorder, other = ranks(store)
    store.ask("one", {})
    recorder.open_batch({RID: PROMPT}, verifies=False)
    recorder.close_batch()
    prefill(other, PROMPT)
    store.delete("one")
    time.sleep(0.01)
    store.ask("one", {})
    finish(other, TEXT, 3)
    finish(recorder, TEXT, 3)
    assert store.state("one").state == "waiting"  # type: ignore[union-attr]
    assert sorted(path.name for path in store.directory.glob("one*")) == ["one.request.json"]


def test_hashes_of_an_earlier_trace_are_not_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drafttrace.hooks.session._RANKS_WAIT", 0.05)
    both = ranks(store)
    store.ask("one", {})
    prefill(both[1], PROMPT)
    finish(both[1], TEXT, 3)
    request = json.loads(store.request_path("one").read_text())
    store.request_path("one").write_text(json.dumps({**request, "created": request["created"] + 1}))
    prefill(both[0], PROMPT)
    finish(both[0], TEXT, 3)
    assert "rank 1 did not report" in (store.state("one").reason or "")  # type: ignore[union-attr]


def test_a_later_stage_of_the_pipeline_leaves_the_first_ones_file_alone(store: Store) -> None:
    """Both took themselves for rank 0 of one file, and the trace blamed a tap."""
    gap = "with --pp-size 2 only the first of 2 pipeline stages is recorded"
    made = []
    for stage in (1, 0):
        place = Place(stage=stage, stages=2, gap=gap)
        held = dataclasses.replace(facts(), held=2)
        made.append(Recorder(Settings(store.directory), store, lambda held=held: held, place=place))  # type: ignore[misc]
        made[-1].starting = False
    store.ask("one", {})
    for recorder in made:
        prefill(recorder, PROMPT)
        recorder.abandon("drafttrace-two", "nothing")
        finish(recorder, TEXT, 3)
        recorder.thread.close()
    trace = trace_of(store)
    assert store.state("one").reason == gap and not trace.complete  # type: ignore[union-attr]
    assert sorted(trace.boundaries) == [0, 1] and not trace.slots and trace.last is None and trace.draft is None
    place = trace.about["request"]["place"]
    assert (place["stage"], place["stages"], place["rank"]) == (0, 2, 0)
    assert all(probe.fired == probe.expected for probe in trace.probes)


def test_context_parallelism_is_refused_in_words(store: Store) -> None:
    refusal = "with context parallelism of 2 ranks each holds other rows of a prompt"
    for share in (0, 1):
        recorder = Recorder(
            Settings(store.directory), store, facts, place=Place(share=share, shares=2, refusal=refusal)
        )
        recorder.starting = False
        if not share:
            store.ask("one", {})
        prefill(recorder, PROMPT)
        assert not recorder.sessions and not store.trace_path("one").exists()
    assert store.state("one").reason == refusal  # type: ignore[union-attr]


def test_what_a_first_stage_holds() -> None:
    layout = layout_of(dataclasses.replace(facts(), held=N - 1), TapOptions.parse({"boundaries": "all"}))
    assert [spec.name for spec in layout.target] == ["embed", *(f"boundary/{k}" for k in range(N - 1))]
    assert not layout.draft
    import torch

    def model(end: int | None) -> Any:
        backbone = torch.nn.Module()
        backbone.embed_tokens, backbone.layers = torch.nn.Identity(), torch.nn.ModuleList([torch.nn.Identity()] * 4)
        if end is not None:
            backbone.end_layer = end  # type: ignore[assignment]
        return backbone

    assert [layers_held(model(end)) for end in (2, 4, None)] == [2, None, None]


def test_the_health_route_tells_places_and_gaps() -> None:
    here = {"role": "scheduler", "hooks": [], "taps": ["target/embed"], "target": {"n": 4}, "rank": 0}
    said = [
        {**here, "records": False, "place": Place(stage=1, stages=2).to_json(), "target": {"n": 9}, "gap": "a gap"},
        {**here, "records": True, "place": Place(stage=0, stages=2).to_json(), "gap": "a gap"},
    ]
    told = status.health(None, "0.5.23", None, [], said)
    assert told["supported"] and told["ranks"] == [0] and told["gap"] == "a gap" and told["target"] == {"n": 4}
    assert [place["stage"] for place in told["places"]] == [1, 0]
    off = status.health(None, "0.5.23", None, [], [{**here, "reason": "context parallelism"}])
    assert (off["supported"], off["reason"]) == (False, "context parallelism")


def test_places_are_read_from_sglangs_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    from drafttrace.hooks.sglang_engine import facts as facts_of

    groups = {
        "attn_tp_rank": 1,
        "attn_tp_size": 2,
        "pp_rank": 1,
        "pp_size": 2,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
    }
    parallel = SimpleNamespace(**groups, dp_rank=None, num_dp_ranks=1)
    # SGLang's own module takes seconds to import; the live tests read the real one.
    stand_in = SimpleNamespace(get_parallel=lambda: parallel)
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", stand_in)  # type: ignore[arg-type]
    place = facts_of.place()
    assert (place.rank, place.ranks, place.stage, place.stages, place.records) == (1, 2, 1, 2, False)
    assert place.gap is not None and "--pp-size 1" in place.gap and len(place.gap) < 250
    parallel.pp_rank, parallel.pp_size, parallel.attn_cp_size, parallel.dp_rank, parallel.num_dp_ranks = (
        0,
        1,
        2,
        3,
        4,
    )
    place = facts_of.place()
    assert place.gap is None and place.refusal is not None and (place.replica, place.replicas) == (3, 4)
