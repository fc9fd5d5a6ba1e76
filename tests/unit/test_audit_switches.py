"""Keys that make another forward: false and 0 are values, nested ones count, and the value that changes nothing is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audit_folders import modelopt, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.config_switches import unknown_switches
from drafttrace.compare.draft_config import parse_draft_config
from drafttrace.compare.result import FAULT, Finding

IDS = [1, 15, 28]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"use_rope": False}, "use_rope"),
    ({"use_rope": 0}, "use_rope"),
    ({"residual_multiplier": 0}, "residual_multiplier"),
    ({"residual_multiplier": 0.22}, "residual_multiplier"),
    ({"attention_multiplier": 0.1}, "attention_multiplier"),
    ({"use_qk_norm": True}, "use_qk_norm"),
    ({"no_rope_layers": [0]}, "no_rope_layers"),
    ({"gated": False}, "gated"),
    ({"gated": 0}, "gated"),
    ({"gated": []}, "gated"),
    ({"eagle_config": {"gated": False}}, "eagle_config.gated"),
    ({"eagle_config": {"norm_output": True}}, "eagle_config.norm_output"),
    ({"eagle_config": {"fc_norm": True}}, "eagle_config.fc_norm"),
    ({"eagle_config": {"use_input_layernorm_in_first_layer": False}}, "eagle_config.use_input_layernorm_in_first_layer"),
    ({"eagle_config": {"use_last_layernorm": False}}, "eagle_config.use_last_layernorm"),
    ({"eagle_config": {"use_last_layernorm": 0}}, "eagle_config.use_last_layernorm"),
    ({"eagle_config": {"use_mtp_layernorm": True}}, "eagle_config.use_mtp_layernorm"),
    ({"eagle_config": {"parallel_draft_step": 4}}, "eagle_config.parallel_draft_step"),
    ({"num_hidden_layers": 2, "eagle_config": {"next_layer_regular": False}}, "eagle_config.next_layer_regular"),
]  # fmt: skip
HARMLESS: list[dict[str, Any]] = [
    {"rope_is_neox_style": True}, {"use_rope": True}, {"residual_multiplier": 1.0}, {"residual_multiplier": 1},
    {"attention_multiplier": 0.5}, {"query_pre_attn_scalar": 4}, {"use_qk_norm": False}, {"qkv_bias": False},
    {"no_rope_layers": [1]}, {"no_rope_layers": []}, {"gated": None}, {"output_router_logits": False},
    {"mlp_only_layers": []}, {"dropout": 0.1}, {"num_beam_groups": 1}, {"tf_legacy_loss": False},
    {"eagle_config": {"norm_output": False, "fc_norm": None}}, {"eagle_config": {"next_layer_regular": False}},
    {"hidden_activation": "silu"}, {"clip_qkv": None}, {"parallel_drafting": False},
]  # fmt: skip


def config_of(changes: dict[str, Any]) -> dict[str, Any]:
    return {**specforge(IDS), **changes}


def audited(folder: Path, config: dict[str, Any]) -> CheckResult:
    return check(write_target(folder / "target"), write_draft(folder / "draft", config), sglang_version="0.5.23")


@pytest.mark.parametrize(("changes", "key"), CHANGED, ids=str)
def test_a_value_that_changes_the_forward_is_named_whatever_it_is(changes: dict[str, Any], key: str) -> None:
    """Switches set to false or 0 were taken for switched off, and nested ones for unknown at best."""
    assert unknown_switches(parse_draft_config(config_of(changes), Path("config.json"))) == (key,)


@pytest.mark.parametrize("changes", HARMLESS, ids=str)
def test_a_value_that_changes_nothing_is_no_switch(changes: dict[str, Any]) -> None:
    """The harmless "rope_is_neox_style": true was refused by the replay."""
    assert unknown_switches(parse_draft_config(config_of(changes), Path("config.json"))) == ()


@pytest.mark.parametrize(("changes", "key"), [c for c in CHANGED if "num_hidden_layers" not in c[0]], ids=str)
def test_check_has_a_word_for_each_and_accuses_nobody(changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    """eagle_config.norm_output: true and use_rope: false passed without a word. Training may not have read them, either."""
    nested = {**specforge(IDS)["eagle_config"], **changes.get("eagle_config", {})}
    result = audited(tmp_path, {**config_of(changes), "eagle_config": nested})
    said = [*(f.summary + f.remedy for f in result.findings), *result.notes]
    assert any(key.rpartition(".")[2] in words for words in said), said
    assert not [f for f in result.findings if f.severity == FAULT]


def test_modeloptimizers_own_layout_has_no_such_word(tmp_path: Path) -> None:
    config = modelopt([1, 15, 28])
    assert unknown_switches(parse_draft_config(config, Path("config.json"))) == ()


def by_itself(findings: tuple[Finding, ...]) -> list[Finding]:
    """What the draft's rope is said to be by itself, without the hint that the target's is another one."""
    return [f for f in findings if f.id == "rope-mismatch" and "target" not in f.evidence]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rope_is_neox_style": True}, False),
        ({"rope_is_neox_style": False}, True),
        ({"rope_is_neox_style": 0}, True),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, True),
        ({"rope_scaling": YARN}, False),
    ],
    ids=str,
)
def test_a_rope_that_sglang_turns_otherwise_is_a_fault_with_its_number(
    changes: dict[str, Any], fault: bool, tmp_path: Path
) -> None:
    """Live 2.11 and 2.58 in the place of 2.96, and check was silent."""
    found = by_itself(audited(tmp_path, config_of(changes)).findings)
    assert [f.severity == FAULT for f in found] == [True] * fault
    assert all(f.evidence["apart"] > 0.1 and f"{f.evidence['apart']:.2g} of its length" in f.summary for f in found)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {**YARN, "attention_factor": 0.5}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5},
    ],
    ids=str,
)  # fmt: skip
def test_what_not_every_trainer_reads_is_noted(changes: dict[str, Any], tmp_path: Path) -> None:
    config = {**config_of(changes)}
    if "rope_parameters" in changes:
        config.pop("rope_theta")
    (found,) = by_itself(audited(tmp_path, config).findings)
    assert found.severity != FAULT
