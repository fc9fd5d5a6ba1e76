"""Rows keep their identity in chunks, prefix hits, crowds, streams, samples and aborts."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import recording
from sglang_cpu.arguments import cpu_args

from drafttrace.tracer.capture import Phase
from drafttrace.tracer.trace.reader import read_rows

pytestmark = pytest.mark.live

CHUNK = 32


@pytest.fixture
def traced(start_server: Callable[..., Any], pairs: Any) -> Any:
    pair = pairs["tiny-llama"]
    args = cpu_args(pair.target, pair.draft, chunked_prefill_size=CHUNK, max_running_requests=16)
    return start_server(args)


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(5, 250), k=length)


def stream(traced: Any, body: dict[str, Any]) -> Any:
    """An open streaming answer of /generate."""
    request = urllib.request.Request(
        traced.url + "/generate",
        json.dumps({**body, "stream": True}).encode(),
        {"Content-Type": "application/json"},
    )
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120)


def test_a_prompt_longer_than_a_chunk_has_all_its_rows(traced: Any) -> None:
    ids = prompt(1, 3 * CHUNK + 5)
    made = recording.record(traced, ids, max_new_tokens=8, ignore_eos=True)
    assert made.state["state"] == "complete", made.state
    recording.assert_text_is_reproduced(made.trace)
    recording.assert_draft_got_what_the_target_gave(made.trace)
    prefill = made.trace.table.phase == Phase.PREFILL
    assert made.trace.table.position[prefill].tolist() == list(range(len(ids)))
    assert len(np.unique(made.trace.table.frame[prefill])) >= 4
    # The draft's ids are the target's moved by one, across the chunks' seams too.
    draft = made.trace.draft.table  # type: ignore[union-attr]
    extend = draft.phase == Phase.DRAFT_EXTEND_PREFILL
    assert draft.token_id[extend].tolist() == [*ids[1:], made.answer["output_ids"][0]]


def test_a_prefix_hit_is_a_gap_with_a_reason(traced: Any) -> None:
    ids = prompt(2, 24)
    first = recording.record(traced, ids, extra_key="shared", max_new_tokens=4, ignore_eos=True)
    second = recording.record(traced, ids, extra_key="shared", max_new_tokens=4, ignore_eos=True)
    cached = second.answer["meta_info"]["cached_tokens"]
    assert first.answer["meta_info"]["cached_tokens"] == 0 < cached < len(ids)
    trace, request = second.trace, second.trace.about["request"]
    assert second.state["state"] == "complete" and request["cached_prefix"] == cached
    assert trace.table.position.min() == cached
    gap = [event for event in request["events"] if event["event"] == "prefix_gap"]
    assert len(gap) == 1 and gap[0]["rows"] == cached and gap[0]["reason"]
    # The rows that exist are those of the cold request.
    rows = np.where(trace.table.phase == Phase.PREFILL)[0]
    cold = first.trace.table
    same = [
        int(np.where((cold.phase == Phase.PREFILL) & (cold.position == p))[0][0])
        for p in trace.table.position[rows]
    ]
    close = recording.cosine(trace.slots[0].rows.floats()[rows], first.trace.slots[0].rows.floats()[same])
    assert close.min() > 0.995


def test_traced_requests_in_a_crowd_hold_their_own_rows(traced: Any) -> None:
    """64 requests of mixed lengths at once, 8 of them traced: each as if it had been alone."""
    chooser = random.Random(3)
    prompts = [prompt(100 + i, chooser.randint(6, 60)) for i in range(64)]
    watched = list(range(0, 64, 8))
    options: dict[str, Any] = {"max_new_tokens": 10, "ignore_eos": True}
    alone = {i: recording.record(traced, prompts[i], **options) for i in watched}
    again = recording.record(traced, prompts[0], **options)

    def job(i: int) -> Callable[[], Any]:
        if i in watched:
            return lambda: recording.record(traced, prompts[i], **options)
        return lambda: traced.server.generate(input_ids=prompts[i], extra_key=f"crowd-{i}", **options)

    answers = recording.together([job(i) for i in range(64)])
    floor = _distances(alone[0].trace, again.trace)
    assert floor.max() == 0  # the server repeats itself bit for bit when it is alone
    shared = 0
    for i in watched:
        crowd = answers[i]
        assert crowd.state["state"] == "complete", crowd.state
        recording.assert_text_is_reproduced(crowd.trace)
        recording.assert_draft_got_what_the_target_gave(crowd.trace)
        live = _field(crowd.path, "live_rows")
        shared += int((live > crowd.trace.about["request"]["prompt_tokens"]).sum() > 0)
        # Other batch shapes round differently (bf16 has 8 bits): noise, and far from any other request.
        assert np.median(_distances(alone[i].trace, crowd.trace)) < 0.02
        _assert_nearest_is_its_own(i, crowd.trace, {j: alone[j].trace for j in watched})
    assert shared >= 4  # they really ran beside others


def _field(path: Any, name: str) -> Any:
    return read_rows(path, "target")[name]


def _prefill(trace: Any) -> tuple[Any, recording.Floats]:
    rows = np.where(trace.table.phase == Phase.PREFILL)[0]
    order = rows[np.argsort(trace.table.position[rows], kind="stable")]
    return order, recording.packed_slots(trace)[order]


def _distances(left: Any, right: Any) -> Any:
    """Relative L2 of the prompt's rows of two recordings of one prompt."""
    a, b = _prefill(left)[1], _prefill(right)[1]
    assert a.shape == b.shape
    return np.linalg.norm(a - b, axis=1) / np.linalg.norm(a, axis=1)


