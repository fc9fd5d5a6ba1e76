"""Ordinary configs of every public target family that can serve an EAGLE-3 draft: no SGLang is asked, and it loads them."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from audit_folders import specforge, write_draft, write_target
from family_configs import FAMILIES

from drafttrace.compare.audit import asking_sglang
from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.class_fields import declared
from drafttrace.compare.audit.config_fields import USUAL_FIELDS
from drafttrace.compare.audit.model_types import DRAFT_TYPES, FAMILY_TYPES, KNOWN_TYPES, WRAPPED_TYPES
from drafttrace.compare.audit.plain_configs import _READ, unusual_draft, unusual_target
from drafttrace.compare.audit.target_config import VOCABULARIES, parse_target_config
from drafttrace.compare.draft_config import parse_draft_config

IDS = [1, 15, 28]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_ordinary_target_is_checked_without_asking_sglang(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GLM-4.5, MiniMax-M2, Llama 4, Qwen3-Next, Gemma 3, Phi-3 and Qwen2.5-VL took the 5 to 13 seconds of an import."""
    monkeypatch.setattr(asking_sglang.subprocess, "run", None)  # whoever calls it fails
    began = time.perf_counter()
    result = check(
        write_target(tmp_path / "target", FAMILIES[name]), write_draft(tmp_path / "draft", specforge(IDS))
    )
    assert time.perf_counter() - began < 2
    assert not [said for said in result.notes if "asked" in said]


def test_every_family_is_an_example() -> None:
    """What is called plain was loaded, and what was loaded is called plain."""
    kinds = {str(config["model_type"]) for config in FAMILIES.values()}
    kinds |= {str(config["text_config"]["model_type"]) for config in FAMILIES.values() if "text_config" in config}
    assert kinds >= FAMILY_TYPES and WRAPPED_TYPES - {"kimi_k25", "kimi_vl"} <= kinds <= KNOWN_TYPES | WRAPPED_TYPES


@pytest.mark.parametrize("kind", sorted(FAMILY_TYPES & DRAFT_TYPES))
def test_a_draft_written_as_one_of_these_types_is_not_asked_about(kind: str) -> None:
    pytest.importorskip("transformers")
    assert not unusual_draft(parse_draft_config(specforge(IDS, model_type=kind), Path("config.json")))


ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "a text for a number": ("GLM-4.5", {"n_group": "1"}),
    "null for a number": ("GLM-4.5", {"n_routed_experts": None}),
    "an integer for a float": ("MiniMax-M2", {"router_jitter_noise": 0}),
    "a fraction of an expert": ("Qwen3-Next", {"num_experts": 4.0}),
    "texts for layers": ("Qwen3-Next", {"mlp_only_layers": ["1"]}),
    "a scaling that Phi-3 has not": ("Phi-4", {"rope_scaling": {"type": "yarn", "factor": 2.0}}),
    "factors that are not one per pair": (
        "Phi-4-mini",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
    ),
    "a range beyond one": ("Llama-3.1", {"initializer_range": 1.5}),
    "a step of zero": ("Qwen3-Next", {"full_attention_interval": 0}),
    "a list that SGLang reads": ("Llama-3.1", {"max_seq_len": [1]}),
    "a key of another model's rope": (
        "Llama-3.1",
        {"rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 1]}},
    ),
}
"""A change of an ordinary config that its class, or SGLang, may stop at."""


@pytest.mark.parametrize("name", ODD)
def test_what_a_class_may_stop_at_is_still_asked_about(name: str) -> None:
    pytest.importorskip("transformers")
    family, change = ODD[name]
    assert unusual_target({**FAMILIES[family], **change})


