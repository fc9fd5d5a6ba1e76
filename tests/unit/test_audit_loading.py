"""``drafttrace check`` against what SGLang makes of a config before any weight: its own ``get_config`` is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from audit_folders import (
    HIDDEN,
    LLAMA_TARGET,
    VOCAB,
    mla,
    mla_tensors,
    specforge,
    speculators,
    write_draft,
    write_target,
)

from drafttrace.compare.audit import model_types
from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import fix
from drafttrace.compare.audit.result import CheckResult

IDS = [1, 15, 28]


def audited(folder: Path, config: dict[str, Any], **options: Any) -> CheckResult:
    write_draft(folder / "draft", config, options.pop("tensors", None))
    target = write_target(folder / "target", options.pop("target", LLAMA_TARGET))
    return check(target, folder / "draft", sglang_version="0.5.23", **options)


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def get_config(folder: Path) -> Any:
    """What the installed SGLang makes of a config; skips where none is installed."""
    pytest.importorskip("sglang")
    from sglang.srt.utils.hf_transformers_utils import get_config as installed

    return installed(str(folder), trust_remote_code=False)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no model_type": (without(specforge(IDS), "model_type"), "has no model_type"),
    "null for a model_type": (specforge(IDS, model_type=None), "has no model_type"),
    "an unknown model_type": (specforge(IDS, model_type="x"), "'x' is none that it knows"),
    "null for a switch": (specforge(IDS, attention_bias=None), '"attention_bias" is null'),
    "null for eps": (specforge(IDS, rms_norm_eps=None), '"rms_norm_eps" is null'),
    "null for positions": (specforge(IDS, max_position_embeddings=None), '"max_position_embeddings" is null'),
    "null for tied": (specforge(IDS, tie_word_embeddings=None), '"tie_word_embeddings" is null'),
    "speculators": (speculators([2, 16, 29]), "SGLang does not read transformer_layer_config"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_sglang_does_not_load_is_a_fault_and_its_fixed_copy_loads(name: str, tmp_path: Path) -> None:
    """Each was "NO PROBLEM FOUND" with exit code 0, and the copy of --fix did not load either."""
    pytest.importorskip("sglang")
    config, said = REFUSED[name]
    result = audited(tmp_path, config, trained=(2, 16, 29))
    assert any(said in f.summary for f in result.faults), [f.summary for f in result.faults]
    from huggingface_hub.errors import StrictDataclassError

    with pytest.raises((ValueError, StrictDataclassError)):
        get_config(tmp_path / "draft")
    fix(tmp_path / "draft", tmp_path / "fixed", result.fix)
    made = get_config(tmp_path / "fixed")
    assert (made.hidden_size, made.num_hidden_layers, made.num_key_value_heads, made.vocab_size) == (
        HIDDEN,
        1,
        2,
        VOCAB,
    )
    assert made.intermediate_size == 24 and made.architectures == ["LlamaForCausalLMEagle3"]
    again = audited(
        tmp_path / "again", json.loads((tmp_path / "fixed/config.json").read_text()), trained=(2, 16, 29)
    )
    assert again.exit_code == 0, [f.summary for f in again.faults]


@pytest.mark.parametrize(
    ("field", "value"),
    [("target_hidden_size", HIDDEN), ("partial_rotary_factor", 1.0), ("rope_is_neox_style", True)],
)
def test_null_for_a_key_that_the_draft_class_only_asks_for_is_a_fault(
    field: str, value: Any, tmp_path: Path
) -> None:
    """`hasattr` is true for null, then None * 3: "NO PROBLEM FOUND"."""
    result = audited(tmp_path, specforge(IDS, **{field: None}))
    (found,) = result.faults
    assert found.evidence["field"] == field and result.fix[field] == value


def test_null_for_the_width_is_fine_under_the_class_that_asks_for_its_value(tmp_path: Path) -> None:
    config = mla([1, 15, 28], target_hidden_size=None, model_type="kimi_k2")
    assert audited(tmp_path, config, tensors=mla_tensors()).exit_code == 0


def test_an_unknown_model_type_is_a_hint_where_nothing_is_installed_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_types, "package_folder", lambda package, inside: None)
    result = audited(tmp_path, specforge(IDS, model_type="newest"))
    assert result.exit_code == 0 and any(
        "'newest' is none that this audit knows" in f.summary for f in result.findings
    )


@pytest.mark.parametrize("kind", ["llama", "kimi_k2", "qwen3", "ernie4_5", "minimax_m2", "deepseek_v3"])
def test_a_model_type_of_transformers_or_sglang_is_no_fault(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert not [
        f for f in audited(tmp_path, specforge(IDS, model_type=kind)).findings if "model_type" in f.evidence
    ]


def test_what_a_nested_config_lacks_is_named(tmp_path: Path) -> None:
    config = speculators([2, 16, 29])
    del config["transformer_layer_config"]["model_type"]
    result = audited(tmp_path, config)
    assert (
        any("model_type stands nowhere" in f.remedy for f in result.faults) and result.fix["model_type"] == "llama"
    )


def test_a_real_speculators_config_is_fixed_whole(tmp_path: Path) -> None:
    """As speculators writes it: its own class, an auto_map, null for target_hidden_size. The copy read 4096 and 32."""
    config = speculators(
        [5, 9, 20],
        architectures=["Eagle3Speculator"],
        auto_map={"": "eagle3.Eagle3SpeculatorConfig"},
        target_hidden_size=None,
        tie_word_embeddings=False,
    )
    result = audited(tmp_path, config, target=LLAMA_TARGET)
    fix(tmp_path / "draft", tmp_path / "fixed", result.fix)
    again = audited(
        tmp_path / "again", json.loads((tmp_path / "fixed/config.json").read_text()), target=LLAMA_TARGET
    )
    assert not again.faults and again.readings[-1].boundaries == (5, 9, 20)
    made = get_config(tmp_path / "fixed")
    assert (made.hidden_size, made.num_hidden_layers, made.target_hidden_size) == (HIDDEN, 1, HIDDEN)