def _assert_nearest_is_its_own(i: int, crowd: Any, alone: dict[int, Any]) -> None:
    """For every row, the nearest row of all requests at that position is that of the request itself."""
    rows, mine = _prefill(crowd)
    position = crowd.table.position[rows]
    far = np.full(len(rows), np.inf)
    for j, other in alone.items():
        if j == i or len(_prefill(other)[0]) == 0:
            continue
        theirs = _prefill(other)[1]
        for at, row in enumerate(mine):
            if position[at] == 0:
                continue  # one token without a past: two requests may share it
            far[at] = min(far[at], float(np.linalg.norm(theirs - row, axis=1).min()))
    own = np.linalg.norm(mine - _prefill(alone[i])[1], axis=1)
    assert (own < far)[position > 0].all()


def test_a_streamed_request_is_traced_like_any_other(traced: Any) -> None:
    ids = prompt(4, 12)
    asked = recording.start(traced.server)
    body = {"input_ids": ids, "rid": asked["rid"], "extra_key": asked["id"]}
    body["sampling_params"] = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    with stream(traced, body) as answer:
        assert b"[DONE]" in answer.read()
    made = recording.collect(traced, asked["id"])
    assert made.state["state"] == "complete" and made.trace.about["request"]["stream"] is True
    recording.assert_text_is_reproduced(made.trace)


def test_a_client_that_goes_away_leaves_an_incomplete_trace_and_a_healthy_server(traced: Any) -> None:
    asked = recording.start(traced.server)
    body = {"input_ids": prompt(5, 12), "rid": asked["rid"], "extra_key": asked["id"]}
    body["sampling_params"] = {"max_new_tokens": 900, "temperature": 0, "ignore_eos": True}
    answer = stream(traced, body)
    answer.readline()
    answer.close()
    made = recording.collect(traced, asked["id"])
    assert made.state["state"] == "incomplete" and "abort" in made.state["reason"]
    assert len(made.trace.table) >= 12 and not made.trace.complete
    assert recording.record(traced, prompt(6, 8), max_new_tokens=4).state["state"] == "complete"


