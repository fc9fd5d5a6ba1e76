"""Is there anything in a config that a loader might stop at? Where not, SGLang need not be asked, which takes seconds.

What is plain was loaded by SGLang 0.5.23 (``tests/unit/test_audit_refusals.py`` holds this). Everything else is unusual,
not wrong: a key is unusual by its value, where a number or a switch stands in the place of nothing that is known, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.config_fields import NO_NULL, RARE_DTYPES, USUAL_FIELDS, misfits
from drafttrace.compare.audit.model_types import PLAIN_TYPES, WRAPPED_TYPES
from drafttrace.compare.audit.said_in_vain import garbled_fields, rope_fields
from drafttrace.compare.draft_config import DraftConfig

_OBJECTS = frozenset(
    {
        "eagle_config", "quantization_config", "speculators_config", "generation_config", "task_specific_params",
        "rope_scaling", "rope_parameters", "text_config", "vision_config",
    }
)  # fmt: skip
"""Keys in which an object is nothing unusual; the parts of a model are looked at by themselves."""
_TEXTS = frozenset(
    {
        "model_type", "torch_dtype", "dtype", "_name_or_path", "scoring_func", "speculators_model_type",
        "speculators_version", "algorithm", "problem_type", "attn_implementation", "_attn_implementation", "verifier",
        "_model_name_or_path", "video_placeholder",
    }
)  # fmt: skip
_NULLS = frozenset(
    {
        "rope_scaling", "rope_parameters", "draft_vocab_size", "unk_token_id", "quantization_config", "eagle_config",
        "torch_dtype", "dtype", "layer_types", "norm_output", "bad_words_ids", "begin_suppress_tokens",
        "cross_attention_hidden_size", "decoder_start_token_id", "exponential_decay_length_penalty", "finetuning_task",
        "forced_bos_token_id", "forced_eos_token_id", "prefix", "problem_type", "sep_token_id", "suppress_tokens",
        "task_specific_params", "tokenizer_class",
    }
)  # fmt: skip
"""Keys that may be null; the later ones are those that transformers 4 wrote into every part of a config."""
_NOT_PLAIN = frozenset(
    {
        "text_config", "llm_config", "language_config", "thinker_config", "per_layer_config", "attn_config",
        "transformer_layer_config", "compression_config", "dual_chunk_attention_config", "architecture",
    }
)  # fmt: skip
"""Keys from which a loader takes the model, or parts of it, whatever else the file says."""
_OTHER_CLASSES = ("modeling_deepseekocr.DeepseekOCRForCausalLM", "modeling_deepseekocr2.DeepseekOCR2ForCausalLM")
"""What ``auto_map`` may name that SGLang takes for another model than the ``model_type`` says."""
_FACTOR = ("factor",)
_ROPES: Mapping[str, tuple[str, ...]] = {
    "default": (), "linear": _FACTOR, "dynamic": _FACTOR, "yarn": _FACTOR, "deepseek_yarn": _FACTOR,
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}  # fmt: skip
"""Rope scalings, and the fields without which the config class refuses them."""
_ABOVE_ZERO = frozenset({"hidden_size", "intermediate_size", "vocab_size", "num_key_value_heads", "head_dim"})
_LISTS = frozenset(
    {
        "architectures",
        "eagle_aux_hidden_state_layer_ids",
        "aux_hidden_state_layer_ids",
        "target_layer_ids",
        "mlp_only_layers",
        "layer_types",
    }
)


def unusual_draft(draft: DraftConfig) -> tuple[str, ...]:
    """Keys of a draft's config that SGLang should be asked about."""
    config = draft.raw
    found = list(_unusual(config))
    if str(config.get("model_type")) not in PLAIN_TYPES:
        found.append("model_type")
    if draft.rope.conflict is not None:
        found.append("rope_scaling")
    return tuple(dict.fromkeys(found))


def unusual_path(folder: Path) -> bool:
    """Whether SGLang takes a model for one in Mistral's own format, by words of its path, and looks for ``params.json``."""
    words = str(folder).lower()
    return any(word in words for word in _MISTRALS) or ("eagle" in words and "mistral" in words)


_MISTRALS = ("mistral-large-3", "mistral-small-4", "leanstral")


