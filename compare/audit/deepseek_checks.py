"""Fields of a DeepSeek-V3 or Kimi-K2 target that SGLang's model class reads and the config class does not look after.

By SGLang 0.5.23's ``models/deepseek_v2.py`` and its weight loader: some fields have no default there, some may not be
null, and the sizes that a file leaves out are those of the whole DeepSeek-V3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.config_fields import Misfit
from drafttrace.tracer.checkpoint import Checkpoint

DEEPSEEKS = frozenset({"deepseek_v3", "kimi_k2"})
_FIRST, _EXPERTS = 3, 256
_REQUIRED = {"scoring_func": '"sigmoid"', "topk_method": '"noaux_tc"', "moe_layer_freq": "1"}
"""Fields without a default, and what the two models have there."""
_DEFAULTS = {"kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts": _EXPERTS}
"""The whole model's sizes, which stand for what is absent."""
_SHOWN_BY = {
    "kv_lora_rank": r"layers\.0\.self_attn\.kv_a_layernorm\.weight$",
    "q_lora_rank": r"layers\.0\.self_attn\.q_a_layernorm\.weight$",
    "n_routed_experts": r"\.mlp\.gate\.weight$",
}
"""The tensor whose first size is the field."""


def deepseek_misfits(config: Mapping[str, Any], weights: Checkpoint | None) -> Iterator[Misfit]:
    """The fields of a language model's config that its server stops at."""
    if str(config.get("model_type")) not in DEEPSEEKS:
        return
    first, layers = config.get("first_k_dense_replace", _FIRST), config.get("num_hidden_layers")
    routed = config.get("n_routed_experts", _EXPERTS) is not None
    sparse = routed and type(first) is int and type(layers) is int and first < layers
    copied = "as the model's own config has it"
    for key, usual in _REQUIRED.items() if sparse else ():
        if key not in config:
            yield Misfit(key, "absent, and SGLang reads it without a default", f'"{key}": {usual}, {copied}.')
    nulls = ["num_nextn_predict_layers"]
    nulls += ["first_k_dense_replace"] if routed else []
    nulls += ["n_group", "topk_group", "moe_layer_freq"] if sparse else []
    for key in nulls:
        if key in config and config[key] is None:
            yield Misfit(
                key, "null, where SGLang needs a whole number", f'Write a whole number in "{key}", {copied}.'
            )
    for key, default in _DEFAULTS.items():
        stored = None if weights is None or key in config else _stored(weights, _SHOWN_BY[key])
        if stored is not None and stored != default:
            wrong = f"absent, so that SGLang builds {default}, and the checkpoint holds {stored}"
            yield Misfit(key, wrong, f'"{key}": {stored}')


def _stored(weights: Checkpoint, pattern: str) -> int | None:
    """The first size of the first tensor of such a name."""
    name = next((name for name in weights if re.search(pattern, name)), None)
    shape = weights.info(name).shape if name is not None else ()
    return shape[0] if shape else None