def test_every_sample_of_n_has_a_trace_of_its_own(traced: Any) -> None:
    asked = recording.start(traced.server)
    answers = traced.server.generate(
        input_ids=[prompt(7, 16)],
        rid=asked["rid"],
        extra_key=[asked["id"]],
        temperature=1.0,
        max_new_tokens=6,
        ignore_eos=True,
        sampling={"n": 2},
    )
    assert len(answers) == 2
    whole = recording.wait(traced.server, asked["id"])
    assert whole["state"] == "incomplete" and f"{asked['id']}_0" in whole["reason"]
    texts = {tuple(answer["output_ids"]) for answer in answers}
    for name in (f"{asked['id']}_0", f"{asked['id']}_0_1"):
        part = recording.collect(traced, name)
        assert part.state["state"] == "complete", part.state
        assert tuple(part.trace.tokens[16:].tolist()) in texts
        assert part.trace.about["request"]["cached_prefix"] > 0
    # The prompt's own rows: SGLang runs it once, alone, before the samples.
    prefix = recording.collect(traced, f"{asked['id']}_0_prefix")
    assert prefix.trace.table.position.tolist() == list(range(16))


def test_a_batch_of_prompts_under_one_id_is_one_trace_each(traced: Any) -> None:
    asked = recording.start(traced.server)
    prompts = [prompt(20 + i, 8 + i) for i in range(3)]
    traced.server.generate(input_ids=prompts, rid=asked["rid"], max_new_tokens=4, ignore_eos=True)
    for i, ids in enumerate(prompts):
        part = recording.collect(traced, f"{asked['id']}_{i}")
        assert part.trace.tokens[: len(ids)].tolist() == ids
        recording.assert_text_is_reproduced(part.trace)


def test_the_client_chooses_the_taps(traced: Any) -> None:
    taps = {"boundaries": "all", "draft": False, "embed": False}
    made = recording.record(traced, prompt(8, 10), taps=taps, max_new_tokens=6, ignore_eos=True)
    assert made.state["state"] == "complete"
    n = made.trace.about["wiring"]["n"]
    assert {k: len(rows) for k, rows in made.trace.boundaries.items()} == dict.fromkeys(
        range(n + 1), len(made.trace.table)
    )
    assert made.trace.embed is None
    assert made.trace.draft is None or not made.trace.draft.tensors


def test_ids_and_files_over_http(traced: Any) -> None:
    made = recording.record(traced, prompt(9, 6), max_new_tokens=3)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{traced.url}/drafttrace/traces/{made.id}/file", timeout=30) as answer:
        assert answer.read() == made.path.read_bytes()
    listed = {trace["id"]: trace for trace in traced.server.get("/drafttrace/traces")["traces"]}
    assert listed[made.id]["state"] == "complete" and listed[made.id]["bytes"] == made.path.stat().st_size
    for name in ("..%2f..%2fetc%2fpasswd", "%2e%2e", "x" * 65):
        with pytest.raises(RuntimeError, match=r"answered 4\d\d"):
            traced.server.get(f"/drafttrace/traces/{name}/file")
    with pytest.raises(RuntimeError, match="409"):
        recording.start(traced.server, id=made.id)
    opener.open(urllib.request.Request(f"{traced.url}/drafttrace/traces/{made.id}", method="DELETE"), timeout=30)
    assert not made.path.exists()
    with pytest.raises(RuntimeError, match="404"):
        traced.server.get(f"/drafttrace/traces/{made.id}")


def test_health_counts_what_fired(traced: Any) -> None:
    before = _fired(traced)
    recording.record(traced, prompt(10, 6), max_new_tokens=3)
    time.sleep(0.3)
    health = traced.server.get("/drafttrace/health")
    assert health["supported"] and health["errors"] == {"count": 0, "last": None}
    assert all(hook["applied"] for hook in health["hooks"])
    after = _fired(traced)
    for name in ("run_batch", "forward", "process_batch_result"):
        assert after[name] > before.get(name, 0)


def _fired(traced: Any) -> dict[str, int]:
    hooks: Sequence[dict[str, Any]] = traced.server.get("/drafttrace/health")["hooks"]
    return {hook["name"]: hook["fired"] for hook in hooks}
