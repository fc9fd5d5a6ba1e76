"""Fields that the config classes of transformers check, and the kinds of value that each takes; without importing any.

Since release 5 these classes are strict dataclasses: a value of another type than the field's is refused, and so is an
integer where a float belongs. A class checks the fields that it has itself; those here are of every class of
:data:`model_types.PLAIN_TYPES` (asked one by one, in SGLang 0.5.23 with transformers 5.19).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from drafttrace.compare.audit.model_types import PLAIN_TYPES
from drafttrace.compare.odd_ids import short_value

Check = Callable[[Any], bool]


class Misfit(NamedTuple):
    """A value that SGLang stops at. key: dotted. wrong: the value and why. line: what to write."""

    key: str
    wrong: str
    line: str


def _whole(value: Any) -> bool:
    return type(value) is int


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _float(value: Any) -> bool:
    return type(value) is float


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _switch(value: Any) -> bool:
    return type(value) is bool


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _ids(value: Any) -> bool:
    return _whole(value) or (isinstance(value, list) and all(map(_whole, value)))


Field = tuple[Check, bool, str]


def _table(*kinds: tuple[Check, bool, str, str]) -> dict[str, Field]:
    return {name: (check, null, said) for check, null, said, names in kinds for name in names.split()}


FIELDS = _table(
    (_whole, False, "a whole number", "vocab_size hidden_size intermediate_size num_hidden_layers "
     "max_position_embeddings"),
    (_count, False, "a whole number above zero", "num_attention_heads"),
    (_whole, True, "a whole number", "num_key_value_heads"),
    (_whole, True, "a whole number or null", "bos_token_id pad_token_id"),
    (_ids, True, "a whole number, a list of them, or null", "eos_token_id"),
    (_float, False, "a number with a decimal point", "rms_norm_eps initializer_range"),
    (_number, True, "a number", "attention_dropout"),
    (_switch, False, "true or false", "tie_word_embeddings use_cache"),
    (_text, False, "a text", "hidden_act"),
)  # fmt: skip
"""By field: what its value has to be, whether null may stand there, and the first in words."""
LLAMA_FIELDS = FIELDS | _table(
    (_whole, True, "a whole number or null", "head_dim pretraining_tp"),
    (_switch, False, "true or false", "attention_bias mlp_bias"),
)
"""The same of a Llama, as which drafts are written."""
USUAL_FIELDS = LLAMA_FIELDS | _table(
    (_whole, False, "", "max_window_layers moe_intermediate_size n_routed_experts n_shared_experts num_experts "
     "num_local_experts kv_lora_rank qk_nope_head_dim qk_rope_head_dim first_k_dense_replace num_experts_per_tok "
     "n_group topk_group v_head_dim num_nextn_predict_layers moe_layer_freq ep_size"),
    (_whole, True, "", "q_lora_rank sliding_window"),
    (_float, False, "", "routed_scaling_factor router_aux_loss_coef"),
    (_switch, False, "", "use_sliding_window output_router_logits norm_topk_prob rope_interleave"),
    (_text, True, "", "transformers_version topk_method"),
)  # fmt: skip
"""Values that no class stops at; what is otherwise may be refused by some."""
NO_NULL = frozenset({"num_key_value_heads", "head_dim", "attention_dropout"})
"""Fields in which a Llama takes null and other classes do not."""


def fields_of(model_type: object) -> Mapping[str, Field]:
    """The fields that the class of a type surely checks; none of a type that is not in the tables."""
    if model_type == "llama":
        return LLAMA_FIELDS
    return FIELDS if str(model_type) in PLAIN_TYPES else {}


DTYPES = frozenset({"bfloat16", "float16", "half", "float32", "float", "float64", "double"})
"""Number formats that a model can be built in; the config classes look any other name up in torch and stop."""
RARE_DTYPES = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"})
"""Names of torch of which nothing is known here."""
_FORMATS = ("dtype", "torch_dtype")
SPELLED = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32", "f32": "float32"}
"""What is surely meant by some names that torch does not have."""
LAYER_KINDS = frozenset(
    {
        "full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention",
        "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse", "conv", "moe", "hybrid",
        "hybrid_sliding", "linear_attention", "mamba", "attention", "deepseek_sparse_attention", "qwen_sparse_attention",
    }
)  # fmt: skip
"""Names that ``layer_types`` may hold."""
TEXT_PARTS = ("text_config", "llm_config")
"""Parts that SGLang takes the language model from where the key is there, whatever stands in it."""
_LAYERED = PLAIN_TYPES - {"kimi_k2"}
"""Types whose class looks at ``layer_types``."""
_DIVIDED = frozenset({"llama", "gemma2", "gemma3_text", "deepseek_v2", "kimi_vl"})
"""Types whose class refuses a hidden size that the heads do not divide."""


def misfits(config: Mapping[str, Any]) -> Iterator[Misfit]:
    """Every field of a config (one part of it) that its class refuses."""
    fields = fields_of(config.get("model_type"))
    for key, (fits, null, said) in fields.items():
        if key in config and not (fits(config[key]) or (null and config[key] is None)):
            otherwise = f'write {said} in "{key}", as the training run has it, or drop the key'
            yield Misfit(
                key, f"{short_value(config[key])}, where {said} belongs", _line(key, config[key], otherwise)
            )
    yield from _number_format(config)
    yield from _layer_kinds(config)
    if "use_return_dict" in config:
        said = f"{short_value(config['use_return_dict'])}, where the class has a property that cannot be set"
        yield Misfit("use_return_dict", said, 'drop "use_return_dict", or write "return_dict"')
    for part in TEXT_PARTS:
        if fields and part in config and config[part] is None:
            yield Misfit(part, "null, and SGLang looks for the language model's sizes in it", f'drop "{part}"')
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    divided = str(config.get("model_type")) in _DIVIDED
    if divided and type(heads) is int and type(hidden) is int and heads > 0 and hidden % heads:
        yield Misfit(
            "num_attention_heads",
            f"{heads}, which does not divide the hidden_size of {hidden}",
            "copy num_attention_heads, hidden_size and head_dim from the training run's config",
        )


def meant(key: str, value: Any) -> int | float | bool | str | None:
    """What somebody surely meant by a value that the class refuses; None where that is not sure."""
    if key in _FORMATS:
        plain = value.removeprefix("torch.").lower() if isinstance(value, str) else ""
        return SPELLED.get(plain, plain if plain in DTYPES else None)
    check = LLAMA_FIELDS[key][0] if key in LLAMA_FIELDS else None
    word = str(value).strip()
    if _text(value) and check in (_whole, _ids) and word.isascii() and word.removeprefix("-").isdigit():
        return int(word)
    if check is _float and _whole(value):
        return float(value)
    if check is _switch and _text(value) and word.lower() in ("true", "false"):
        return word.lower() == "true"
    return None


def _line(key: str, value: Any, otherwise: str) -> str:
    """The line to paste, where it can only be one."""
    sure = meant(key, value)
    return otherwise if sure is None else f'"{key}": {json.dumps(sure)}'


def _number_format(config: Mapping[str, Any]) -> Iterator[Misfit]:
    """``dtype`` counts where it is there, and ``torch_dtype`` only without it."""
    key = next((name for name in _FORMATS if config.get(name) is not None), _FORMATS[-1])
    value = config.get(key)
    if value is None or (isinstance(value, str) and value in DTYPES | RARE_DTYPES):
        return
    otherwise = f'"{key}": "bfloat16", or the format that training used'
    wrong = f"{short_value(value)}, which is no floating-point format of torch"
    yield Misfit(key, wrong, _line(key, value, otherwise))


def _layer_kinds(config: Mapping[str, Any]) -> Iterator[Misfit]:
    kinds, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if kinds is None or not _whole(layers) or str(config.get("model_type")) not in _LAYERED:
        return
    odd = [kind for kind in kinds if kind not in LAYER_KINDS] if _texts(kinds) else [kinds]
    if not odd and len(kinds) == layers:
        return
    wrong = f"and num_hidden_layers is {layers}"
    if odd:
        wrong = (
            "where a list of names belongs"
            if not _texts(kinds)
            else f"and {short_value(odd[0])} is no kind of attention"
        )
    line = f'write "full_attention" or "sliding_attention" for each layer, {layers} in all, as training had them'
    yield Misfit("layer_types", f"{short_value(kinds)}, {wrong}", line)
