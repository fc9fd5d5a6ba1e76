"""The whole story on a real language model, with the commands that a user types."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recording
from sglang_cpu import cpu_args
from transformers import AutoTokenizer
from typed import compared, drafttrace, faults, recorded

from drafttrace.compare.align import plan
from drafttrace.compare.facts import VALUE
from drafttrace.compare.streams import Sides, locate_all
from drafttrace.compare.thresholds import DEFAULT
from drafttrace.tracer.capture import Phase, Slot
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.trace.reader import read_trace
from pairs.accept_length import accept_length_of
from pairs.smol.answers import prompt_ids
from pairs.smol.dump import RIGHT_IDS
from pairs.smol.prompts import held_out_prompts

pytestmark = [pytest.mark.real, pytest.mark.live]

Serve = Callable[[Path], Any]
LAYERS, STEPS = 30, 5


@pytest.fixture
def serve_smol(start_server: Callable[..., Any], smol: Any) -> Serve:
    """``serve_smol(draft)``: a server of the real pair."""
    return lambda draft: start_server(cpu_args(smol.target, draft, steps=STEPS, num_draft_tokens=STEPS + 1))


def test_the_incident_is_named_on_a_real_model(smol: Any, serve_smol: Serve, tmp_path: Path) -> None:
    """The embedding dropped and the slots moved: the config as its trainer left it."""
    trace = recorded(serve_smol(smol.draft).url, smol.dump, tmp_path / "t.h5")
    report = tmp_path / "report.md"
    result, code = compared(trace, smol.dump, "--md", report)
    assert code == 1 and result["verdict"] == "mismatch"
    assert faults(result)[0] == "slot-shift", faults(result)
    assert str(RIGHT_IDS) in result["findings"][0]["remedy"]
    assert result["left"]["wiring"] == ["B16", "B28", "B29"]
    assert "slot-shift" in report.read_text()


def test_the_remedy_matches_on_a_real_model(smol: Any, serve_smol: Serve, tmp_path: Path) -> None:
    trace = recorded(serve_smol(smol.right).url, smol.dump, tmp_path / "t.h5")
    result, code = compared(trace, smol.dump)
    assert code == 0 and result["verdict"] in ("match", "noise"), result["findings"]
    assert not faults(result) and "none" in [finding["id"] for finding in result["findings"]]
    for slot, boundary in zip(result["slots"], ("B0", "B16", "B28"), strict=True):
        assert slot["best_match"]["boundary"] == boundary and slot["best_match"]["margin"] > 1.5
        assert slot["cosine"]["p50"] >= 0.999
    # Row 0 is a hundred times longer than the others and carries most of any mean.
    norms = read_trace(trace).slots[2].rows.floats()
    norms = np.linalg.norm(norms, axis=-1)
    assert norms[0] > 20 * np.median(norms)


def test_the_trace_matches_what_transformers_computes(smol: Any, serve_smol: Serve, tmp_path: Path) -> None:
    """For people who kept no dump: ``reference`` from the trace, and every swept boundary is located where it belongs."""
    trace = recorded(serve_smol(smol.right).url, smol.dump, tmp_path / "t.h5")
    made = tmp_path / "reference.safetensors"
    done = drafttrace("reference", "--from", trace, "--wiring", "B0,B16,B28", "-o", made, "--quiet")
    assert done.returncode == 0, done.stderr
    result, code = compared(trace, made)
    assert code == 0, result["findings"]
    # All 31 boundaries by the product's own locator: each in the place of a slot, the reference's sweep as the atlas.
    read, computed = read_trace(trace), open_capture(str(made))
    assert sorted(read.boundaries) == list(range(LAYERS + 1)) == sorted(computed.boundaries)
    slots = tuple(Slot(f"boundary/{k}", rows, None, "the sweep") for k, rows in sorted(read.boundaries.items()))
    unnamed = replace(read, slots=slots, boundaries={}, embed=None, last=None)
    location = locate_all(plan(unnamed, computed), Sides.of(unnamed, computed), DEFAULT)
    assert location.atlas == "reference"
    assert [(s.boundary, s.by) for s in location.left] == [(k, VALUE) for k in range(LAYERS + 1)]


def test_draft_and_target_agree_bit_for_bit_on_a_real_model(smol: Any, serve_smol: Serve) -> None:
    traced = serve_smol(smol.right)
    one = recording.record(traced, _prompt(smol), max_new_tokens=48)
    assert one.state["state"] == "complete"
    recording.assert_text_is_reproduced(one.trace)
    recording.assert_draft_got_what_the_target_gave(one.trace)


def _prompt(smol: Any, number: int = 0) -> list[int]:
    return prompt_ids(AutoTokenizer.from_pretrained(smol.target), held_out_prompts(number + 1)[number])


def streamed(traced: Any, ids: list[int], *, max_new_tokens: int, **request: Any) -> list[dict[str, Any]]:
    """What ``/generate`` sends piece by piece for a greedy streaming request; every piece holds the whole text so far."""
    parameters = {"temperature": 0.0, "max_new_tokens": max_new_tokens}
    body = {"input_ids": ids, "sampling_params": parameters, "stream": True, **request}
    asked = urllib.request.Request(
        traced.url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=300) as answer:
        lines = [line.decode().strip() for line in answer]
    sent = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert sent.pop() == "[DONE]"
    return [json.loads(text) for text in sent]


def test_several_clients_and_a_stream_leave_the_trace_alone(smol: Any, serve_smol: Serve) -> None:
    """One of four streaming requests is traced: its prompt's rows are those of the same request alone."""
    traced = serve_smol(smol.right)
    prompts = [_prompt(smol, number) for number in range(4)]
    alone = recording.record(traced, prompts[0], max_new_tokens=24).trace
    asked = recording.start(traced.server)

    def client(number: int) -> list[dict[str, Any]]:
        mine = {"rid": asked["rid"], "extra_key": asked["id"]} if number == 0 else {"extra_key": f"other-{number}"}
        return streamed(traced, prompts[number], max_new_tokens=24, **mine)

    answers = recording.together([lambda number=number: client(number) for number in range(4)])
    for parts in answers:  # every client was told its answer bit by bit
        assert len(parts) > 2 and len(parts[0]["output_ids"]) < len(parts[-1]["output_ids"])
    busy = recording.collect(traced, asked["id"])
    assert busy.state["state"] == "complete" and busy.trace.about["request"]["stream"] is True
    recording.assert_draft_got_what_the_target_gave(busy.trace)
    for before, after in zip(alone.slots, busy.trace.slots, strict=True):
        one = before.rows.floats()[alone.table.phase == Phase.PREFILL]
        other = after.rows.floats()[busy.trace.table.phase == Phase.PREFILL]
        assert one.shape == other.shape
        # bf16 sums in another order when the batch is larger: alike to its last digits, and to no other row
        assert (recording.cosine(one[1:], other[1:]) > 0.999).all()


