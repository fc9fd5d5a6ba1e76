"""What SGLang's draft classes build no parameter for: biases, norms of queries and keys; and what need not be there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import HIDDEN, draft_tensors, mla, mla_tensors, specforge, speculators, write_draft, write_target
from safetensors.torch import save_file

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import fix
from drafttrace.compare.audit.result import CheckResult

CANONICAL = [1, 15, 28]
AT = "midlayer.self_attn."
QKV = {f"{AT}q_proj.bias": HIDDEN, f"{AT}k_proj.bias": HIDDEN // 2, f"{AT}v_proj.bias": HIDDEN // 2}
MLP = {"midlayer.mlp.gate_proj.bias": 24, "midlayer.mlp.up_proj.bias": 24, "midlayer.mlp.down_proj.bias": HIDDEN}


def audited(folder: Path, config: dict[str, Any], extra: dict[str, torch.Tensor] | None = None) -> CheckResult:
    draft = write_draft(folder / "draft", config, {**draft_tensors(), **(extra or {})})
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23")


def ones(sizes: dict[str, int], value: float = 1.0) -> dict[str, torch.Tensor]:
    return {name: torch.full((size,), value) for name, size in sizes.items()}


@pytest.mark.parametrize("kind", [{}, {"mlp_bias": True}, {"model_type": "gpt_oss", "head_dim": 4}], ids=str)
def test_a_switch_for_biases_without_any_is_no_fault(kind: dict[str, Any], tmp_path: Path) -> None:
    """Four faults of 0.95 for a draft that serves as well as without the switch: the class builds no such bias."""
    assert not audited(tmp_path, specforge(CANONICAL, attention_bias=True, **kind)).faults


@pytest.mark.parametrize("switches", [{}, {"attention_bias": True, "mlp_bias": True}], ids=["off", "on"])
@pytest.mark.parametrize("sizes", [QKV, MLP, {**QKV, **MLP}], ids=["attention", "mlp", "both"])
def test_a_trained_bias_that_no_switch_builds_is_a_fault(
    switches: dict[str, bool], sizes: dict[str, int], tmp_path: Path
) -> None:
    result = audited(tmp_path, specforge(CANONICAL, **switches), ones(sizes))
    (found,) = result.faults
    assert found.id == "weights-unused" and "without a bias, whatever the config says" in found.summary
    assert sorted(found.evidence["tensors"]) == sorted(sizes) and not result.fix


def test_biases_that_are_zero_lose_nothing(tmp_path: Path) -> None:
    result = audited(tmp_path, specforge(CANONICAL), ones({**QKV, **MLP, "fc.bias": HIDDEN}, 0.0))
    assert not result.faults and not result.fix


@pytest.mark.parametrize(
    ("name", "switch"), [("fc.bias", "bias"), (f"{AT}o_proj.bias", "attention_bias")], ids=["fc", "o_proj"]
)
def test_a_bias_that_a_switch_builds_is_a_fault_without_it_and_written_by_fix(
    name: str, switch: str, tmp_path: Path
) -> None:
    result = audited(tmp_path, specforge(CANONICAL), ones({name: HIDDEN}))
    (found,) = result.faults
    assert found.remedy == f'"{switch}": true' and result.fix == {switch: True}
    fix(tmp_path / "draft", tmp_path / "fixed", result.fix)
    write_draft(tmp_path / "again", json.loads((tmp_path / "fixed" / "config.json").read_text()))
    save_file({**draft_tensors(), **ones({name: HIDDEN})}, tmp_path / "again" / "model.safetensors")
    again = check(tmp_path / "target", tmp_path / "again", sglang_version="0.5.23")
    assert not again.faults and not again.fix
    wide = audited(tmp_path / "wide", specforge(CANONICAL, **{switch: True}), ones({name: HIDDEN + 1}))
    assert any("has the shape [17]" in f.summary for f in wide.faults)


def test_a_switch_for_the_bias_of_fc_without_one_can_be_switched_off(tmp_path: Path) -> None:
    (found,) = audited(tmp_path, specforge(CANONICAL, bias=True)).faults
    assert found.remedy.startswith('"bias": false, if training had none in fc; else export')


def test_norms_of_queries_and_keys_are_lost_also_after_fix(tmp_path: Path) -> None:
    """A note, and --fix wrote a copy of a speculators draft with Qwen3's layer that passed."""
    held = {k.replace("midlayer.", "layers.0."): v for k, v in draft_tensors().items()}
    held |= {f"layers.0.self_attn.{name}_norm.weight": torch.rand(4) + 1 for name in "qk"}
    config = speculators([2, 16, 29])
    config["transformer_layer_config"]["model_type"] = "qwen3"
    config["transformer_layer_config"]["head_dim"] = 4
    result = check(
        write_target(tmp_path / "target"),
        write_draft(tmp_path / "draft", config, held),
        sglang_version="0.5.23",
    )
    fix(tmp_path / "draft", tmp_path / "fixed", result.fix)
    save_file(held, tmp_path / "fixed" / "model.safetensors")
    again = check(tmp_path / "target", tmp_path / "fixed", sglang_version="0.5.23")
    (found,) = again.faults
    assert found.id == "norm-missing" and "q_norm" in found.summary and "k_norm" in found.summary


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("midlayer.pre_feedforward_layernorm.weight", "norm-missing"),
        (f"{AT}sinks", "weights-unused"),
        ("lm_head.bias", "weights-unused"),
        ("norm.bias", "weights-unused"),
    ],
)
def test_other_parts_of_a_layer_that_are_dropped_are_a_fault(name: str, finding: str, tmp_path: Path) -> None:
    (found,) = audited(tmp_path, specforge(CANONICAL), ones({name: HIDDEN})).faults
    assert found.id == finding and f"'{name}'" in found.summary


def test_a_bias_of_latent_attention_is_lost_whatever_the_config_says(tmp_path: Path) -> None:
    tensors = {**mla_tensors(), f"{AT}o_proj.bias": torch.ones(HIDDEN)}
    target = write_target(tmp_path / "target")
    for said in (False, True):
        draft = write_draft(tmp_path / f"draft{said}", mla(CANONICAL, attention_bias=said), tensors)
        (found,) = check(target, draft, sglang_version="0.5.23").faults
        assert found.id == "weights-unused" and f"{AT}o_proj.bias" in found.summary


def test_one_tensor_that_nothing_reads_is_one(tmp_path: Path) -> None:
    """It said '1 tensors of the checkpoint are read by nothing'."""
    said = [f.summary for f in audited(tmp_path, specforge(CANONICAL), ones({"extra.weight": 3})).findings]
    assert "1 tensor of the checkpoint is read by nothing: 'extra.weight'." in said


def test_a_stale_part_of_the_other_attention_is_a_hint(tmp_path: Path) -> None:
    """Its norm is no norm of what is served."""
    result = audited(tmp_path, specforge(CANONICAL), ones({f"{AT}q_a_layernorm.weight": 8}))
    assert not result.faults and any("q_a_layernorm" in f.summary for f in result.findings)
