"""Wirings, search, switches and findings on captures in which the right answer is known by construction."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_folders import HIDDEN, PRUNED, draft_tensors, kept_tokens, specforge, target_tensors, write_draft
from replay_world import LAYERS, World, last_state, make_world

from drafttrace.compare.replay.render import markdown
from drafttrace.compare.replay.run import replay
from drafttrace.compare.replay.score import chain_lengths
from drafttrace.compare.replay.texts import Text, text_of
from drafttrace.compare.result import FAULT
from drafttrace.tracer.capture import Accepted, Capture, Norm, Phase
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare, UnknownFormat

TRUTH = (0, 3, 31)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), TRUTH, ids=[2, 15, 30])


def test_the_trained_wiring_wins_and_the_served_one_is_named(world: World) -> None:
    capture = world.capture(TRUTH, sweep=(16,))
    result = replay(capture, world.draft, world.target, wirings=[(3, 0, 31)], sglang_version="0.5.23", steps=2)
    assert result.best is not None and result.best.wiring == "[B0, B3, B31]" and result.best.score is not None
    assert result.best.score.top1 == 1.0 and "file" in result.best.sources
    assert result.served == "[B3, B16, B31]"
    served = next(row for row in result.wirings if row.wiring == "[B3, B16, B31]")
    assert served.score is not None and served.score.top1 < 0.6
    assert any(row.wiring == "[B3, B0, B31]" and "given" in row.sources for row in result.wirings)
    faults = {f.id: f for f in result.faults}
    assert result.exit_code == 1 and "wrong-boundary" in faults
    assert "[-1, 2, 30]" in faults["wrong-boundary"].remedy and "100.0%" in faults["wrong-boundary"].summary
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["schema"] == "drafttrace.replay/1"


def test_a_right_config_gives_no_fault(tmp_path: Path) -> None:
    world = make_world(tmp_path, (2, 9, 20))
    result = replay(world.capture((2, 9, 20)), world.draft, world.target, sglang_version="0.5.23", steps=1)
    assert result.exit_code == 0, [f.summary for f in result.faults]
    assert result.best is not None and result.best.score is not None
    assert set(result.best.sources[0].split()) >= {"file"} and len(result.best.sources) == 3
    assert result.best.score.expected == 2.0 and result.best.score.simulated == pytest.approx(2.0, abs=0.02)


def test_search_over_the_boundaries_of_a_dump_tries_all(world: World) -> None:
    capture = world.capture((31, 0, 3, 16))
    result = replay(capture, world.draft, world.target, search_wirings=True, steps=1, switches=False)
    assert result.search is not None and result.search.method == "all ordered wirings"
    assert (result.search.tried, result.search.possible) == (24, 24)
    assert result.search.winner == "[B0, B3, B31]" and result.search.margin > 0.2


def test_search_over_a_whole_sweep_goes_coarse_to_fine(world: World) -> None:
    capture = world.capture((3, 16, 31), sweep=tuple(range(LAYERS + 1)))
    calls: list[int] = []
    result = replay(
        capture, world.draft, world.target, search_wirings=True, steps=1, switches=False, progress=calls.append
    )
    assert result.search is not None and result.search.method == "coarse to fine"
    assert result.search.winner == "[B0, B3, B31]"
    assert result.search.tried < 0.06 * result.search.possible and sum(calls) == result.search.tried
    assert {f.id for f in result.faults} == {"wrong-boundary"}


@pytest.mark.parametrize("truth", [(5, 6, 7), (30, 14, 2), (12, 28, 1)])
def test_search_finds_neighbours_and_other_orders(tmp_path: Path, truth: tuple[int, ...]) -> None:
    world = make_world(tmp_path, truth, ids=[2, 15, 30], seed=sum(truth))
    capture = world.capture((2, 16, 29), sweep=tuple(range(LAYERS + 1)))
    result = replay(capture, world.draft, world.target, search_wirings=True, steps=1, switches=False)
    assert result.search is not None and result.search.winner == "[" + ", ".join(f"B{k}" for k in truth) + "]"


def test_slots_without_boundaries_are_searched_by_name(world: World) -> None:
    result = replay(
        world.capture((3, 31, 0), declared=False),
        world.draft,
        world.target,
        search_wirings=True,
        steps=1,
        switches=False,
    )
    assert result.search is not None and result.search.winner == "[slot2, slot0, slot1]"
    found = [row for row in result.wirings if row.score is None]
    assert found and found[0].missing  # the server's boundaries are not in the file, and that is said


def test_slots_are_named_by_value_or_by_the_user(tmp_path: Path) -> None:
    world = make_world(tmp_path, TRUTH)
    table = target_tensors()["model.embed_tokens.weight"].float().numpy()
    states = world.states.copy()
    states[0] = table[world.tokens]
    embedded = dataclasses.replace(world, states=states)
    result = replay(embedded.capture(TRUTH, declared=False), world.draft, world.target, steps=1, switches=False)
    assert result.wirings[0].wiring == "[B0, slot1, slot2]"
    named = replay(
        world.capture(TRUTH, declared=False), world.draft, world.target, steps=1, switches=False, slots_are=TRUTH
    )
    assert named.wirings[0].wiring == "[B0, B3, B31]" and len(named.wirings[0].sources) == 3
    with pytest.raises(DrafttraceError, match="has 3 slots"):
        replay(world.capture(TRUTH), world.draft, world.target, slots_are=(1, 2))


def test_slots_that_the_user_calls_otherwise_than_they_are_are_refused(world: World) -> None:
    """--slots-are was dropped without a word where the file names its slots, and took one boundary for two slots."""
    with pytest.raises(DrafttraceError, match=r"calls slot 1 .* B4, and it is B3"):
        replay(world.capture(TRUTH), world.draft, world.target, slots_are=(0, 4, 31))
    with pytest.raises(DrafttraceError, match="names B3 twice"):
        replay(world.capture(TRUTH, declared=False), world.draft, world.target, slots_are=(0, 3, 3))
    assert (
        replay(world.capture(TRUTH), world.draft, world.target, slots_are=TRUTH, steps=1).reference
        == "[B0, B3, B31]"
    )


def test_that_one_wiring_was_tried_is_said_with_the_way_to_others(tmp_path: Path) -> None:
    """ "nothing better was found" of the only wiring that was tried."""
    world = make_world(tmp_path, (2, 9, 20))
    alone = replay(world.capture((2, 9, 20)), world.draft, world.target, sglang_version="0.5.23", steps=1)
    assert alone.exit_code == 0 and alone.scored == 1 and "only wiring that was tried" in alone.summary
    assert "too few" not in alone.summary
    assert "--wiring" not in alone.summary and "--search tries all that the capture holds" in alone.summary
    assert "ONE WIRING TRIED" in markdown(alone) and "NOTHING BETTER" not in markdown(alone)
    more = {"wirings": [(9, 2, 20)]}, {"search_wirings": True}
    for given, count in zip(more, (2, 6), strict=True):
        result = replay(
            world.capture((2, 9, 20)),
            world.draft,
            world.target,
            sglang_version="0.5.23",
            steps=1,
            **given,  # type: ignore[arg-type]
        )
        assert result.scored == count and f"none of the {count} wirings that were tried is better" in result.summary
        assert "NOTHING BETTER FOUND" in markdown(result)


def test_switches_that_work_better_are_findings(tmp_path: Path) -> None:
    world = make_world(tmp_path, TRUTH)
    tensors = draft_tensors()
    tensors["midlayer.self_attn.o_proj.weight"].mul_(1e-8)
    tensors["midlayer.mlp.down_proj.weight"].mul_(1e-8)
    draft = write_draft(tmp_path / "absolute", specforge([-1, 2, 30]), {**tensors, "d2t": kept_tokens()})
    result = replay(world.capture(TRUTH), draft, world.target, sglang_version="0.5.23", steps=1)
    assert "vocab-map-offset" in {f.id for f in result.faults}
    extra = {f"fc_norm.{k}.weight": torch.rand(HIDDEN) * 3 for k in range(3)}
    draft = write_draft(tmp_path / "norms", specforge([-1, 2, 30], fc_norm=True), {**tensors, **extra})
    result = replay(world.capture(TRUTH), draft, world.target, sglang_version="0.5.23", steps=1)
    assert "norm-extra" in {f.id for f in result.faults}
    variant = next(v for v in result.variants if v.switch == "fc_norm")
    assert variant.gain > 0.2 and variant.score.top1 == 1.0


@pytest.mark.parametrize("kept", [kept_tokens(), torch.arange(PRUNED)], ids=["all-sayable", "half-sayable"])
def test_coverage_is_that_of_the_map_that_the_finding_says_is_right(tmp_path: Path, kept: torch.Tensor) -> None:
    """Beside "d2t holds absolute ids" stood how little the map covers where its ids are read as offsets."""
    world = make_world(tmp_path, TRUTH)
    tensors = draft_tensors()
    tensors["midlayer.self_attn.o_proj.weight"].mul_(1e-8)
    tensors["midlayer.mlp.down_proj.weight"].mul_(1e-8)
    text = world.tokens if kept[1] == 2 else np.where(np.arange(len(world.tokens)) % 4 == 3, 95, world.tokens // 2)
    world = dataclasses.replace(world, tokens=text)
    outside = float((~np.isin(text[1:], kept.numpy())).mean())
    draft = write_draft(tmp_path / "absolute", specforge([-1, 2, 30]), {**tensors, "d2t": kept}, drop=("t2d",))
    result = replay(world.capture(TRUTH), draft, world.target, sglang_version="0.5.23", steps=1)
    assert "vocab-map-offset" in {f.id for f in result.faults}
    assert result.outside_vocabulary == pytest.approx(outside, abs=0.02)
    said = [f for f in result.findings if f.id == "vocab-coverage"]
    assert len(said) == (1 if outside > 0.05 else 0)
    for finding in said:
        assert f"{result.outside_vocabulary:.1%} of the text's" in finding.summary
        top1 = next(v.score for v in result.variants if v.switch == "d2t").steps[0].token_top1
        assert f"(it is {top1:.1%})" in finding.summary and top1 > 0.6


def test_what_the_server_ignores_is_priced(tmp_path: Path) -> None:
    """fc_norm weights whose flag is not set: training used them, SGLang skips them."""
    base = make_world(tmp_path, TRUTH)
    tensors = draft_tensors()
    tensors["midlayer.self_attn.o_proj.weight"].mul_(1e-8)
    tensors["midlayer.mlp.down_proj.weight"].mul_(1e-8)
    gains = torch.rand(3, HIDDEN) * 3
    extra = {f"fc_norm.{k}.weight": gains[k] for k in range(3)}
    parts = [
        torch.nn.functional.rms_norm(torch.from_numpy(base.states[b]), (HIDDEN,), gains[k], 1e-6)
        for k, b in enumerate(TRUTH)
    ]
    hidden = torch.cat(parts, -1) @ tensors["fc.weight"].T
    normed = torch.nn.functional.rms_norm(hidden, (HIDDEN,), tensors["norm.weight"], 1e-6)
    said = kept_tokens()[(normed @ tensors["lm_head.weight"].T).argmax(-1)].numpy()
    tokens = np.concatenate(([1, 3], said[:-2])).astype(np.int64)
    world = dataclasses.replace(base, tokens=tokens)
    draft = write_draft(tmp_path / "flagless", specforge([-1, 2, 30]), {**tensors, **extra})
    result = replay(world.capture(TRUTH), draft, world.target, sglang_version="0.5.23", steps=1)
    assert result.best is not None and result.best.score is not None and result.best.score.top1 == 1.0
    assert result.as_served is not None and result.as_served.top1 < 0.7
    assert result.served_switches["fc_norm"] is False and "norm-missing" in {f.id for f in result.faults}


def test_a_shifted_text_is_named(world: World) -> None:
    shifted = dataclasses.replace(world, tokens=np.roll(world.tokens, 1))
    result = replay(
        shifted.capture(TRUTH), world.draft, world.target, sglang_version="0.5.23", steps=1, switches=False
    )
    assert result.best is not None and result.best.score is not None and result.best.score.top1 < 0.3


def test_masks_choose_the_rows(world: World) -> None:
    wrong = world.tokens.copy()
    wrong[:80] = 5  # the first half obeys nothing; the mask leaves it out
    mask = (np.arange(len(wrong)) >= 90).astype(np.int64)
    masked = dataclasses.replace(world, tokens=wrong).capture(TRUTH, mask=mask, mask_offset=1)
    result = replay(masked, world.draft, world.target, steps=1, switches=False)
    assert result.best is not None and result.best.score is not None
    step = result.best.score.steps[0]
    assert step.token_top1 == 1.0 and step.all_token_top1 < 0.7
    assert step.rows == len(wrong) - 90 - 1 and step.all_rows == len(wrong) - 2


def test_the_last_state_judges_only_if_it_is_the_last(world: World) -> None:
    honest = world.capture(TRUTH, last=last_state(world, LAYERS, Norm.PRE), about={"wiring": {"n": LAYERS}})
    other = world.capture(TRUTH, last=last_state(world, 16, Norm.PRE), about={"wiring": {"n": LAYERS}})
    result = replay(other, world.draft, world.target, steps=1, switches=False)
    assert result.judged_by == "the text's next token"
    assert any("the last state is B16" in note for note in result.notes)
    # random states predict nothing, and the replay says that it does not believe them
    result = replay(honest, world.draft, world.target, steps=1, switches=False)
    assert result.judged_by == "the text's next token" and any("not the target's last" in n for n in result.notes)


def test_several_captures_are_pooled(world: World) -> None:
    capture = world.capture(TRUTH)
    one = replay(capture, world.draft, world.target, steps=2, switches=False)
    two = replay([capture, capture], world.draft, world.target, steps=2, switches=False)
    assert two.rows == 2 * one.rows and one.best is not None and two.best is not None
    assert two.best.score is not None and one.best.score is not None
    assert two.best.score.top1 == one.best.score.top1 and two.best.score.rounds == 2 * one.best.score.rounds


def _text(tokens: int, weight_from: int) -> Text:
    return Text("t", np.zeros(tokens, np.int64), 0, tokens, np.arange(tokens) >= weight_from, 1, None, None, {}, ())


@pytest.mark.parametrize(
    ("hits", "tokens", "begin", "lengths"),
    [
        (np.zeros((3, 10), bool), 10, 4, [1, 1, 1, 1, 1]),
        (np.ones((3, 10), bool), 10, 4, [4, 1]),
        (np.ones((3, 14), bool), 14, 4, [4, 4, 1]),
        (np.array([[True] * 10, [False] * 10, [True] * 10]), 10, 3, [2, 2, 2]),
    ],
)
def test_chain_lengths(hits: np.ndarray, tokens: int, begin: int, lengths: list[int]) -> None:
    assert chain_lengths(hits, _text(tokens, begin)) == lengths


def test_rows_of_a_trace_are_picked_by_position_and_acceptance(world: World) -> None:
    capture = world.capture(TRUTH)
    table = capture.table
    order = np.r_[np.arange(40), 39, np.arange(40, 60)]  # position 39 once rejected, later accepted
    changed = dataclasses.replace(
        table,
        **{f.name: getattr(table, f.name)[order] for f in dataclasses.fields(table)},
    )
    changed.accepted[39] = Accepted.REJECTED
    changed.phase[39:] = Phase.VERIFY
    changed.frame[:] = np.arange(len(order))
    text = text_of(dataclasses.replace(capture, table=changed), None)
    rows, index = text.sources[0]
    assert text.rows == 60 and index[39] == 40 and index[38] == 38 and index[59] == 60
    assert len(rows) == len(table)


def test_rows_behind_a_prefix_gap(world: World) -> None:
    capture = world.capture(TRUTH)
    table = capture.table
    keep = np.r_[np.arange(30, 100)]
    cut = dataclasses.replace(table, **{f.name: getattr(table, f.name)[keep] for f in dataclasses.fields(table)})
    slots = tuple(
        dataclasses.replace(slot, rows=type(slot.rows)(slot.rows._array[keep], slot.rows.dtype))
        for slot in capture.slots
    )
    result = replay(
        dataclasses.replace(capture, table=cut, slots=slots), world.draft, world.target, steps=1, switches=False
    )
    assert result.best is not None and result.best.score is not None and result.best.score.top1 == 1.0
    assert any("position 30" in note for note in result.notes)


def test_refusals(world: World, tmp_path: Path) -> None:
    capture = world.capture(TRUTH)
    with pytest.raises(DrafttraceError, match="--steps 99"):
        replay(capture, world.draft, world.target, steps=99)
    with pytest.raises(DrafttraceError, match="names 2 boundaries"):
        replay(capture, world.draft, world.target, wirings=[(1, 2)])
    with pytest.raises(NothingToCompare, match="No capture"):
        replay([], world.draft, world.target)
    few: Capture = dataclasses.replace(capture, tokens=capture.tokens[:4])
    with pytest.raises(NothingToCompare, match="too few"):
        replay(few, world.draft, world.target)
    wide = write_draft(
        tmp_path / "wide", specforge([1, 2, 3], target_hidden_size=2 * HIDDEN), draft_tensors(slot_width=2 * HIDDEN)
    )
    with pytest.raises(NothingToCompare, match="16 wide"):
        replay(capture, wide, world.target)


def test_nothing_that_can_be_replayed_is_exit_code_two(world: World) -> None:
    result = replay(world.capture((4, 5)), world.draft, world.target, steps=1)
    assert result.exit_code == 2 and result.verdict == "incomparable" and not result.faults


def test_no_gradient_or_thread_setting_leaks(world: World) -> None:
    before = torch.get_num_threads()
    replay(world.capture(TRUTH), world.draft, world.target, steps=1, switches=False)
    assert torch.get_num_threads() == before and torch.is_grad_enabled()


def test_severities_are_the_shared_ones(world: World) -> None:
    result = replay(world.capture(TRUTH, sweep=(16,)), world.draft, world.target, sglang_version="0.5.23", steps=1)
    assert all(f.severity == FAULT for f in result.faults) and result.faults


def test_a_draft_that_no_wiring_helps_is_a_fault_and_few_rows_are_not(world: World) -> None:
    """The incident's own trace: the served boundaries are all there is, and the draft has no hit on any row."""
    wrong = (14, 18, 22)
    result = replay(world.capture(wrong), world.draft, world.target, switches=False)
    (found,) = [fault for fault in result.faults if fault.id == "unexplained"]
    assert result.exit_code == 1 and "--search" in found.remedy and "[B14, B18, B22]" in found.summary
    searched = replay(world.capture(wrong), world.draft, world.target, switches=False, search_wirings=True)
    assert "None of the 6 wirings" in next(fault.remedy for fault in searched.faults if fault.id == "unexplained")
    short = dataclasses.replace(world, tokens=world.tokens[:12], states=world.states[:, :12])
    few = replay(short.capture(wrong), world.draft, world.target, switches=False)
    assert "too few rows to say whether the draft works" in few.summary and "--max-new-tokens" in few.summary
    assert few.best is not None and "unexplained" not in [fault.id for fault in few.faults]


