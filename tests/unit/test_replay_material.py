"""What a replay is made of: tensors that nothing reads, biases, token ids and states that are none, boundaries beyond."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_folders import HIDDEN, VOCAB, draft_tensors, specforge, target_tensors, write_draft
from replay_world import LAYERS, World, make_world

from drafttrace.compare.replay.result import ReplayResult
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare, UnreadableFile

TRUTH = (0, 3, 31)
WIDE = 24  # intermediate_size of the world's draft
LAYER = "midlayer."


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("material"), TRUTH)


def run_with(world: World, folder: Path, extra: dict[str, torch.Tensor], **config: Any) -> ReplayResult:
    tensors = draft_tensors()
    for name in ("self_attn.o_proj", "mlp.down_proj"):  # adds next to nothing: a tensor of zeros is a fault
        tensors[f"{LAYER}{name}.weight"] *= 1e-8
    draft = write_draft(folder, specforge([-1, 2, 30], **config), {**tensors, **extra})
    return replay(world.capture(TRUTH), draft, world.target, sglang_version="0.5.23", steps=1, switches=False)


@pytest.mark.parametrize(
    "name",
    ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "mlp.gate_proj.bias", "mlp.down_proj.bias", "fc.bias"],
)
@pytest.mark.parametrize("size", [7, HIDDEN, WIDE])
def test_a_bias_that_the_config_does_not_ask_for_is_left_out_and_named(
    world: World, tmp_path: Path, name: str, size: int
) -> None:
    """A traceback where its shape did not fit, and silently added where it did: SGLang reads none of them."""
    stored = name if name == "fc.bias" else LAYER + name
    result = run_with(world, tmp_path / "draft", {stored: torch.full((size,), 50.0)})
    assert result.best is not None and result.best.score is not None and result.best.score.top1 == 1.0
    (found,) = [finding for finding in result.findings if finding.id == "weights-unused"]
    assert found.severity == "fault" and name in found.summary  # as in check: training surely added it


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("self_attn.q_proj.bias", {"attention_bias": True}),
        ("mlp.up_proj.bias", {"mlp_bias": True}),
        ("fc.bias", {"bias": True}),
    ],
)
def test_a_bias_that_the_config_asks_for_is_there_in_its_shape_or_refused(
    world: World, tmp_path: Path, name: str, config: dict[str, bool]
) -> None:
    if (
        name == "fc.bias"
    ):  # SGLang builds it; of the others the draft classes have none, and a copied flag asks for nothing
        with pytest.raises(UnreadableFile, match=r"has no '.*bias', the config asks for"):
            run_with(world, tmp_path / "absent", {}, **config)
    else:
        absent = run_with(world, tmp_path / "absent", {}, **config)
        assert absent.best is not None and absent.best.score is not None and absent.best.score.top1 == 1.0
    head, key = HIDDEN, HIDDEN // 2
    sizes = {f"{LAYER}self_attn.{n}_proj.bias": s for n, s in (("q", head), ("k", key), ("v", key), ("o", head))}
    sizes |= {f"{LAYER}mlp.{n}_proj.bias": s for n, s in (("gate", WIDE), ("up", WIDE), ("down", HIDDEN))}
    right = {n: torch.full((s,), 1e-3) for n, s in {**sizes, "fc.bias": HIDDEN}.items()}
    stored = name if name == "fc.bias" else LAYER + name
    with pytest.raises(UnreadableFile, match=r"(has the shape \[7\] for '.*bias'|'.*bias' has the shape \[7\])"):
        run_with(world, tmp_path / "wrong", {**right, stored: torch.zeros(7)}, **config)
    result = run_with(world, tmp_path / "right", right, **config)
    told = [finding for finding in result.faults if stored in finding.evidence.get("tensors", ())]
    assert len(told) == (name != "fc.bias") and all("leaves them out where" in one.summary for one in told)


def test_tensors_that_nothing_reads_are_named(world: World, tmp_path: Path) -> None:
    strange = {
        f"{LAYER}self_attn.q_norm.weight": torch.ones(4),
        f"{LAYER}self_attn.sinks": torch.ones(4),
        "lm_head.bias": torch.ones(3),
        "extra_norm.weight": torch.ones(5),
    }
    result = run_with(world, tmp_path / "draft", strange)
    found = [finding for finding in result.findings if finding.id in ("weights-unused", "norm-missing")]
    assert {name for finding in found for name in finding.evidence["tensors"]} == set(strange)
    assert not run_with(world, tmp_path / "plain", {}).findings


@pytest.mark.parametrize("name", ["fc_norm.0.weight", "input_norm.weight"])
def test_a_norm_without_its_flag_in_a_wrong_shape_is_refused(world: World, tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableFile, match=name):
        run_with(world, tmp_path / "draft", {name: torch.ones(7)})


def test_a_text_in_no_token_of_the_target_is_refused(world: World) -> None:
    """0.0 %, "nothing better found", exit code 0."""
    foreign = dataclasses.replace(world, tokens=world.tokens + VOCAB)
    with pytest.raises(NothingToCompare, match=f"outside the target's vocabulary of {VOCAB}"):
        replay(foreign.capture(TRUTH), world.draft, world.target, steps=1)
    tokens = world.tokens.copy()
    tokens[100:104] = (VOCAB, -3, VOCAB + 7, 1 << 40)
    some = dataclasses.replace(world, tokens=tokens)
    result = replay(some.capture(TRUTH), world.draft, world.target, steps=1, switches=False)
    assert any("4 of 160 token ids lie outside" in remark for remark in result.notes)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("search", [False, True])
def test_states_that_are_no_numbers_are_named_with_the_first_row(world: World, value: float, search: bool) -> None:
    """NaN in slot 0 from row 10 on was "unexplained", and NaN was not mentioned."""
    states = world.states.copy()
    states[0, 10:, 2] = value
    broken = dataclasses.replace(world, states=states).capture(TRUTH)
    result = replay(broken, world.draft, world.target, steps=1, search_wirings=search)
    assert result.exit_code == 1 and result.faults[0].id == "nan-inf"
    assert "slot 0 (B0)" in result.faults[0].summary and "position 10" in result.faults[0].summary
    assert "150 of 160 rows" in result.faults[0].summary
    assert "unexplained" not in [fault.id for fault in result.faults]


@pytest.mark.parametrize("beyond", [LAYERS + 1, 99, -1])
def test_a_boundary_that_the_target_does_not_have_is_refused(world: World, beyond: int) -> None:
    message = f"the target has {LAYERS} layers"
    with pytest.raises(DrafttraceError, match=message):
        replay(world.capture(TRUTH), world.draft, world.target, wirings=[(3, 4, beyond)])
    with pytest.raises(DrafttraceError, match=message):
        replay(world.capture(TRUTH, declared=False), world.draft, world.target, slots_are=(3, 4, beyond))
    assert replay(world.capture(TRUTH), world.draft, world.target, wirings=[(0, 3, LAYERS)], steps=1).steps == 1


def test_the_embedding_is_b0_in_whatever_slot_it_is_and_no_other_slot_is(tmp_path: Path) -> None:
    """Slots exchanged: the one that held the embedding's very rows was "slot1", and B0 was the other."""
    world = make_world(tmp_path, TRUTH)
    states = world.states.copy()
    states[0] = target_tensors()["model.embed_tokens.weight"].float().numpy()[world.tokens]
    capture = dataclasses.replace(world, states=states).capture((TRUTH[1], 0, TRUTH[2]))
    slots = tuple(dataclasses.replace(s, boundary=k) for s, k in zip(capture.slots, (0, 3, 31), strict=True))
    exchanged = dataclasses.replace(capture, slots=slots)
    result = replay(exchanged, world.draft, world.target, steps=1, switches=False)
    assert "[slot0, B0, B31]" in [row.wiring for row in result.wirings]
    assert any("declared as B0, which slot 1 is by value" in note for note in result.notes)
    named = replay(exchanged, world.draft, world.target, steps=1, switches=False, slots_are=(3, 0, 31))
    assert "[B3, B0, B31]" in [row.wiring for row in named.wirings]


