"""Configs that SGLang does not load, or loads as another model: by the table, and by SGLang itself where it is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from audit_folders import (
    DEEPSEEK_TARGET,
    GPT_OSS_TARGET,
    KIMI_TARGET,
    LLAMA_TARGET,
    angelslim,
    mla,
    mla_tensors,
    modelopt,
    specforge,
    speculators,
    write_draft,
    write_target,
)

from drafttrace.compare.audit import asking_sglang
from drafttrace.compare.audit.asking_sglang import DRAFT, TARGET, ask
from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import corrected
from drafttrace.compare.audit.model_types import PLAIN_TYPES
from drafttrace.compare.audit.plain_configs import unusual_draft, unusual_target
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.draft_config import parse_draft_config

IDS = [1, 15, 28]

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "kimi_k25": ({"model_type": "kimi_k25"}, "model_type is 'kimi_k25'", '"model_type": "llama"'),
    "step3_text": ({"model_type": "step3_text"}, "'step3_text' is none that it knows", '"model_type": "llama"'),
    "bf16": ({"torch_dtype": "bf16"}, "torch_dtype is 'bf16'", '"torch_dtype": "bfloat16"'),
    "fp16": ({"torch_dtype": None, "dtype": "fp16"}, "dtype is 'fp16'", '"dtype": "float16"'),
    "auto": ({"torch_dtype": "auto"}, "torch_dtype is 'auto'", '"torch_dtype": "bfloat16", or the format'),
    "torch.bfloat16": (
        {"torch_dtype": "torch.bfloat16"},
        "torch_dtype is 'torch.bfloat16'",
        '"torch_dtype": "bfloat16"',
    ),
    "too many layer types": (
        {"layer_types": ["full_attention"] * 2},
        "and num_hidden_layers is 1",
        '"full_attention" or "sliding_attention" for each layer, 1 in all',
    ),
    "no layer type": ({"layer_types": ["whole"]}, "'whole' is no kind of attention", "1 in all"),
    "heads that do not divide": (
        {"num_attention_heads": 3, "head_dim": 6},
        "num_attention_heads is 3, which does not divide the hidden_size of 16",
        "num_attention_heads, hidden_size and head_dim",
    ),
    "text_config null": ({"text_config": None}, "text_config is null", 'Drop "text_config"'),
    "llm_config null": ({"llm_config": None}, "llm_config is null", 'Drop "llm_config"'),
    "a token id as a text": ({"pad_token_id": "0"}, "pad_token_id is '0'", '"pad_token_id": 0'),
    "token ids as texts": ({"eos_token_id": ["1"]}, "eos_token_id is ['1']", "a list of them"),
    "a fraction for a token": ({"bos_token_id": 1.0}, "bos_token_id is 1.0", "a whole number or null"),
    "an integer for eps": ({"rms_norm_eps": 1}, "rms_norm_eps is 1", '"rms_norm_eps": 1.0'),
    "a text for a switch": ({"use_cache": "true"}, "use_cache is 'true'", '"use_cache": true'),
    "an integer for a range": ({"initializer_range": 1}, "initializer_range is 1", '"initializer_range": 1.0'),
}
"""A change of a healthy draft's config; what is said of it, and what to write."""

LOADED: dict[str, dict[str, Any]] = {
    "half": {"torch_dtype": "half"},
    "both formats": {"torch_dtype": "bf16", "dtype": "bfloat16"},
    "null for a token": {"pad_token_id": None, "eos_token_id": None},
    "many ends": {"eos_token_id": [1, 2]},
    "an integer for a dropout": {"attention_dropout": 0},
    "fields of other classes": {"kv_heads": "x", "n_group": "x", "return_dict": "yes", "transformers_version": 5},
    "null in another class": {
        "model_type": "qwen3",
        "num_key_value_heads": 2,
        "mlp_bias": "no",
        "pretraining_tp": "1",
    },
    "thinker_config null": {"thinker_config": None},
    "language_config null": {"language_config": None},
    "keys of its own": {"trained_by": "us", "step": 12, "data": ["a"], "notes": {"a": 1}, "maybe": None},
    "own keys that are plain": {"trained_by": "us", "step": 12, "maybe": None, "shared": True},
    "a window": {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}},
    "a rope of transformers 5": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    },
}
"""Odd or rare, and loaded all the same."""