def test_the_window_of_a_traced_server_is_what_its_draft_is_replayed_with(tmp_path: Path) -> None:
    world = make_world(tmp_path, (2, 16, 29), sliding_window=8, layer_types=["sliding_attention"])
    capture = world.capture((2, 16, 29))
    alone = replay(capture, world.draft, world.target, switches=False)
    assert tuple(alone.switches["windows"]) == (8,) and tuple(alone.served_switches["windows"]) == ()
    # SGLang counts the tokens before a row, the config the row as well.
    for size, seen in ((7, (8,)), (20, (21,)), (None, ())):
        about = {"server_args": {"speculative_draft_window_size": size}}
        traced = replay(dataclasses.replace(capture, about=about), world.draft, world.target, switches=False)
        assert tuple(traced.served_switches["windows"]) == seen


def test_a_sliding_window_that_nothing_switches_on_is_noted_by_the_replay(tmp_path: Path) -> None:
    world = make_world(tmp_path, TRUTH, ids=[-1, 2, 30], sliding_window=16)
    result = replay(world.capture(TRUTH), world.draft, world.target, sglang_version="0.5.23", steps=1)
    said = [f for f in result.findings if f.id == "window-mismatch"]
    assert len(said) == 1 and said[0].severity == "note" and '"sliding_window": 16' in said[0].summary
    assert result.exit_code == 0
    healthy = make_world(tmp_path / "healthy", TRUTH, ids=[-1, 2, 30])
    result = replay(healthy.capture(TRUTH), healthy.draft, healthy.target, sglang_version="0.5.23", steps=1)
    assert "window-mismatch" not in {f.id for f in result.findings}


@pytest.mark.parametrize("scaling", ["yarn", "x", {"factor": 8.0}], ids=str)
def test_a_garbled_rope_scaling_is_refused_by_name(tmp_path: Path, scaling: object) -> None:
    world = make_world(tmp_path, TRUTH, rope_scaling=scaling)
    with pytest.raises(UnknownFormat, match=r"config\.json has rope_scaling "):
        replay(world.capture(TRUTH), world.draft, world.target, sglang_version="0.5.23", steps=1)


def test_a_mask_that_counts_nothing_is_the_reason_that_is_given(world: World) -> None:
    """ "The capture does not hold the boundaries that were asked for", for a loss mask of zeros."""
    capture = world.capture(TRUTH, mask=np.zeros(len(world.tokens), np.int64))
    result = replay(capture, world.draft, world.target)
    assert result.exit_code == 2 and result.uncounted == len(world.tokens)
    assert "the mask of the capture counts no token" in result.summary and "boundaries" not in result.summary