def test_the_wiring_that_is_advised_is_held_and_was_not_tried(tmp_path: Path) -> None:
    """ "--wiring B0,B3,B31 tries another one" was said of every capture, of that very wiring and of six layers, too."""
    world = make_world(tmp_path, TRUTH)
    options: dict[str, Any] = {"steps": 1, "switches": False, "sglang_version": "0.5.23"}
    alone = replay(world.capture(TRUTH, sweep=(4, 5)), world.draft, world.target, **options)
    assert alone.scored == 1 and alone.another is not None
    assert set(alone.another) <= {*TRUTH, 4, 5} and set(alone.another) != set(TRUTH)
    name = ",".join(f"B{key}" for key in alone.another)
    assert f"--wiring {name} tries another one, --search all" in alone.summary
    again = replay(
        world.capture(TRUTH, sweep=(4, 5)), world.draft, world.target, wirings=[alone.another], **options
    )
    assert name.replace(",", ", ") in [row.wiring[1:-1] for row in again.wirings if row.score is not None]


def test_a_wiring_that_the_capture_does_not_hold_is_said_in_the_headline(tmp_path: Path) -> None:
    """It stood in a row of a table only."""
    world = make_world(tmp_path, TRUTH)
    result = replay(world.capture(TRUTH), world.draft, world.target, wirings=[(0, 4, 31)], steps=1, switches=False)
    assert "--wiring [B0, B4, B31] was not tried, for the capture does not hold B4." in result.summary
