"""Trees, several ranks, retraction, embeddings, and the wiring that ``serve --wiring`` puts in force."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recording
from sglang_cpu.arguments import cpu_args
from sglang_cpu.server import ServerDied

from drafttrace.tracer.capture import Accepted, Phase
from drafttrace.tracer.client import Client, Prompt, Sampling
from drafttrace.tracer.commands.record import record_one
from drafttrace.tracer.trace.reader import read_ranks, read_trace

pytestmark = pytest.mark.live

PROMPT = list(range(9, 49))


@pytest.fixture
def tree(start_server: Callable[..., Any], pairs: Any) -> Any:
    """Trees of two branches, and a server that takes running requests back now and then."""
    pair = pairs["tiny-llama"]
    args = cpu_args(pair.target, pair.draft, topk=2, num_draft_tokens=6, extra=["--disable-radix-cache"])
    return start_server(args, env={"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "9"})


def test_a_trees_accepted_path_is_the_text(tree: Any) -> None:
    made = recording.record(tree, PROMPT, max_new_tokens=12, ignore_eos=True, extra_key=None)
    trace = made.trace
    assert made.state["state"] == "complete", made.state
    verify = trace.table.phase == Phase.VERIFY
    counts = trace.about["request"]["accept_counts"]
    for round_, count in enumerate(counts):
        rows = verify & (trace.table.round == round_)
        assert rows.sum() == 6
        kept = rows & (trace.table.accepted == Accepted.ACCEPTED)
        last = round_ == len(counts) - 1  # the output's limit may cut the last round
        assert kept.sum() == count or (last and kept.sum() < count)
        # A path: one row per depth.
        assert len(np.unique(trace.table.position[kept])) == kept.sum()
    draft = trace.draft.table  # type: ignore[union-attr]
    steps = draft.phase == Phase.DRAFT_DECODE
    assert set(draft.accepted[steps].tolist()) == {int(Accepted.UNKNOWN)}
    assert steps.sum() == 2 * 2 * len(counts)  # two branches, two steps


def test_a_retracted_request_says_so_and_loses_nothing(tree: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "extra_key": None}
    others = [lambda k=k: tree.server.generate(input_ids=[k] * 20, **_plain(options)) for k in range(11, 14)]
    for attempt in range(40):
        # The server takes back the request with the fewest new tokens: one that comes a little later than the others. How
        # much later is still in time depends on the machine.
        pause = 0.2 * (attempt % 6)
        made = recording.together([lambda p=pause: _after(p, tree, options), *others])[0]
        if made.answer["meta_info"]["num_retractions"]:
            break
    request = made.trace.about["request"]
    assert made.state["state"] == "complete", made.state
    retracted = [event for event in request["events"] if event["event"] == "retracted"]
    assert len(retracted) == request["retractions"] == made.answer["meta_info"]["num_retractions"] > 0
    # Prompt and output so far are computed once more: every position is there, some of them again.
    rows = recording.accepted(made.trace)
    position = made.trace.table.position[rows]
    assert set(position.tolist()) >= set(range(len(made.trace.tokens) - 1))
    assert np.array_equal(made.trace.table.token_id[rows], made.trace.tokens[position])


def _after(seconds: float, tree: Any, options: dict[str, Any]) -> Any:
    time.sleep(seconds)
    return recording.record(tree, PROMPT, **options)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "extra_key"}


def test_embeddings_in_place_of_ids_are_refused(tree: Any, pairs: Any) -> None:
    width = tree.server.get("/drafttrace/health")["target"]["hidden_size"]
    asked = recording.start(tree.server)
    body = {"input_embeds": [[0.01] * width] * 5, "rid": asked["rid"]}
    tree.server.post("/generate", {**body, "sampling_params": {"max_new_tokens": 4, "temperature": 0}})
    state = recording.wait(tree.server, asked["id"])
    assert state["state"] == "incomplete" and "embeddings in place of token ids" in state["reason"]


def test_ranks_report_hashes_of_what_they_should_hold_alike(
    start_server: Callable[..., Any], pairs: Any, tmp_path: Path
) -> None:
    pair = pairs["tiny-llama"]
    traced = start_server(cpu_args(pair.target, pair.draft, tp=2), serve=("--all-ranks",))
    made = recording.record(traced, PROMPT, max_new_tokens=12, ignore_eos=True)
    assert made.state["state"] == "complete", made.state
    first, second = read_ranks(made.path)
    assert (first.rank, second.rank) == (0, 1)
    assert np.array_equal(first.rows, second.rows) and len(first.rows) == made.state["rows"]
    assert np.array_equal(first.hashes, second.hashes)
    assert (first.hashes[:, first.names.index("last")] != 0).sum() == len(made.trace.table)
    # With --all-ranks the other rank has a trace of its own, with the same tensors.
    other = recording.collect(traced, f"{made.id}_rank1")
    assert other.state["state"] == "complete", other.state
    assert np.array_equal(recording.packed_slots(other.trace), recording.packed_slots(made.trace))
    health = traced.server.get("/drafttrace/health")
    assert sorted(health["ranks"]) == [0, 1] and health["all_ranks"] and health["gap"] is None
    # The longest id, and two samples: every part has a name on every rank, and no writer ends.
    name = "z" * 64
    asked = recording.start(traced.server, id=name)
    options: dict[str, Any] = {"max_new_tokens": 4, "ignore_eos": True, "temperature": 1.0, "sampling": {"n": 2}}
    traced.server.generate(input_ids=[PROMPT], rid=asked["rid"], **options)
    for part in (f"{name}_0", f"{name}_0_1", f"{name}_0_1_rank1"):
        state = recording.collect(traced, part).state
        assert state["state"] == "complete", state
    # `record` brings the files of both, and leaves none of them on the server.
    before = {trace["id"] for trace in traced.server.get("/drafttrace/traces")["traces"]}
    out = tmp_path / "t.h5"
    prompt = Prompt(input_ids=tuple(PROMPT))
    got = record_one(Client(traced.url), prompt, Sampling(max_new_tokens=4), out, taps={}, quiet=True, ranks=True)
    assert got.complete and got.ranks == (tmp_path / "t_rank1.h5",)
    assert np.array_equal(*(recording.packed_slots(read_trace(path)) for path in (out, *got.ranks)))
    assert {trace["id"] for trace in traced.server.get("/drafttrace/traces")["traces"]} == before
    assert traced.server.get("/drafttrace/health")["errors"] == {"count": 0, "last": None}


def test_a_pipeline_has_one_trace_which_says_what_it_holds(start_server: Callable[..., Any], pairs: Any) -> None:
    """Both stages took themselves for the first rank of one file, and the trace blamed a tap."""
    args = cpu_args(pairs["tiny-llama"].target, extra=["--pp-size", "2"])
    traced = start_server(args, env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"})
    made = recording.record(traced, PROMPT, taps={"boundaries": "all"}, max_new_tokens=5, ignore_eos=True)
    assert made.state["state"] == "incomplete" and "--pp-size 1 for a whole trace" in made.state["reason"]
    place, n = made.trace.about["request"]["place"], made.trace.about["wiring"]["n"]
    assert (place["stage"], place["stages"]) == (0, 2)
    assert (
        sorted(made.trace.boundaries) == list(range(max(made.trace.boundaries) + 1))
        and n not in made.trace.boundaries
    )
    assert all(probe.fired == probe.expected for probe in made.trace.probes)
    assert made.trace.embed is not None and len(made.trace.embed.rows) == len(made.trace.table) >= len(PROMPT)
    health = traced.server.get("/drafttrace/health")
    assert health["ranks"] == [0] and "--pp-size" in health["gap"] and health["errors"]["count"] == 0
    assert sorted(place["stage"] for place in health["places"]) == [0, 1]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-kimi"])
def test_serve_wiring_hands_over_what_was_asked_for(
    start_server: Callable[..., Any], pairs: Any, name: str
) -> None:
    pair = pairs[name]
    # The embedding, no ascending order, and the stream after the last layer, which no class captures by itself.
    n = json.loads((pair.target / "config.json").read_text())["num_hidden_layers"]
    traced = start_server(cpu_args(pair.target, pair.draft), serve=("--wiring", f"B0,B{n},B5"))
    made = recording.record(traced, PROMPT, max_new_tokens=8, ignore_eos=True)
    assert made.state["state"] == "complete", made.state
    wiring = made.trace.about["wiring"]
    assert wiring["source"] == "override" and wiring["boundaries"] == [0, n, 5]
    for slot, boundary in zip(made.trace.slots, (0, n, 5), strict=True):
        swept = made.trace.boundaries[boundary]
        assert np.array_equal(slot.rows.floats(0, len(swept)), swept.floats())
    assert made.trace.embed is not None
    assert np.array_equal(made.trace.slots[0].rows.floats(), made.trace.embed.rows.floats())
    recording.assert_draft_got_what_the_target_gave(made.trace)


def test_a_server_without_speculation_can_be_recorded_too(start_server: Callable[..., Any], pairs: Any) -> None:
    """What the reference side needs: the target's own states, without any draft."""
    traced = start_server(cpu_args(pairs["tiny-llama"].target))
    made = recording.record(traced, PROMPT, max_new_tokens=5, ignore_eos=True)
    assert made.state["state"] == "complete", made.state
    recording.assert_text_is_reproduced(made.trace)
    assert set(made.trace.table.phase.tolist()) == {int(Phase.PREFILL), int(Phase.DECODE)}
    assert not made.trace.slots and made.trace.last is not None and made.trace.boundaries


def test_a_wrong_wiring_is_refused_before_serving(start_server: Callable[..., Any], pairs: Any) -> None:
    pair = pairs["tiny-llama"]
    with pytest.raises(ServerDied, match="gives 2 slots"):
        start_server(cpu_args(pair.target, pair.draft), serve=("--wiring", "B0,B3"))


def test_the_server_itself_refuses_a_wrong_wiring(
    start_server: Callable[..., Any], pairs: Any, tmp_path: Path
) -> None:
    """`serve` reads folders only; with models from a hub the loaded ones are the first to know."""
    pair = pairs["tiny-llama"]
    env = {"DRAFTTRACE": "1", "DRAFTTRACE_DIR": str(tmp_path), "DRAFTTRACE_WIRING": "0,3"}
    with pytest.raises(ServerDied, match="gives 2 slots"):
        start_server(cpu_args(pair.target, pair.draft), env=env, serve=None)
