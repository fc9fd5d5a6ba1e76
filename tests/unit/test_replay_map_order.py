"""A vocabulary map that lists its tokens in another than ascending order, with and without a head in that order."""

from __future__ import annotations

from pathlib import Path

import torch
from audit_folders import PRUNED, kept_tokens
from replay_world import make_world
from safetensors.torch import load_file, save_file

from drafttrace.compare.replay.run import replay

ORDER = torch.randperm(PRUNED, generator=torch.Generator().manual_seed(0))


def test_a_head_in_the_order_of_its_map_is_replayed_as_it_is(tmp_path: Path) -> None:
    """vocab-map-range with a remedy that breaks the draft, at 75.1 %."""
    world = make_world(tmp_path, (2, 16, 29))
    at = world.draft / "model.safetensors"
    held = load_file(at)
    held |= {"d2t": kept_tokens()[ORDER] - torch.arange(PRUNED), "lm_head.weight": held["lm_head.weight"][ORDER]}
    save_file(held, at)
    result = replay(world.capture((2, 16, 29)), world.draft, world.target)
    assert not result.faults and any(v.value == "ascending" and v.gain < -0.5 for v in result.variants)


def test_a_map_in_another_order_than_its_head_is_a_fault(tmp_path: Path) -> None:
    world = make_world(tmp_path, (2, 16, 29))
    at = world.draft / "model.safetensors"
    save_file(load_file(at) | {"d2t": kept_tokens()[ORDER] - torch.arange(PRUNED)}, at)
    result = replay(world.capture((2, 16, 29)), world.draft, world.target)
    (found,) = result.faults
    assert found.id == "vocab-map-range" and "numpy.sort(d2t + arange) - arange" in found.remedy
