"""One request on an idle server: every row is what the server computed, and says who it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import recording
from sglang_cpu.arguments import cpu_args

from drafttrace.tracer.capture import Accepted, Norm, Phase

pytestmark = pytest.mark.live

PROMPT = list(range(5, 45))


@pytest.fixture
def traced(start_server: Callable[..., Any], pair: Any) -> Any:
    return start_server(cpu_args(pair.target, pair.draft))


@pytest.fixture(scope="module")
def known() -> dict[str, recording.Recording]:
    """One recording per pair for all tests of this file."""
    return {}


@pytest.fixture
def one(traced: Any, pair: Any, known: dict[str, recording.Recording]) -> recording.Recording:
    if pair.name not in known:
        known[pair.name] = recording.record(traced, PROMPT, max_new_tokens=32, ignore_eos=True)
    return known[pair.name]


def hidden_states(target: Path, tokens: Any) -> list[recording.Floats]:
    """B(0) .. B(n-1) and the last state after the norm, by transformers, in float32 arithmetic on the bf16 weights."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        found = model(torch.tensor(np.asarray(tokens))[None], output_hidden_states=True).hidden_states
    return [state[0].numpy() for state in found]


def test_the_trace_is_complete_and_every_tap_fired(one: recording.Recording) -> None:
    assert one.state["state"] == "complete", one.state
    assert one.trace.complete
    assert all(probe.fired == probe.expected > 0 and probe.dropped == 0 for probe in one.trace.probes)
    assert one.state["rows"] == len(one.trace.table) + len(one.trace.draft.table)  # type: ignore[union-attr]


def test_slots_are_the_boundaries_that_the_wiring_names(one: recording.Recording, pair: Any) -> None:
    trace = one.trace
    reference = hidden_states(pair.target, trace.tokens)
    rows = recording.accepted(trace)
    position = trace.table.position[rows]
    wiring = trace.about["wiring"]
    assert wiring["boundaries"] == wiring["layers_to_capture"] and wiring["source"]
    for slot, boundary in zip(trace.slots, wiring["boundaries"], strict=True):
        recorded = slot.rows.floats()[rows]
        by_boundary = [float(recording.cosine(recorded, state[position]).mean()) for state in reference]
        best = int(np.argmax(by_boundary))
        assert best == slot.boundary == boundary
        assert by_boundary[best] >= 0.999
        assert max(by_boundary[:best] + by_boundary[best + 1 :]) < by_boundary[best] - 1e-4
    assert trace.last is not None and trace.last.norm is Norm.POST
    assert (
        recording.cosine(trace.last.rows.floats()[rows], reference[-1][position]).mean() >= 0.99
    )  # all layers' noise
    assert trace.embed is not None
    assert np.array_equal(trace.embed.rows.floats()[rows], reference[0][position])


def test_the_sweep_holds_every_boundary(one: recording.Recording, pair: Any) -> None:
    trace = one.trace
    n = trace.about["wiring"]["n"]
    reference = hidden_states(pair.target, trace.tokens)
    assert sorted(trace.boundaries) == list(range(n + 1))
    rows = len(trace.boundaries[0])
    assert len(PROMPT) <= rows <= 64
    position = trace.table.position[: len(PROMPT)]
    for k in range(n):
        recorded = trace.boundaries[k].floats(0, len(PROMPT))
        close = [float(recording.cosine(recorded, state[position]).mean()) for state in reference[:n]]
        assert int(np.argmax(close)) == k and close[k] >= 0.99
    for slot in trace.slots:  # the same stream, read at two places
        assert slot.boundary is not None
        assert np.array_equal(slot.rows.floats(0, rows), trace.boundaries[slot.boundary].floats(0, rows))


def test_accepted_rows_are_the_text(one: recording.Recording) -> None:
    trace, answer = one.trace, one.answer
    recording.assert_text_is_reproduced(trace)
    assert trace.prompt_length == len(PROMPT)
    assert trace.tokens.tolist() == PROMPT + answer["output_ids"]
    rejected = trace.table.accepted == Accepted.REJECTED
    assert rejected.sum() > 0 and set(trace.table.phase[rejected].tolist()) == {int(Phase.VERIFY)}


