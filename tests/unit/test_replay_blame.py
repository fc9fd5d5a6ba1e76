"""Which part of the draft a replay blames: final norm, head, map or a layer, where the stored tensors tell it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_folders import HIDDEN, PRUNED, draft_tensors
from replay_served import TRUTH, pair, served, spoiled, with_weight
from replay_world import World

from drafttrace.compare.replay.render import markdown
from drafttrace.compare.replay.run import replay
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture

NORM, HEAD, MAP = "the final norm", "lm_head", "the vocabulary map"


def lopsided(seed: int = 5) -> torch.Tensor:
    """A gain that matters: some channels count a hundred times as much as others."""
    return torch.exp(1.5 * torch.randn(HIDDEN, generator=torch.Generator().manual_seed(seed)))


def blamed(capture: Capture, world: World) -> Finding:
    (found,) = [
        f for f in replay(capture, world.draft, world.target, switches=False).faults if f.id == "downstream"
    ]
    return found


def two_layers() -> dict[str, torch.Tensor]:
    """The tensors of a draft with a second layer, that reads the state alone."""
    tensors, second = draft_tensors(), draft_tensors(prefix="layers.1.")
    for name, tensor in second.items():
        if not name.startswith("layers.1.") or name.endswith("input_layernorm.weight"):
            continue
        tensors[name] = (
            tensor.flip(0)[:, : tensor.shape[1] // 2]
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
            else tensor.flip(0)
        )
    return tensors


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (torch.ones(HIDDEN), "without the final norm's weight"),
        (lopsided(9), "with other weights in the final norm"),
    ],
    ids=["ones", "others"],
)
def test_a_fault_in_the_final_norm_is_not_called_one_in_the_head(
    tmp_path: Path, gain: torch.Tensor, words: str
) -> None:
    """The state before it agrees and the choices do not: lm_head was named whatever lay between."""
    world, replayer = pair(tmp_path, {**draft_tensors(), "norm.weight": lopsided()})
    found = blamed(served(world, with_weight(replayer, "norm.weight", gain)), world)
    assert found.evidence["parts"] == [NORM] and words in found.summary
    assert "the final norm" in found.remedy and "lm_head" not in found.remedy


def test_a_head_in_another_order_leaves_both_named(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    head = replayer.model.weights["lm_head.weight"]
    order = torch.randperm(PRUNED, generator=torch.Generator().manual_seed(2))
    found = blamed(served(world, with_weight(replayer, "lm_head.weight", head[order])), world)
    assert found.evidence["parts"] == [NORM, HEAD] and "in the final norm or in lm_head" in found.summary


def test_the_head_is_told_where_the_server_hands_on_the_normed_state(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path, norm_output=True)
    head = replayer.model.weights["lm_head.weight"].flip(0)
    capture = served(world, with_weight(replayer, "lm_head.weight", head), switches=Switches(norm_output=True))
    found = blamed(capture, world)
    assert found.evidence["parts"] == [HEAD] and found.evidence["tensor"] == "proposal"


def test_the_final_norm_is_told_where_the_server_hands_on_the_normed_state(tmp_path: Path) -> None:
    """It was placed in the draft's layer."""
    world, replayer = pair(tmp_path, norm_output=True)
    capture = served(world, with_weight(replayer, "norm.weight", lopsided()), switches=Switches(norm_output=True))
    found = blamed(capture, world)
    assert found.evidence["tensor"] == "hidden_out" and found.evidence["parts"] == [NORM]
    assert "with other weights in it" in found.summary


@pytest.mark.parametrize("asked", [True, False])
def test_a_state_from_the_wrong_side_of_the_final_norm_is_told(tmp_path: Path, asked: bool) -> None:
    world, replayer = pair(tmp_path, {**draft_tensors(), "norm.weight": lopsided()}, norm_output=asked)
    found = blamed(served(world, replayer, switches=Switches(norm_output=not asked)), world)
    assert found.evidence["parts"] == [NORM] and "norm_output is" in found.summary


def test_a_vocabulary_map_in_another_order_is_told_from_the_head(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    assert replayer.d2t is not None
    order = np.roll(np.arange(PRUNED), 5)
    moved = replayer.targets(Switches())[order] - np.arange(PRUNED)
    found = blamed(served(world, dataclasses.replace(replayer, d2t=moved)), world)
    assert found.evidence["parts"] == [MAP] and "vocabulary map" in found.remedy


def test_without_the_drafts_own_ids_the_map_is_named_too(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    head = replayer.model.weights["lm_head.weight"].flip(0)
    capture = served(world, with_weight(replayer, "lm_head.weight", head))
    assert capture.draft is not None
    ids = {"topk_ids": capture.draft.ids["topk_ids"]}
    bare = dataclasses.replace(capture, draft=dataclasses.replace(capture.draft, ids=ids))
    assert blamed(bare, world).evidence["parts"] == [NORM, HEAD, MAP]


@pytest.mark.parametrize(
    "silent", [("layers.1.self_attn",), ("layers.0.mlp",), ("layers.1.self_attn", "layers.1.mlp")], ids=len
)
def test_the_layer_that_puts_out_nothing_is_named(tmp_path: Path, silent: tuple[str, ...]) -> None:
    """With two layers nothing said which one was meant."""
    world, replayer = pair(tmp_path, two_layers(), num_hidden_layers=2)
    found = blamed(served(world, replayer, silent=silent), world)
    name = silent[0] if len(silent) == 1 else "layers.1"
    assert found.evidence["parts"] == [name] and f"in {name}: where it puts out nothing" in found.summary
    assert name in found.remedy


@pytest.mark.parametrize("layers", [1, 2])
def test_the_layers_that_may_be_meant_are_named(tmp_path: Path, layers: int) -> None:
    world, replayer = pair(tmp_path, two_layers() if layers == 2 else None, num_hidden_layers=layers)
    generator = torch.Generator().manual_seed(1)
    noise = spoiled("hidden_out", 0, lambda value: torch.randn(value.shape, generator=generator))
    found = blamed(served(world, replayer, noise), world)
    assert found.evidence["parts"] == [f"layers.{k}" for k in range(layers)]
    assert ("layers.0 to layers.1" in found.remedy) == (layers == 2) and "layers.0" in found.remedy


def test_that_nothing_is_wrong_stands_alone(tmp_path: Path) -> None:
    """The id "none" stood beside faults."""
    world, replayer = pair(tmp_path)
    capture = served(world, replayer)
    broken = dataclasses.replace(world, states=world.states.copy())
    broken.states[TRUTH[1], 20] = np.nan
    slots = tuple(
        dataclasses.replace(slot, rows=broken.rows(k)) for slot, k in zip(capture.slots, TRUTH, strict=True)
    )
    for found in (
        replay(capture, world.draft, world.target, switches=False, sglang_version="0.5.23"),
        replay(capture, world.draft, world.target, sglang_version="0.5.23", wirings=[(9, 2, 20)]),
        replay(dataclasses.replace(capture, slots=slots), world.draft, world.target, switches=False),
    ):
        ids = [f.id for f in found.findings]
        assert "none" not in ids or ids == ["none"], ids
        if found.live is not None and found.live.parted is None:
            assert "the live draft computes what the replay computes" in markdown(found)
