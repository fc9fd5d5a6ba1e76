"""Sizes of a draft that its config does not give and that the config class of transformers fills in, by ``model_type``.

Asked of SGLang 0.5.23's ``get_config`` with transformers 5.19, type by type (``tests/unit/test_audit_class_defaults.py``
asks again). A Llama derives what is absent from the other sizes; most other classes have a number of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from drafttrace.compare.draft_config import MlaDims

KV_HEADS, HEAD_DIM = "num_key_value_heads", "head_dim"
MLP_SIZE = "intermediate_size_mlp"
"""What the plain class reads in the place of ``intermediate_size`` for the type ``llama4_text``."""
_LLAMA4_MLP = 16384
_KV_HEADS = {
    "deepseek_v3": 128, "gemma": 16, "gemma2": 4, "gemma3_text": 4, "glm": 2, "glm4": 2, "glm4_moe": 8, "gpt_oss": 8,
    "kimi_k2": 128, "llama4_text": 8, "ministral": 8, "ministral3": 8, "mistral": 8, "mixtral": 8, "qwen2": 32,
    "qwen2_moe": 16, "qwen3": 32, "qwen3_moe": 4, "seed_oss": 8,
}  # fmt: skip
_HEAD_DIM = {
    "gemma": 256, "gemma2": 256, "gemma3_text": 256, "glm": 128, "glm4": 128, "gpt_oss": 64, "llama4_text": 128,
    "ministral3": 128, "qwen3": 128, "seed_oss": 128,
}  # fmt: skip
_TURNED_IS_THE_HEAD = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})
"""Types that take ``qk_rope_head_dim`` for a missing ``head_dim``; the first one for a given one, too."""
_LATENT = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
"""What these have for latent sizes that are absent."""


def implied_sizes(config: Mapping[str, Any], heads: int, hidden: int) -> dict[str, int]:
    """``num_key_value_heads`` and ``head_dim`` as the server builds them where the config has none (absent, or null)."""
    kind = str(config.get("model_type"))
    kv_heads = heads if KV_HEADS in config else _KV_HEADS.get(kind, heads)
    derived = hidden // heads
    head_dim = derived if HEAD_DIM in config else _HEAD_DIM.get(kind, derived)
    if kind == "deepseek_v2" or (kind in _TURNED_IS_THE_HEAD and HEAD_DIM not in config):
        head_dim = _whole(config.get("qk_rope_head_dim")) or _LATENT["qk_rope_head_dim"]
    return {KV_HEADS: kv_heads, HEAD_DIM: head_dim}


def mlp_size(config: Mapping[str, Any]) -> int | None:
    """The width of the MLP where the plain class does not read it from ``intermediate_size``; None where it does."""
    return _whole(config.get(MLP_SIZE)) or _LLAMA4_MLP if config.get("model_type") == "llama4_text" else None


def takes_no_head_dim(config: Mapping[str, Any]) -> bool:
    """Whether the config class overwrites the ``head_dim`` of the file."""
    return str(config.get("model_type")) == "deepseek_v2"


def latent_sizes(config: Mapping[str, Any], said: MlaDims | None) -> MlaDims | None:
    """The latent sizes that the server builds. said: by the config alone.

    None where the class has none either, or one of them is null.
    """
    if str(config.get("model_type")) not in _TURNED_IS_THE_HEAD:
        return said
    if said is not None:
        lost = "q_lora_rank" not in config
        return replace(said, q_lora_rank=_LATENT["q_lora_rank"]) if lost else said
    sizes = {key: _whole(config.get(key, usual)) for key, usual in _LATENT.items()}
    if any(size is None for size in sizes.values()):
        return None
    q_lora, kv_lora, nope, rope, value = (size or 0 for size in sizes.values())
    return MlaDims(q_lora, kv_lora, nope, rope, value)


def _whole(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
