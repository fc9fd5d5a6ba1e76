"""Every key of a draft's config that is known here, and the values under which a draft is the plain EAGLE-3 one.

A key is a switch until it is known to be none: what is not in these tables, and what is in them with another value than
the one that changes nothing, may make the forward another one, whatever the value is. ``false`` and ``0`` are values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from drafttrace.compare.draft_config import DraftConfig

_READ_TEXT = """
    architectures model_type hidden_size target_hidden_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim intermediate_size hidden_act rms_norm_eps rope_theta rope_scaling rope_parameters
    rope_interleave rope_is_neox_style partial_rotary_factor max_position_embeddings vocab_size draft_vocab_size
    tie_word_embeddings torch_dtype dtype eagle_config eagle_aux_hidden_state_layer_ids aux_hidden_state_layer_ids
    target_layer_ids num_aux_hidden_states bias fc_norm use_aux_norm norm_before_fc norm_before_residual norm_output
    attention_bias mlp_bias kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim sliding_window
    layer_types use_sliding_window transformer_layer_config qk_head_dim original_max_position_embeddings
    intermediate_size_mlp
"""
_NOT_IN_THE_FORWARD_TEXT = """
    _name_or_path _model_name_or_path _commit_hash transformers_version bos_token_id eos_token_id pad_token_id
    unk_token_id mask_token_id initializer_range use_cache attention_dropout pretraining_tp auto_map quantization_config
    speculators_model_type speculators_config speculators_version embed_requires_grad has_no_defaults_at_init return_dict
    output_attentions output_hidden_states torchscript use_bfloat16 pruned_heads chunk_size_feed_forward
    is_encoder_decoder problem_type id2label label2id tokenizer_class task_specific_params attn_implementation
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _experts_implementation
    hidden_dropout dropout resid_pdrop embd_pdrop attention_probs_dropout_prob hidden_dropout_prob classifier_dropout
    gradient_checkpointing draft_model_type target_model_type modelopt modelopt_version producer target_model_path
    verifier_name_or_path training_args max_window_layers ttt_length ttt_step_loss_decay ttt_steps loss_decay
    aux_loss_alpha seq_aux moe_layer_freq n_group n_routed_experts n_shared_experts norm_topk_prob num_experts_per_tok
    num_experts num_local_experts experts_per_token decoder_sparse_step mlp_only_layers output_router_logits
    router_jitter_noise shared_expert_intermediate_size num_nextn_predict_layers routed_scaling_factor scoring_func
    topk_group topk_method ep_size first_k_dense_replace moe_intermediate_size router_aux_loss_coef
    initial_context_length tie_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention finetuning_task
    prefix top_k top_p temperature min_length max_length num_beams num_beam_groups num_return_sequences do_sample
    sep_token_id decoder_start_token_id early_stopping diversity_penalty repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size typical_p bad_words_ids suppress_tokens begin_suppress_tokens
    forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty output_scores return_dict_in_generate
    remove_invalid_values tf_legacy_loss eagle_decoder_type
    image_token_id image_token_index video_token_id vision_token_id vision_start_token_id vision_end_token_id
    boi_token_index eoi_token_index mm_tokens_per_image spatial_merge_size vision_feature_layer projector_hidden_act
    multimodal_projector_bias cache_implementation for_llm_compressor mamba_ssm_dtype mtp_num_hidden_layers
    mtp_transformer_layers mtp_use_dedicated_embeddings num_mtp_modules use_mtp num_shared_experts is_moe_layer
    mlp_layer_types interleave_moe_layer_step use_routing_bias shared_moe_mode
"""
_OF_TARGETS_TEXT = """
    attention_chunk_size attn_output_gate attn_scale attn_type_list floor_scale full_attention_interval full_attn_mod
    index_head_dim index_n_heads index_topk indexer_rope_interleave interpolate_factor layernorm_full_attention_beta
    linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
    mlp_intermediate_size post_norm qk_norm_type rope_local_base_freq rotary_dim shared_intermediate_size
    sliding_window_pattern swiglu_limit o_lora_rank max_2d_position_embeddings t2u_max_position_embeddings
"""
_NESTED_READ_TEXT = """
    use_aux_hidden_state eagle_aux_hidden_state_layer_ids layer_ids aux_hidden_state_layer_ids norm_before_fc
    norm_before_residual eagle_decoder_type
"""
_READ = frozenset(_READ_TEXT.split())
_NOT_IN_THE_FORWARD = frozenset(_NOT_IN_THE_FORWARD_TEXT.split())
_NESTED_READ = frozenset(_NESTED_READ_TEXT.split())
ORDINARY = frozenset(_OF_TARGETS_TEXT.split())
"""Keys of public targets, from which a draft's config may have been copied whole; some of them make another forward."""

_Neutral = Callable[[Any, DraftConfig], bool]


def _any_of(*values: Any) -> _Neutral:
    return lambda value, _: type(value) in (bool, int, float, str) and value in values


_ON, _OFF, _ONE, _NONE = _any_of(True), _any_of(False), _any_of(1), _any_of(0)


def _each_turned(value: Any, config: DraftConfig) -> bool:
    """One entry per layer, 1 for one that turns positions."""
    return isinstance(value, list) and all(value[: config.layers])


