"""Biases that a draft's config asks for and its checkpoint does not hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import drafttrace
from drafttrace.tracer.errors import DrafttraceError

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "pairs/tiny-llama"
DUMP = f"{PAIR / 'dump'}#0"


def _draft(folder: Path, **flags: object) -> Path:
    shutil.copytree(PAIR / "draft", folder)
    config = json.loads((folder / "config.json").read_text()) | flags
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("flag", ["attention_bias", "mlp_bias"])
def test_a_flag_that_was_copied_from_the_target_asks_for_no_bias(tmp_path: Path, flag: str) -> None:
    """Replay refused a draft that SGLang serves as it was trained: "has no 'layers.0.self_attn.q_proj.bias'"."""
    made = drafttrace.replay(DUMP, draft=_draft(tmp_path / "draft", **{flag: True}), target=PAIR / "target")
    plain = drafttrace.replay(DUMP, draft=PAIR / "draft", target=PAIR / "target")
    assert made.wirings[0].score == plain.wirings[0].score


def test_some_of_the_biases_are_too_few(tmp_path: Path) -> None:
    draft = _draft(tmp_path / "draft", attention_bias=True)
    (weights,) = draft.glob("*.safetensors")
    tensors = load_file(weights)
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    tensors[name.replace("weight", "bias")] = torch.zeros(len(tensors[name]), dtype=tensors[name].dtype)
    save_file(tensors, weights)
    with pytest.raises(DrafttraceError, match=r"k_proj\.bias"):
        drafttrace.replay(DUMP, draft=draft, target=PAIR / "target")