def test_chat_messages_go_through_the_models_own_template(smol: Any, serve_smol: Serve, tmp_path: Path) -> None:
    messages = tmp_path / "chat.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Name three colours."}]))
    out = tmp_path / "t.h5"
    url = serve_smol(smol.right).url
    done = drafttrace("record", "--url", url, "--messages", messages, "-o", out, "--max-new-tokens", "16")
    assert done.returncode == 0, done.stderr
    shown = drafttrace("inspect", out, "--target", smol.target, "--tokenizer", smol.target)
    assert shown.returncode == 0, shown.stderr
    assert "<|im_start|>" in shown.stdout and "colours" in shown.stdout


def test_replay_tells_the_wirings_apart_and_foretells_the_accept_length(
    smol: Any, serve_smol: Serve, tmp_path: Path
) -> None:
    """Accuracy of the wiring of training above the incident's; expected within 15 % of what the server did."""
    traced = serve_smol(smol.right)
    traces, rounds, tokens = [], 0, 0
    for number in range(6):
        one = recording.record(traced, _prompt(smol, number), max_new_tokens=96)
        traces.append(one.path)
        meta = one.answer["meta_info"]
        rounds, tokens = rounds + meta["spec_verify_ct"], tokens + meta["completion_tokens"] - 1
    observed = tokens / rounds
    from drafttrace.compare.replay.run import replay

    found = replay(
        [read_trace(path) for path in traces], smol.right, smol.target, wirings=[(16, 28, 0)], switches=False
    )
    scores = {row.wiring: row.score for row in found.wirings if row.score is not None}
    right = scores["[B0, B16, B28]"]
    assert right.top1 > scores["[B16, B28, B0]"].top1 + 0.1
    assert math.isclose(right.simulated, observed, rel_tol=0.15), (right.simulated, observed)
    assert math.isclose(right.expected, observed, rel_tol=0.15), (right.expected, observed)


def test_a_cached_system_prompt_is_no_fault_of_the_draft(smol: Any, serve_smol: Serve) -> None:
    """Any client's second request has its system message from the cache; the draft's layer was called faulty then."""
    from drafttrace.compare.replay.run import replay

    traced = serve_smol(smol.right)
    traced.server.generate(input_ids=_prompt(smol, 0), extra_key="shared", max_new_tokens=4)
    trace = recording.record(traced, _prompt(smol, 1), extra_key="shared", max_new_tokens=32).trace
    cached = trace.about["request"]["cached_prefix"]
    assert cached > 0 and trace.table.position.min() == cached
    found = replay(trace, smol.right, smol.target, switches=False)
    assert found.faults == () and found.absent_tokens == cached, found
    assert found.live is not None and found.live.parted is None
    assert {stage.tensor for stage in found.live.stages} == {"embed_in", "hidden_in", "fc_in", "fc_out"}


def accept_length(traced: Any, smol: Any, max_new_tokens: int) -> float:
    """Tokens after the first one per verify round, over 24 held-out prompts (as ``pairs.smol.accept`` counts them), eight
    of them at a time."""
    tokenizer = AutoTokenizer.from_pretrained(smol.target)
    asked = [prompt_ids(tokenizer, prompt) for prompt in held_out_prompts(24)]

    def client(ids: list[int]) -> dict[str, Any]:
        answer: dict[str, Any] = traced.server.generate(input_ids=ids, max_new_tokens=max_new_tokens)
        return answer

    counted = [
        accept_length_of(answer)
        for first in range(0, len(asked), 8)
        for answer in recording.together([partial(client, ids) for ids in asked[first : first + 8]])
    ]
    return sum(made for made, _verified in counted) / sum(verified for _made, verified in counted)


def test_the_accept_length_of_the_right_wiring(smol: Any, serve_smol: Serve) -> None:
    assert accept_length(serve_smol(smol.right), smol, 96) >= 2.0


def test_the_accept_length_falls_with_the_wiring_of_the_incident(smol: Any, serve_smol: Serve) -> None:
    assert accept_length(serve_smol(smol.draft), smol, 24) < 1.1


def test_check_finds_the_incident_without_a_server(smol: Any, tmp_path: Path) -> None:
    done = drafttrace("check", "--target", smol.target, "--draft", smol.draft, "--dump", smol.dump, "--json", "-")
    assert done.returncode == 1, done.stderr
    assert str(RIGHT_IDS) in done.stdout
    done = drafttrace("check", "--target", smol.target, "--draft", smol.right, "--dump", smol.dump, "--json", "-")
    assert done.returncode == 0, (done.stdout, done.stderr)
