"""A draft whose fc reads the served slots in another order: the search of a layer sweep tries every such order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafttrace.compare.replay.prepare import reordered
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]
PAIR, TRACE = ROOT / "pairs" / "tiny-kimi", ROOT / "traces" / "tiny-kimi" / "fixed.h5"


def exchanged(folder: Path, order: tuple[int, ...]) -> Path:
    """The trained draft with its columns of fc in another order, and the ids that serve [B0, B3, B31]."""
    shutil.copytree(PAIR / "draft", folder)
    tensors = load_file(folder / "model.safetensors")
    blocks = tensors["fc.weight"].chunk(len(order), dim=1)
    tensors["fc.weight"] = torch.cat([blocks[k] for k in order], 1).contiguous()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 3, 31]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("order", "truth"), [((1, 0, 2), "[B3, B0, B31]"), ((1, 2, 0), "[B3, B31, B0]")], ids=["exchanged", "rotated"]
)
def test_a_search_of_a_sweep_tries_every_order_of_the_served_slots(
    tmp_path: Path, order: tuple[int, ...], truth: str
) -> None:
    """The search began from declared orders only: [B3, B0, B31] had 100 %, and [B3, B0, B33] won with a wrong boundary."""
    draft = exchanged(tmp_path / "draft", order)
    result = replay(open_capture(str(TRACE)), draft, PAIR / "target", steps=1, search_wirings=True, switches=False)
    assert result.search is not None and result.search.winner == truth
    wirings = [f for f in result.faults if f.id != "downstream"]  # the trace was served with the draft's own fc
    assert [f.id for f in wirings] == ["slot-permutation"] and truth in wirings[0].summary
    assert "100.0%" in wirings[0].summary


def test_orders_of_many_slots_are_those_of_two_exchanged_ones() -> None:
    assert len(reordered([(0, 3, 31)], 3)) == 5
    assert len(reordered([(0, 1, 2, 3, 4, 5)], 6)) == 15
    assert reordered([(0, 3), None, (3, 3, 31)], 3) == []
