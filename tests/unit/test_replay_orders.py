"""A draft whose fc reads the served slots in another order: the search of a layer sweep tries every such order."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafttrace.compare.replay.prepare import reordered
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.capture import Capture
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


def swapped_dump() -> list[Capture]:
    """The trained pair's dump with the rows of its last two slots exchanged, their names left where they are."""
    captures = []
    for i in range(8):
        capture = open_capture(f"{PAIR / 'dump'}#{i}")
        first, second, third = capture.slots
        slots = (
            first,
            dataclasses.replace(second, rows=third.rows),
            dataclasses.replace(third, rows=second.rows),
        )
        captures.append(dataclasses.replace(capture, slots=slots))
    return captures


def test_a_small_gain_of_a_draft_that_does_not_work_is_no_missing_norm() -> None:
    """ "14.2 % becomes 20.5 %" was norm-missing with confidence 0.63: the slots of the dump were exchanged."""
    result = replay(swapped_dump(), PAIR / "draft", PAIR / "target", sglang_version="0.5.23")
    (trap,) = [v for v in result.variants if v.switch == "norm_before_residual"]
    assert result.best is not None and result.best.score is not None
    assert trap.score.top1 > 0.2 > result.best.score.top1 + 0.05  # the trap is still there
    assert [f.id for f in result.faults] == ["unexplained"]


def test_exchanged_slots_are_told_from_the_files_order_where_the_config_serves_what_the_dump_does_not_hold() -> (
    None
):
    """The served [B2, B30, B58] is not in the dump: boundary-offset and wrong-boundary were named, without a margin."""
    result = replay(
        swapped_dump(),
        PAIR / "draft",
        PAIR / "target",
        steps=1,
        search_wirings=True,
        switches=False,
        sglang_version="0.5.23",
    )
    (found,) = result.faults
    assert found.id == "slot-permutation" and found.slots == (1, 2)
    assert found.evidence["file"] == "[B0, B3, B31]" and found.evidence["margin"] > 0.5
    assert "14.2% with the file's own order [B0, B3, B31]" in found.summary
    ids = '"eagle_aux_hidden_state_layer_ids": [0, 3, 31]'
    file_right, file_wrong = found.remedy.split("If its rows stand under exchanged names")
    assert "reorder the column blocks of fc.weight" in file_right
    assert "the ids must change, too" in file_right and ids in file_right
    assert ids in file_wrong and "write the file again" in file_wrong


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)], ids=str)
def test_a_slot_known_by_value_is_held_against_what_is_served(order: tuple[int, ...]) -> None:
    """ "If the file's slots are [B2, B30, B58] ... --wiring B30,B2,B58", where one of them was known to be B0."""
    captures = []
    for i in range(2):
        capture = open_capture(f"{PAIR / 'dump'}#{i}")
        slots = [
            dataclasses.replace(capture.slots[k], boundary=None, rows=capture.slots[p].rows)
            for k, p in enumerate(order)
        ]
        captures.append(dataclasses.replace(capture, slots=tuple(slots)))
    result = replay(
        captures,
        PAIR / "draft",
        PAIR / "target",
        steps=1,
        search_wirings=True,
        switches=False,
        sglang_version="0.5.23",
    )
    told = [f for f in result.faults if f.id == "wrong-boundary"]
    assert len(told) == 1 and told[0].slots == (0,) and "reads B0 in slot 0" in told[0].summary
    assert "hands over [B2, B30, B58]" in told[0].summary
    assert not any("--wiring" in f.remedy or "If the file's slots are" in f.remedy for f in result.faults)