def test_accept_counts_are_the_servers(one: recording.Recording) -> None:
    meta, request = one.answer["meta_info"], one.trace.about["request"]
    counts = request["accept_counts"]
    assert len(counts) == meta["spec_verify_ct"] == request["rounds"]
    histogram = Counter(count - 1 for count in counts)
    assert [histogram[k] for k in range(len(meta["spec_correct_drafts_histogram"]))] == meta[
        "spec_correct_drafts_histogram"
    ]
    assert request["completion_tokens"] == meta["completion_tokens"]
    assert request["finish_reason"] == meta["finish_reason"]


def test_the_draft_sees_the_targets_bits(one: recording.Recording) -> None:
    recording.assert_draft_got_what_the_target_gave(one.trace)


def test_draft_steps_recycle_the_drafts_own_state(one: recording.Recording) -> None:
    draft = one.trace.draft
    assert draft is not None
    table, width = draft.table, draft.tensors["hidden_out"].width
    hidden_in, hidden_out = draft.tensors["hidden_in"].floats(), draft.tensors["hidden_out"].floats()
    steps = np.where(table.phase == Phase.DRAFT_DECODE)[0]
    assert set(table.step[steps].tolist()) == {0, 1}  # three steps: the first token comes out of draft extend
    assert not draft.present["fc_in"][steps].any()
    for row in steps:
        if table.step[row] == 0:
            before = np.where((table.phase != Phase.DRAFT_DECODE) & (table.frame < table.frame[row]))[0]
            last = before[table.accepted[before] == Accepted.ACCEPTED].max()
        else:
            last = row - 1
        assert np.array_equal(hidden_in[row, :width], hidden_out[last])
        assert not hidden_in[row, width:].any()
        assert table.position[row] == table.position[last] + 1


def test_the_drafts_best_ids_are_what_it_proposed(one: recording.Recording) -> None:
    trace = one.trace
    assert trace.draft is not None
    draft, table = trace.draft, trace.draft.table
    steps = np.where((table.phase == Phase.DRAFT_DECODE) & (table.step == 1))[0]
    ids, logits = draft.ids["topk_ids"][steps - 1], draft.tensors["topk_logits"].floats()[steps - 1]
    for row, token in enumerate(table.token_id[steps]):  # step 0's best id is what step 1 is fed
        assert logits[row, ids[row] == token] == logits[row, 0]  # of two equal logits, either may be taken


def test_configs_and_environment_are_on_board(one: recording.Recording, pair: Any) -> None:
    about = one.trace.about
    assert about["environment"]["sglang"] and about["environment"]["torch"]
    assert about["server_args"]["speculative_algorithm"] == "EAGLE3"
    assert about["draft_config"]["architectures"] == ["LlamaForCausalLMEagle3"]
    assert about["target_config"]["num_hidden_layers"] == about["wiring"]["n"]
    assert about["wiring"]["rule"] in ("plus_one", "plus_one_if_first_is_one")
    held = about["weights"]["draft"]["held"]
    (fc,) = [one for name, one in held.items() if name.endswith("fc.weight")]
    hidden = about["target_config"]["hidden_size"]
    assert fc == {"shape": [hidden, 3 * hidden], "dtype": "bfloat16", "shared_with": None}
    (embed,) = [one for name, one in held.items() if name.endswith("embed_tokens.weight")]
    assert embed["shared_with"].endswith("embed_tokens.weight")  # neither pair's draft has an embedding of its own
    assert about["weights"]["target"]["tensors"] > about["weights"]["draft"]["tensors"]


def test_hidden_states_are_real_16_bit_floats(one: recording.Recording) -> None:
    with h5py.File(one.path) as file:
        for name in ("target/aux/0", "target/last", "draft/fc_in"):
            kind = file[name].id.get_type()  # h5py itself shows what it converts to, which is float32
            assert isinstance(kind, h5py.h5t.TypeFloatID) and kind.get_size() == 2
