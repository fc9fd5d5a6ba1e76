"""Is there anything in a config that a loader might stop at? Where not, SGLang need not be asked, which takes seconds.

What is plain was loaded by SGLang 0.5.23 (``tests/unit/test_audit_refusals.py`` and ``test_audit_families.py`` hold this).
Everything else is unusual, not wrong: a key by its value, where its class declares another kind of one, or SGLang reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.class_fields import declared, takes
from drafttrace.compare.audit.config_fields import NO_NULL, RARE_DTYPES, USUAL_FIELDS, misfits
from drafttrace.compare.audit.model_types import DRAFT_TYPES, KNOWN_TYPES, WRAPPED_TYPES
from drafttrace.compare.audit.said_in_vain import garbled_fields, rope_fields, rope_pairs
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
_LONG = ("short_factor", "long_factor")
_LONG_KINDS = ("longrope", "su")
_ROPE_OBJECTS = frozenset({"rope_scaling", "rope_parameters"})
_ROPES: Mapping[str, tuple[str, ...]] = {
    "default": (), "linear": _FACTOR, "dynamic": _FACTOR, "yarn": _FACTOR, "deepseek_yarn": _FACTOR, "longrope": _LONG,
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "mrope": ("mrope_section",), "su": _LONG,
}  # fmt: skip
"""Rope scalings, and the fields without which the config class refuses them."""
_ROPE_TYPES: Mapping[str, frozenset[str]] = {
    "mrope": frozenset({"qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}),
    "su": frozenset({"phi3"}),
    "longrope": frozenset({"llama", "phi3", "qwen2", "qwen3"}),
}
"""Scalings that only some types take. Phi-3 takes no others at all."""
_ABOVE_ZERO = frozenset(
    {
        "hidden_size", "intermediate_size", "vocab_size", "num_key_value_heads", "head_dim", "no_rope_layer_interval",
        "interleave_moe_layer_step", "sliding_window_pattern", "full_attention_interval", "index_topk_freq",
    }
)  # fmt: skip
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
    if str(config.get("model_type")) not in DRAFT_TYPES:
        found.append("model_type")
    if draft.rope.conflict is not None:
        found.append("rope_scaling")
    sections = draft.rope.fields.get("mrope_section")
    if draft.rope.kind == "mrope" and isinstance(sections, list) and config.get("model_type") == "llama":
        found = [key for key in found if key not in _ROPE_OBJECTS]  # SpecForge's drafts of a Qwen2.5-VL: it loads
    if _copied_up(config):
        found = [key for key in found if key != LAYER]
    return tuple(dict.fromkeys(found))


def _copied_up(config: Mapping[str, Any]) -> bool:
    """Whether what the layout of speculators has inside stands at the top level, too, as ``check --fix`` writes it."""
    inside = config.get(LAYER)
    if not isinstance(inside, Mapping) or not config.keys() >= {*_SIZES}:
        return False
    return all(config[key] == value for key, value in inside.items() if key in config and key not in _OWN)


LAYER = "transformer_layer_config"
_SIZES = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
_OWN = frozenset({"tie_word_embeddings", "torch_dtype", "dtype", "transformers_version", "architectures"})
"""Keys that are of the whole draft at the top level, and of the model that a layer's config was copied from inside."""


def unusual_path(folder: Path) -> bool:
    """Whether SGLang takes a model for one in Mistral's own format, by words of its path, and looks for ``params.json``."""
    words = str(folder).lower()
    return any(word in words for word in _MISTRALS) or ("eagle" in words and "mistral" in words)


_MISTRALS = ("mistral-large-3", "mistral-small-4", "leanstral")