NEUTRAL: Mapping[str, _Neutral] = {
    "use_rope": _ON, "use_rotary_embeddings": _ON, "no_rope_layers": _each_turned, "skip_rope": _OFF,
    "use_qk_norm": _OFF, "qk_norm": _OFF, "qk_layernorm": _OFF, "use_qkv_norm": _OFF,
    "residual_multiplier": _ONE, "embedding_multiplier": _ONE, "logits_scaling": _ONE, "logit_scale": _ONE,
    "scale_emb": _ONE, "scale_attn_weights": _ON, "scale_attn_by_inverse_layer_idx": _OFF,
    "attention_multiplier": lambda value, config: abs(float(value) - config.head_dim**-0.5) < 1e-6
    if type(value) in (int, float) else False,
    "query_pre_attn_scalar": lambda value, config: type(value) in (int, float) and value == config.head_dim,
    "attn_logit_softcapping": _NONE, "final_logit_softcapping": _NONE, "clip_qkv": _NONE,
    "attn_temperature_tuning": _any_of(False, 0), "use_bidirectional_attention": _OFF,
    "parallel_attn": _OFF, "use_parallel_residual": _OFF, "parallel_drafting": _OFF, "use_mrope": _OFF,
    "qkv_bias": _OFF, "use_qkv_bias": _OFF, "add_qkv_bias": _OFF, "use_bias": _OFF, "add_bias_linear": _OFF,
    "lm_head_bias": _OFF, "attention_out_bias": _OFF, "post_norm": _OFF, "attn_output_gate": _OFF,
    "rotary_dim": lambda value, config: value == config.head_dim,
    "hidden_activation": lambda value, config: value == config.activation,
}  # fmt: skip
"""Switches of decoder layers that SGLang's draft classes do not have, by the value with which a layer is a plain one."""
NESTED_NEUTRAL: Mapping[str, _Neutral] = {
    "use_last_layernorm": _ON, "use_mtp_layernorm": _OFF, "use_input_layernorm_in_first_layer": _ON,
    "parallel_draft_step": _any_of(0, 1), "parallel_draft_heads_num_layers": _NONE,
    "next_layer_regular": lambda value, config: value is True or (config.layers == 1 and value is False),
}  # fmt: skip
"""Model-Optimizer's own switches. ``next_layer_regular`` is about the layers after the first."""
TOP_LEVEL_ONLY = ("norm_output", "fc_norm", "use_aux_norm", "bias")
"""Switches that SGLang reads, and not in ``eagle_config``; a false one there says what is so without it."""


def unknown_switches(config: DraftConfig, ignore: Collection[str] = ()) -> tuple[str, ...]:
    """Config keys that may change the forward and that this replay does not know, nested ones dotted.

    ignore: keys to leave out; a nested one by its whole name, or by its last part.
    """
    return tuple(key for key, _ in _changing(config) if key not in ignore and key.rpartition(".")[2] not in ignore)


def strange_switches(config: DraftConfig) -> tuple[tuple[str, Any], ...]:
    """Those of :func:`unknown_switches` that no table here has, with their values."""
    known = {*NEUTRAL, *(f"eagle_config.{key}" for key in (*NESTED_NEUTRAL, *TOP_LEVEL_ONLY))}
    return tuple((key, value) for key, value in _changing(config) if key not in known)


def unlike_plain(config: DraftConfig) -> Mapping[str, Any]:
    """Those of :func:`unknown_switches` whose meaning is known, with their values."""
    strange = {key for key, _ in strange_switches(config)}
    return {key: value for key, value in _changing(config) if key not in strange}


def near_name(key: str) -> str | None:
    """The key that somebody surely meant by an unknown one (both dotted where they are nested); None where none is near.

    Near is the same name with other separators or capitals, a few letters apart, or in the other place: at the top level
    where it belongs into ``eagle_config``, or the reverse.
    """
    place, _, leaf = key.rpartition(".")
    nested = [f"{_EAGLE}{name}" for name in sorted(_NESTED_READ)]
    names = [*nested, *sorted(_READ)] if place else [*sorted(_READ), *nested]
    bare = _bare(leaf)
    allowed = 0 if len(bare) < 5 else 1 if len(bare) < 9 else 2 if len(bare) < 24 else 3
    found = [(_apart(bare, _bare(name.removeprefix(_EAGLE)), allowed), name) for name in names]
    apart, name = min(found, key=lambda one: one[0])
    return name if apart <= allowed and leaf not in ORDINARY and name != key else None


_EAGLE = "eagle_config."


def _bare(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


def _apart(one: str, other: str, most: int) -> int:
    """Letters to put in, take out or exchange between two names; ``most + 1`` for any number beyond ``most``.

    difflib counts an exchanged letter twice: what then lets "hidden_sise" through takes "attention_heads" for a slip, too.
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return min(row[-1], most + 1)


def keys_of(config: DraftConfig) -> frozenset[str]:
    """Every key of the config, nested ones by their whole name and by their last part."""
    nested = config.raw.get("eagle_config")
    inner = list(nested) if isinstance(nested, Mapping) else []
    return frozenset((*config.raw, *config.flat, *inner, *(f"eagle_config.{key}" for key in inner)))


def _changing(config: DraftConfig) -> Iterator[tuple[str, Any]]:
    """Every key with a value under which the forward may be another one, in the order of the file; null is no value."""
    for key, value in config.flat.items():
        if value is None or key in _READ or key in _NOT_IN_THE_FORWARD:
            continue
        if key not in NEUTRAL or not NEUTRAL[key](value, config):
            yield key, value
    nested = config.raw.get("eagle_config")
    for key, value in (nested if isinstance(nested, Mapping) else {}).items():
        if value is None or key in _NESTED_READ or (key in TOP_LEVEL_ONLY and value is False):
            continue
        if key not in NESTED_NEUTRAL or not NESTED_NEUTRAL[key](value, config):
            yield f"eagle_config.{key}", value