def audited(
    folder: Path, config: dict[str, Any], target: dict[str, Any] = LLAMA_TARGET, **more: Any
) -> CheckResult:
    tensors = mla_tensors() if "kv_lora_rank" in config else None
    return check(write_target(folder / "target", target), write_draft(folder / "draft", config, tensors), **more)


def not_loading(result: CheckResult) -> list[str]:
    words = ("does not load", "stops", "other sizes than its config")
    return [f"{f.summary} {f.remedy}" for f in result.faults if any(word in f.summary for word in words)]


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_sglang_refuses_is_named_by_the_table(name: str, tmp_path: Path) -> None:
    """Each was clean."""
    change, said, remedy = REFUSED[name]
    found = not_loading(audited(tmp_path, specforge(IDS, **change), sglang_version="0.5.23"))
    assert len(found) == 1 and said in found[0] and remedy in found[0], found


@pytest.mark.parametrize("name", LOADED)
def test_an_odd_config_that_sglang_loads_is_not_called_refused(name: str, tmp_path: Path) -> None:
    config = specforge(IDS, **LOADED[name])
    assert not not_loading(audited(tmp_path, config, sglang_version="0.5.23"))


TARGETS: dict[str, tuple[dict[str, Any], str]] = {
    "text_config null": ({**LLAMA_TARGET, "text_config": None}, "text_config is null"),
    "a token id as a text": ({**LLAMA_TARGET, "pad_token_id": "0"}, "pad_token_id is '0'"),
    "bf16": ({**LLAMA_TARGET, "torch_dtype": "bf16"}, "torch_dtype is 'bf16'"),
    "inside": (
        {**KIMI_TARGET, "text_config": {**KIMI_TARGET["text_config"], "eos_token_id": "1"}},
        "text_config.eos_token_id is '1'",
    ),
    "heads": ({**LLAMA_TARGET, "num_attention_heads": 3}, "does not divide the hidden_size"),
    "layer types": ({**LLAMA_TARGET, "layer_types": ["full_attention"]}, "num_hidden_layers is 32"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_targets_config_that_sglang_refuses_is_named_by_the_table(name: str, tmp_path: Path) -> None:
    config, said = TARGETS[name]
    (found,) = not_loading(audited(tmp_path, specforge(IDS), config, sglang_version="0.5.23"))
    assert said in found and "the target's config" in found


def test_what_can_only_be_one_value_is_written_by_fix(tmp_path: Path) -> None:
    config = specforge(
        IDS, torch_dtype="bf16", pad_token_id="0", use_cache="true", rms_norm_eps=1, text_config=None
    )
    result = audited(tmp_path, config, sglang_version="0.5.23")
    assert {key: result.fix.get(key) for key in ("torch_dtype", "pad_token_id", "use_cache", "rms_norm_eps")} == {
        "torch_dtype": "bfloat16",
        "pad_token_id": 0,
        "use_cache": True,
        "rms_norm_eps": 1.0,
    }
    made = corrected(config, result.fix)
    assert (
        len(not_loading(audited(tmp_path / "again", made, sglang_version="0.5.23"))) == 1
    )  # text_config is the user's


FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SpecForge": (LLAMA_TARGET, specforge(IDS)),
    "AngelSlim": (GPT_OSS_TARGET, angelslim()),
    "Model-Optimizer": (DEEPSEEK_TARGET, modelopt(IDS)),
    "Kimi": (KIMI_TARGET, mla(IDS, model_type="kimi_k2")),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_config_of_each_family_is_plain_and_nothing_is_asked(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking takes the seconds of SGLang's import, and a check has two."""
    monkeypatch.setattr(asking_sglang.subprocess, "run", None)  # whoever calls it fails
    target, draft = FAMILIES[family]
    assert not unusual_target(target) and not unusual_draft(parse_draft_config(draft, Path("config.json")))
    assert not not_loading(audited(tmp_path, draft, target))


@pytest.mark.parametrize("name", ["own keys that are plain", "half", "many ends", "yarn", "null for a token"])
def test_what_surely_loads_is_not_asked_about(name: str) -> None:
    assert not unusual_draft(parse_draft_config(specforge(IDS, **LOADED[name]), Path("config.json")))


def test_a_number_format_that_is_none_is_not_compared_with_the_targets(tmp_path: Path) -> None:
    """ "The draft's config says auto, the target's bfloat16; the server runs both in the target's format.\""""
    result = audited(tmp_path, specforge(IDS, torch_dtype="auto"), sglang_version="0.5.23")
    assert "quantization-noise" not in {f.id for f in result.findings}


def test_nothing_is_asked_where_sglang_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_sglang, "installed_version", lambda: None)
    (found,) = not_loading(audited(tmp_path, specforge(IDS, torch_dtype="bf16")))
    assert "torch_dtype is 'bf16'" in found


@pytest.mark.slow
def test_sglang_itself_agrees_with_the_tables(tmp_path: Path) -> None:
    """Its own get_config and ModelConfig, in one process, for every config above and every type that is called plain."""
    pytest.importorskip("sglang")
    from drafttrace.compare.audit.sglang_loads import _asked

    def asked(role: str, config: dict[str, Any]) -> dict[str, Any]:
        place = tmp_path / f"{role}{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
        return _asked(role, place, tmp_path)

    for name, (change, *_) in REFUSED.items():
        assert "error" in asked(DRAFT, specforge(IDS, **change)), name
    for name, change in LOADED.items():
        assert asked(DRAFT, specforge(IDS, **change)).get("sizes", {}).get("hidden_size") == 16, name
    for name, (config, _) in TARGETS.items():
        assert "error" in asked(TARGET, config), name
    for name, (target, draft) in FAMILIES.items():
        assert "error" not in asked(TARGET, target) and "error" not in asked(DRAFT, draft), name
    for kind in sorted(PLAIN_TYPES):
        assert asked(DRAFT, specforge(IDS, model_type=kind))["sizes"]["num_key_value_heads"] == 2, kind
        assert "error" not in asked(TARGET, {**LLAMA_TARGET, "model_type": kind}), kind


@pytest.mark.slow
def test_a_path_that_sglang_takes_for_another_format_is_named(tmp_path: Path) -> None:
    """SGLang looks for params.json in a draft's folder whose path has both words in it."""
    pytest.importorskip("sglang")
    found = not_loading(audited(tmp_path / "mistral/eagle3", specforge(IDS)))
    assert len(found) == 2  # the target beside it, too
    assert all("params.json" in text and "The same config loads from another path" in text for text in found)


@pytest.mark.slow
def test_sglang_is_asked_about_what_is_unusual_and_has_the_last_word(tmp_path: Path) -> None:
    """A class with sizes of its own, code beside a config, and a refusal that no table has."""
    pytest.importorskip("sglang")
    target = {**LLAMA_TARGET, "auto_map": {"AutoConfig": "own.OwnConfig"}, "model_type": "own"}
    draft = specforge(IDS, model_type="qwen3_vl")
    (tmp_path / "target").mkdir()
    (tmp_path / "target/own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    result = audited(tmp_path, draft, target)
    (sizes,) = not_loading(result)
    assert "hidden_size 4096 instead of 16" in sizes and '"model_type": "llama"' in sizes
    assert any("brings its own code" in f.summary and f.severity == "note" for f in result.findings)
    assert not (tmp_path / "ran").exists()
    (found,) = not_loading(audited(tmp_path / "two", specforge(IDS, id2label={"a": "b"})))
    assert "ValueError: invalid literal for int()" in found
    assert 'Write another value for "id2label"' in found and "the config loads then" in found
    said = ask(tmp_path / "two/target", tmp_path / "two/draft")  # kept: nothing is loaded twice
    assert said is not None and said.refusals[TARGET] is None and said.refusals[DRAFT] is not None


def test_the_layout_of_speculators_is_known_and_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking_sglang.subprocess, "run", None)
    result = audited(tmp_path, speculators([2, 16, 29]))
    assert any("transformer_layer_config" in f.summary for f in result.faults)
