"""One fault of a draft is one finding of a replay: what only softens it, or vanishes with it, is not a second one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import drafttrace
from drafttrace.compare.replay.result import ReplayResult

PAIR = Path(__file__).resolve().parents[2] / "pairs/tiny-kimi"
HIDDEN = 96
Change = Callable[[dict[str, torch.Tensor]], Any]


def replayed(folder: Path, change: Change, **config: Any) -> ReplayResult:
    """The pair's draft with changed tensors and keys, on its training dump. Its config names the trained boundaries."""
    shutil.copytree(PAIR / "draft", folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    said = json.loads((folder / "config.json").read_text())
    said |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 31]}, **config}
    (folder / "config.json").write_text(json.dumps(said))
    return drafttrace.replay([f"{PAIR / 'dump'}#{k}" for k in range(8)], draft=folder, target=PAIR / "target")


@pytest.mark.parametrize("name", ["mlp.up_proj", "self_attn.q_proj", "hidden_norm"])
def test_a_tensor_of_zeros_is_the_cause_and_no_switch_is(name: str, tmp_path: Path) -> None:
    """norm-missing twice, 0.99, with "norm_output": true, where check named the tensor."""
    full = f"midlayer.{name}.weight"

    def emptied(tensors: dict[str, torch.Tensor]) -> None:
        tensors[full] = torch.zeros_like(tensors[full])

    (found,) = replayed(tmp_path / "draft", emptied).faults
    assert found.id == "weights-missing" and full in found.summary and "zero everywhere" in found.summary
    (same,) = [f for f in drafttrace.check(PAIR / "target", tmp_path / "draft").faults if f.id == "weights-missing"]
    assert found.summary == same.summary and found.remedy == same.remedy


def slot_norms(tensors: dict[str, torch.Tensor]) -> None:
    for slot in range(3):
        tensors[f"fc_norm.{slot}.weight"] = torch.full((HIDDEN,), 1.1, dtype=torch.bfloat16)


def one_norm(tensors: dict[str, torch.Tensor]) -> None:
    tensors["input_norm.weight"] = torch.full((3 * HIDDEN,), 1.1, dtype=torch.bfloat16)


@pytest.mark.parametrize("change", [slot_norms, one_norm])
def test_norms_that_neither_training_nor_the_server_used_are_a_hint_and_the_only_one(
    change: Change, tmp_path: Path
) -> None:
    """Three faults, two of which vanished with the first; its remedy, "fc_norm": false, changed nothing."""
    result = replayed(tmp_path / "draft", change)
    assert not result.faults
    (found,) = [f for f in result.findings if f.id.startswith("norm-")]
    assert found.id == "norm-extra" and "training did not use it" in found.summary and "drop" in found.remedy
    (said,) = [f for f in drafttrace.check(PAIR / "target", tmp_path / "draft").faults if f.id == "norm-missing"]
    assert "where training used it" in said.remedy and "drafttrace replay" in said.remedy


def test_a_norm_that_is_switched_on_wrongly_is_one_fault(tmp_path: Path) -> None:
    """Its consequences, two findings of norm-missing, stood beside it."""
    result = replayed(tmp_path / "draft", slot_norms, fc_norm=True)
    (found,) = result.faults
    assert found.id == "norm-extra" and found.remedy == '"fc_norm": false'