def unusual_target(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of a target's config that SGLang should be asked about; those of its language model dotted."""
    text, kind = config.get("text_config"), str(config.get("model_type"))
    if isinstance(text, Mapping) and kind in WRAPPED_TYPES:
        inner = [
            *_unusual(text, part=True),
            *([] if str(text.get("model_type")) in KNOWN_TYPES else ["model_type"]),
        ]
        outer = [key for key in _unusual(config) if key != "text_config"]
        return tuple(dict.fromkeys([*outer, *(f"text_config.{key}" for key in inner)]))
    return tuple(dict.fromkeys([*_unusual(config), *([] if kind in KNOWN_TYPES else ["model_type"])]))


def _unusual(config: Mapping[str, Any], part: bool = False) -> Iterator[str]:
    """part: of a model, which need not name its class."""
    yield from (one.key for one in misfits(config))
    if any(isinstance(value := config.get(key), str) and value in RARE_DTYPES for key in ("dtype", "torch_dtype")):
        yield "torch_dtype"
    if garbled_fields(config) is not None or not all(_plain_rope(config, rope) for rope in _ropes(config)):
        yield "rope_scaling"
    names = config.get("architectures")
    listed = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    if not (listed or (part and names is None)):
        yield "architectures"
    for key in _ABOVE_ZERO & config.keys():
        if type(config[key]) is int and config[key] <= 0:
            yield key
    width = config.get("head_dim") or _divided(config.get("hidden_size"), config.get("num_attention_heads"))
    for key, turned in (("qk_rope_head_dim", config.get("qk_rope_head_dim")), ("head_dim", width)):
        if type(turned) is int and turned % 2:
            yield key
    kind = str(config.get("model_type"))
    known = kind in KNOWN_TYPES | WRAPPED_TYPES
    for key, value in config.items():
        if key == "auto_map":
            usual = known and _own_code(value)
        elif key in _NOT_PLAIN:
            usual = False
        else:
            usual = _usual(kind, key, value)
        if not usual:
            yield key


def _usual(kind: str, key: str, value: Any) -> bool:
    """Whether a value is nothing to stop at for a class of this type."""
    taken = takes(kind, key, value)
    if taken is not None:
        return taken or key in _ROPE_OBJECTS  # looked at by themselves
    sources = declared(kind) is not None
    if key in USUAL_FIELDS:
        fits, null, _ = USUAL_FIELDS[key]
        null = null and (key not in NO_NULL or kind == "llama")
        if fits(value) or (null and value is None):
            return True
        return sources and _free(key, value)
    return _plain(key, value) or ((sources or kind == "llama") and _free(key, value))


def _ropes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rope parameters: one set, or one for each kind of attention."""
    rope = rope_fields(config)
    sets: list[Mapping[str, Any]] = [part for part in rope.values() if isinstance(part, Mapping)]
    return sets or [rope]


def _plain_rope(config: Mapping[str, Any], rope: Mapping[str, Any]) -> bool:
    kind, model = rope.get("rope_type") or rope.get("type") or "default", str(config.get("model_type"))
    needs = _ROPES.get(str(kind))
    if not rope:
        return True
    if (
        needs is None
        or any(rope.get(key) is None for key in needs)
        or model not in _ROPE_TYPES.get(str(kind), {model})
    ):
        return False
    if model == "phi3" and kind not in ("default", *_LONG_KINDS):
        return False
    if kind not in _LONG_KINDS:
        return True
    pairs = rope_pairs(config, rope)
    return all(isinstance(rope[key], list) and len(rope[key]) == pairs for key in _LONG)


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
        "add_full_attention_sink_bias", "add_swa_attention_sink_bias", "attention_chunk_size", "attention_other_setting",
        "attention_projection_layout", "attribute_map", "audio_config", "block_configs", "cli_factor", "compress_ratios",
        "context_len", "decoder_layers", "encoder_layers", "encoder_only", "engram_layer_ids", "eoa_token_id",
        "eoa_token_index", "eos_token_id", "first_k_dense_replace", "full_attention_interval", "global_head_dim", "hc_mult",
        "head_dim", "hybrid_layer_pattern", "id2label", "image_token_id", "image_token_index", "index_head_dim",
        "index_kpool", "index_kpool_compress", "index_n_heads", "index_skip_topk_offset", "index_topk", "index_topk_freq",
        "index_topk_pattern", "indexer_types", "is_causal", "is_heterogeneous", "is_hybrid_swa", "is_matryoshka",
        "kv_n_heads", "label2id", "language_model_only", "language_only", "layer_types", "learnable_sink",
        "linear_attn_config",
        "linear_head_dim", "linear_num_heads", "local_layer_ids", "loop_num", "matryoshka_dimensions",
        "max_position_embeddings", "max_seq_len", "max_sequence_length", "mhc", "mlp_layer_types", "model_max_length",
        "moe_layer_freq", "mtp_layer_types", "mtp_local_extent", "mtp_local_layer_ids", "mtp_num_experts",
        "mtp_num_experts_per_tok", "multi_query", "multi_query_group_num", "n_group", "n_head_kv", "name_or_path",
        "new_decoder_architecture", "ngram_embedding_n", "num_attention_groups", "num_attention_heads",
        "num_attention_heads_per_layer", "num_experts", "num_experts_per_tok", "num_hidden_layers", "num_indexer_layers",
        "num_key_value_heads", "num_kv_heads", "num_labels", "num_loops", "num_nextn_predict_layers", "output_attentions",
        "partial_rotary_factor", "pruned_heads", "quantization_config", "rope_local_base_freq", "rope_parameters",
        "rope_scaling",
        "rope_theta", "rotary_dim", "seq_length", "sliding_window", "sliding_window_pattern", "sliding_window_size",
        "sound_config", "sparse_attention_config", "spatial_merge_size", "store_dtype", "sub_configs", "swa_head_dim",
        "swa_kv_lora_rank", "swa_num_key_value_heads", "swa_qk_rope_head_dim", "swa_v_head_dim", "topk_group",
        "use_bidirectional_attention", "use_mla", "use_mla_nope", "use_ngram_embedding", "vision_config",
        "vision_n_layers", "vision_vocab_size", "vocab_size", "window_size",
    }
)  # fmt: skip
"""Keys that SGLang, or what a config class inherits or makes of the rest of a file, reads whatever class has them."""


def _free(key: str, value: Any) -> bool:
    """Whether a key is the file's own: a class keeps what it does not know, and nobody asks for it."""
    return (
        key not in _READ and not key.startswith("_") and (value is None or isinstance(value, (str, list, Mapping)))
    )


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
