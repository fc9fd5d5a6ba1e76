"""A target whose config names no class or no type: what a server makes of that, and which ones are meant.

SGLang 0.5.23 stops at both, seen with its ``get_config`` ('Unrecognized model') and its look at the first class; so it need
not be asked, and the rest of the audit goes on with what the other of the two keys tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from drafttrace.compare.audit.config_fields import Misfit
from drafttrace.compare.audit.target_config import TargetConfig, parse_target_config
from drafttrace.compare.odd_ids import short_value

CLASSES, TYPE = "architectures", "model_type"
_CLASSES = {
    "apertus": "ApertusForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM", "exaone_moe": "ExaoneMoEForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration", "gemma3_text": "Gemma3ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "kimi_k25": "KimiK25ForConditionalGeneration", "llama": "LlamaForCausalLM",
    "llama4": "Llama4ForConditionalGeneration", "mellum": "MellumForCausalLM", "minimax_m2": "MiniMaxM2ForCausalLM",
    "mistral": "MistralForCausalLM", "phi3": "Phi3ForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_moe": "Qwen3MoeForCausalLM", "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
}  # fmt: skip
"""The class that configs of a type name, of public targets."""
_OF_A_CLASS = {name: kind for kind, name in _CLASSES.items()}
_TYPES = {"kimi_k2": "DeepseekV3ForCausalLM"}


def with_meant_class(target: TargetConfig) -> TargetConfig:
    """The target with the class, or read as the type, that its config does not name and that the other key tells."""
    raw, kind = target.raw, target.raw.get(TYPE)
    if not _listed(raw.get(CLASSES)):
        return replace(target, architecture=_class_of(kind))
    if isinstance(kind, str) or (meant := _OF_A_CLASS.get(str(target.architecture))) is None:
        return target
    made = parse_target_config({**raw, TYPE: meant}, target.path)
    return replace(made, raw=raw, text=raw if target.text is raw else made.text)


def class_misfits(config: Mapping[str, Any]) -> Iterator[Misfit]:
    """What is wrong with the two keys, and the line that each needs."""
    listed, kind = config.get(CLASSES), config.get(TYPE)
    anew = "copy the target's config.json anew from where the model came from"
    if not _listed(listed):
        meant = _class_of(kind)
        line = f'"{CLASSES}": ["{meant}"]' if meant is not None else f"{anew}, with its {CLASSES}"
        yield Misfit(CLASSES, f"{_shown(listed)}, where a list with the model's class belongs", line)
    if not isinstance(kind, str):
        names = listed if isinstance(listed, list) and listed else [None]
        meant = _OF_A_CLASS.get(str(names[0]))
        line = f'"{TYPE}": "{meant}"' if meant is not None else f"{anew}, with its {TYPE}"
        yield Misfit(TYPE, f"{_shown(kind)}, where the name of the model's type belongs", line)


def _shown(value: object) -> str:
    return "missing or null" if value is None else short_value(value)


def _listed(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def _class_of(kind: object) -> str | None:
    return {**_CLASSES, **_TYPES}.get(kind) if isinstance(kind, str) else None