@pytest.mark.parametrize(
    "change", [{"kv_lora_rank": None}, {"training_data": ["a", "b"]}, {"run": {"steps": 3}}, {"tags": []}], ids=str
)
@pytest.mark.parametrize("kind", ["llama", "qwen3", "glm4_moe", "mistral"])
def test_a_key_that_nobody_reads_is_not_asked_about(kind: str, change: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    config = specforge(IDS, model_type=kind, **change)
    assert not unusual_draft(parse_draft_config(config, Path("config.json")))
    assert not unusual_target({**FAMILIES["Llama-3.1"], "model_type": kind, **change})


def test_every_key_that_sglang_reads_of_any_config_is_in_the_tables() -> None:
    """A value under such a key is never a key of the file's own."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no SGLang here")
    folder = Path(found.submodule_search_locations[0]) / "srt"
    text = (folder / "configs/model_config.py").read_text("utf-8")
    named = set(re.findall(r'(?:getattr|hasattr)\(\s*self\.hf_(?:text_)?config,\s*"(\w+)"', text))
    named |= set(re.findall(r"self\.hf_(?:text_)?config\.(\w+)\b(?!\()", text))
    told = {"architectures", "model_type", "dtype", "configure_draft_model", "rope_scaling", "quantization_config"}
    told |= {"text_config", "vision_config", "thinker_config", "attn_config", "compression_config"}
    told |= {"dual_chunk_attention_config"}
    assert len(named) > 40 and not named - set(USUAL_FIELDS) - _READ - told, (
        named - set(USUAL_FIELDS) - _READ - told
    )


def test_what_a_source_declares_is_what_the_class_checks() -> None:
    """The kinds that are read from a file, against the strict dataclass itself."""
    transformers = pytest.importorskip("transformers")
    values: tuple[Any, ...] = (1, 1.5, True, "silu", None, [1], ["full_attention"], {"rope_type": "default"})
    checked = 0
    for kind in sorted(KNOWN_TYPES - {"kimi_k2", "deepseek_v32"}):
        made = transformers.AutoConfig.for_model(kind)
        (fields, *_) = declared(kind) or ()
        for key, field in fields.items():
            for value in values:
                if field.takes(value):
                    setattr(made, key, value)  # raises where the class refuses it
                    checked += 1
    assert checked > 500


@pytest.mark.slow
def test_sglang_loads_each_of_them(tmp_path: Path) -> None:
    """Its own get_config and ModelConfig, in one process: of every family's target, and of a draft of each type."""
    pytest.importorskip("sglang")
    from drafttrace.compare.audit.sglang_loads import _asked

    def asked(role: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
        place = tmp_path / f"{role} {name}"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
        return _asked(role, place, tmp_path)

    refused = {
        name: said for name, config in FAMILIES.items() if "error" in (said := asked("target", name, config))
    }
    assert not refused
    wanted = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    for kind in sorted(FAMILY_TYPES & DRAFT_TYPES):
        said = asked("draft", kind, specforge(IDS, model_type=kind))
        assert wanted.items() <= said.get("sizes", {}).items(), (kind, said)
    said = asked("draft", "own keys", specforge(IDS, kv_lora_rank=None, training_data=["a"], run={"steps": 3}))
    assert "error" not in said


def test_a_target_with_code_of_its_own_is_told_without_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ling and IQuest-Coder: SGLang's answer, that it wants --trust-remote-code, took the seconds of its import."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(asking_sglang.subprocess, "run", None)  # whoever calls it fails
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    target = {**FAMILIES["Llama-3.1"], "model_type": "own_moe", "auto_map": code}
    result = check(write_target(tmp_path / "target", target), write_draft(tmp_path / "draft", specforge(IDS)))
    assert any("--trust-remote-code" in found.remedy for found in result.findings)


def test_a_vocabulary_that_a_public_config_leaves_to_its_class(tmp_path: Path) -> None:
    """The config of Gemma-3-4B has no vocab_size: "so it is no language model's config", and exit 2."""
    text = {key: value for key, value in FAMILIES["Gemma-3-27B"]["text_config"].items() if key != "vocab_size"}
    config = {**FAMILIES["Gemma-3-27B"], "text_config": text}
    assert parse_target_config(config, tmp_path / "config.json").vocab_size == VOCABULARIES["gemma3_text"]


@pytest.mark.parametrize("kind", sorted(VOCABULARIES))
def test_the_vocabulary_of_a_class_is_that_of_the_installed_one(kind: str) -> None:
    assert pytest.importorskip("transformers").AutoConfig.for_model(kind).vocab_size == VOCABULARIES[kind]
