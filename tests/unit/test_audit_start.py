"""``drafttrace check`` against what SGLang 0.5.23's scheduler does with configs that its config classes take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from audit_folders import LLAMA_TARGET, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult

PAIRS = Path(__file__).parents[2] / "pairs"
ABSENT = object()
FACTORS = {"short_factor": [1.0] * 32, "long_factor": [1.0] * 32, "original_max_position_embeddings": 1024}
SHORT = {**FACTORS, "short_factor": [1.0] * 3, "long_factor": [1.0] * 3, "rope_type": "longrope"}


def changed(folder: Path, pair: str, role: str, change: dict[str, Any]) -> CheckResult:
    """The audit of a pair of the repository, with one config of it changed. Weights by link."""
    places = {name: PAIRS / pair / name for name in ("target", "draft")}
    made = folder / role
    made.mkdir()
    config = json.loads((places[role] / "config.json").read_text())
    config = {key: value for key, value in {**config, **change}.items() if value is not ABSENT}
    (made / "config.json").write_text(json.dumps(config))
    for file in places[role].glob("*.safetensors*"):
        (made / file.name).symlink_to(file)
    places[role] = made
    return check(places["target"], places["draft"], sglang_version="0.5.23")


def stopping(result: CheckResult, role: str) -> list[str]:
    return [
        f.evidence["field"]
        for f in result.faults
        if f.evidence.get("role") == role and "does not start" in f.summary
    ]


QUANTIZATIONS: tuple[Any, ...] = (
    "fp8", ["fp8"], {}, {"quant_method": "zzz"}, {"quant_method": None}, {"quant_method": "fp8"},
)  # fmt: skip


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("value", QUANTIZATIONS, ids=str)
def test_a_quantization_that_sglang_cannot_read_is_a_fault(value: Any, role: str, tmp_path: Path) -> None:
    """Each was NO PROBLEM FOUND, and SGLang was not even asked."""
    result = changed(tmp_path, "tiny-llama", role, {"quantization_config": value})
    assert stopping(result, role) == ["quantization_config"]


QUANTIZED: tuple[dict[str, Any] | None, ...] = (
    None, {"quant_method": "compressed-tensors", "config_groups": {}}, {"quant_algo": "FP8"},
    {"quant_method": "fp8", "activation_scheme": "dynamic"}, {"quant_method": "mxfp4"}, {"quant_method": "AWQ"},
)  # fmt: skip


@pytest.mark.parametrize("value", QUANTIZED, ids=str)
def test_a_quantization_that_sglang_knows_is_no_fault(value: Any, tmp_path: Path) -> None:
    assert not stopping(changed(tmp_path, "tiny-llama", "target", {"quantization_config": value}), "target")


DRAFTS: dict[str, tuple[dict[str, Any], str]] = {
    "no base": ({"rope_theta": None}, "rope_theta"),
    "no base in either": ({"rope_theta": None, "rope_parameters": {"rope_type": "default"}}, "rope_theta"),
    "su": ({"rope_scaling": {"type": "su", **FACTORS}}, "rope_scaling"),
    "too few factors": ({"rope_scaling": SHORT}, "rope_scaling"),
    "ropes by kind": ({"model_type": "gemma3_text"}, "model_type"),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_a_drafts_config_that_loads_and_builds_no_model_is_a_fault(name: str, tmp_path: Path) -> None:
    change, field = DRAFTS[name]
    assert set(stopping(changed(tmp_path, "tiny-llama", "draft", change), "draft")) == {field}


TARGETS: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": ("tiny-llama", {"hidden_act": "x"}, "hidden_act"),
    "no base": ("tiny-llama", {"rope_theta": None}, "rope_theta"),
    "a text for a base": ("tiny-llama", {"rope_theta": "x"}, "rope_theta"),
    "su": ("tiny-llama", {"rope_scaling": {"type": "su", **FACTORS}}, "rope_scaling"),
    "too few factors": ("tiny-llama", {"rope_scaling": SHORT}, "rope_scaling"),
    "a DeepSeek's base": ("tiny-kimi", {"rope_theta": "x"}, "rope_theta"),
    "a DeepSeek's activation": ("tiny-kimi", {"hidden_act": "x"}, "hidden_act"),
    "under another type": ("tiny-kimi", {"model_type": "kimi_k2", "scoring_func": ABSENT}, "scoring_func"),
    **{
        f"no {key}": ("tiny-kimi", {key: ABSENT}, key)
        for key in (
            "scoring_func", "topk_method", "moe_layer_freq", "kv_lora_rank", "q_lora_rank", "n_routed_experts",
        )
    },
    **{
        f"null for {key}": ("tiny-kimi", {key: None}, key)
        for key in (
            "n_group", "topk_group", "moe_layer_freq", "first_k_dense_replace", "num_nextn_predict_layers",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_a_targets_config_that_loads_and_builds_no_model_is_a_fault(name: str, tmp_path: Path) -> None:
    pair, change, field = TARGETS[name]
    assert set(stopping(changed(tmp_path, pair, "target", change), "target")) == {field}


STARTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no type of rope": ("tiny-llama", "draft", {"rope_theta": ABSENT}),
    "a base inside": (
        "tiny-llama",
        "draft",
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "enough factors": (
        "tiny-llama",
        "draft",
        {"rope_scaling": {**FACTORS, "rope_type": "longrope", "factor": 2.0}},
    ),
    "another type": ("tiny-llama", "draft", {"model_type": "gemma2"}),
    "no layers for the next token": ("tiny-kimi", "target", {"num_nextn_predict_layers": ABSENT}),
    "no shared experts": ("tiny-kimi", "target", {"n_shared_experts": ABSENT}),
}


@pytest.mark.parametrize("name", STARTS)
def test_an_odd_config_with_which_the_server_starts_is_no_fault(name: str, tmp_path: Path) -> None:
    pair, role, change = STARTS[name]
    assert not stopping(changed(tmp_path, pair, role, change), role)


def test_the_fields_of_a_language_model_inside_are_named_by_their_path(tmp_path: Path) -> None:
    inner = {**LLAMA_TARGET, "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_act": "x"}
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": inner}
    draft = write_draft(tmp_path / "draft", specforge([1, 15, 28]))
    result = check(write_target(tmp_path / "target", config), draft, sglang_version="0.5.23")
    assert {"text_config.hidden_act", "text_config.scoring_func"} <= set(stopping(result, "target"))


def test_nothing_is_said_of_a_start_beside_a_server_that_runs(tmp_path: Path) -> None:
    config = specforge([1, 15, 28], rope_scaling={"type": "su", **FACTORS})
    target = write_target(tmp_path / "target", LLAMA_TARGET)
    result = check(target, write_draft(tmp_path / "draft", config), url_health={})
    assert not stopping(result, "draft")