def unusual_target(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of a target's config that SGLang should be asked about; those of its language model dotted."""
    text, kind = config.get("text_config"), str(config.get("model_type"))
    if isinstance(text, Mapping) and kind in WRAPPED_TYPES:
        inner = [*_unusual(text), *(["model_type"] if str(text.get("model_type")) not in PLAIN_TYPES else [])]
        outer = [key for key in _unusual(config) if key != "text_config"]
        return tuple(dict.fromkeys([*outer, *(f"text_config.{key}" for key in inner)]))
    return tuple(dict.fromkeys([*_unusual(config), *(["model_type"] if kind not in PLAIN_TYPES else [])]))


def _unusual(config: Mapping[str, Any]) -> Iterator[str]:
    yield from (one.key for one in misfits(config))
    if any(isinstance(value := config.get(key), str) and value in RARE_DTYPES for key in ("dtype", "torch_dtype")):
        yield "torch_dtype"
    rope = rope_fields(config)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    needs = _ROPES.get(str(kind))
    if garbled_fields(config) is not None or (
        rope and (needs is None or any(rope.get(key) is None for key in needs))
    ):
        yield "rope_scaling"
    names = config.get("architectures")
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        yield "architectures"
    for key in _ABOVE_ZERO & config.keys():
        if type(config[key]) is int and config[key] <= 0:
            yield key
    width = config.get("head_dim") or _divided(config.get("hidden_size"), config.get("num_attention_heads"))
    for key, turned in (("qk_rope_head_dim", config.get("qk_rope_head_dim")), ("head_dim", width)):
        if type(turned) is int and turned % 2:
            yield key
    llama = config.get("model_type") == "llama"
    known = str(config.get("model_type")) in PLAIN_TYPES | WRAPPED_TYPES
    for key, value in config.items():
        if key in USUAL_FIELDS:
            fits, null, _ = USUAL_FIELDS[key]
            null = null and (key not in NO_NULL or llama)
            if not (fits(value) or (null and value is None)):
                yield key
        elif key == "auto_map":
            if not (known and _own_code(value)):
                yield key
        elif key in _NOT_PLAIN or not (_plain(key, value) or (llama and _free(key, value))):
            yield key


def _own_code(value: Any) -> bool:
    """Whether an ``auto_map`` is one: a model of a type with a class of its own is loaded without the code that it names.

    By ``AutoConfig.from_pretrained`` and ``resolve_trust_remote_code``: asked for no remote code they take the local class.
    """
    if not isinstance(value, Mapping) or value.get("AutoModel") in _OTHER_CLASSES:
        return False
    named = value.get("AutoConfig", "")
    return isinstance(named, str) and all(isinstance(one, (str, list)) for one in value.values())


def _labels(key: str, value: Mapping[str, Any]) -> bool:
    """Names of classes and their numbers, as transformers 4 wrote them into every config."""
    if key == "id2label":
        return all(
            number.isascii() and number.isdigit() and isinstance(name, str) for number, name in value.items()
        )
    return key == "label2id" and all(type(number) is int for number in value.values())


def _divided(hidden: object, heads: object) -> int | None:
    """The channels of a head, half of which turn with the other half."""
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 else None


_READ = frozenset(
    {
        "attention_chunk_size", "multi_query", "max_sequence_length", "seq_length", "max_seq_len", "model_max_length",
        "hc_mult", "id2label", "label2id", "num_labels", "vision_n_layers", "use_ngram_embedding", "engram_layer_ids",
        "index_topk", "matryoshka_dimensions", "is_matryoshka", "language_model_only", "mlp_layer_types", "sub_configs",
        "attribute_map", "rope_theta", "partial_rotary_factor", "vision_config", "audio_config", "store_dtype",
    }
)  # fmt: skip
"""Keys that no Llama has and that SGLang, or what a config class inherits, reads all the same."""


def _free(key: str, value: Any) -> bool:
    """Whether a key is the file's own: a Llama's class keeps what it does not know, and nobody asks for it."""
    return key not in _READ and not key.startswith("_") and (value is None or isinstance(value, str))


def _plain(key: str, value: Any) -> bool:
    """Whether the value of a key that no table has is nothing to stop at."""
    if value is None:
        return key in _NULLS
    if isinstance(value, str):
        return key in _TEXTS
    if isinstance(value, Mapping):
        return key in _OBJECTS or _labels(key, value) or (key == "pruned_heads" and not value)
    if isinstance(value, list):
        return key in _LISTS
    return True
