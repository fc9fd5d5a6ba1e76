"""What a draft's forward can switch on, read from its config; and the keys that no switch of this replay covers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights
from drafttrace.tracer.errors import UnknownFormat

OFFSETS, ABSOLUTE = "offsets", "absolute"
TARGETS, OWN = "target", "own"

_READ_TEXT = """
    architectures model_type hidden_size target_hidden_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim intermediate_size hidden_act rms_norm_eps rope_theta rope_scaling rope_parameters
    rope_interleave partial_rotary_factor max_position_embeddings vocab_size draft_vocab_size tie_word_embeddings
    torch_dtype dtype eagle_config eagle_aux_hidden_state_layer_ids aux_hidden_state_layer_ids target_layer_ids
    num_aux_hidden_states bias fc_norm use_aux_norm norm_before_fc norm_before_residual norm_output attention_bias
    mlp_bias kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim sliding_window layer_types
    use_sliding_window transformer_layer_config qk_head_dim original_max_position_embeddings
"""
_NOT_IN_THE_FORWARD_TEXT = """
    _name_or_path transformers_version bos_token_id eos_token_id pad_token_id unk_token_id initializer_range use_cache
    attention_dropout pretraining_tp auto_map quantization_config speculators_model_type speculators_config
    speculators_version embed_requires_grad has_no_defaults_at_init return_dict output_attentions output_hidden_states
    torchscript use_bfloat16 pruned_heads chunk_size_feed_forward is_encoder_decoder problem_type id2label label2id
    tokenizer_class task_specific_params attn_implementation _attn_implementation _attn_implementation_autoset
    hidden_dropout resid_pdrop embd_pdrop draft_model_type target_model_type modelopt modelopt_version producer
    target_model_path verifier_name_or_path training_args max_window_layers ttt_length ttt_step_loss_decay ttt_steps
    loss_decay aux_loss_alpha seq_aux moe_layer_freq n_group n_routed_experts n_shared_experts norm_topk_prob
    num_experts_per_tok num_nextn_predict_layers routed_scaling_factor scoring_func topk_group topk_method ep_size
    first_k_dense_replace moe_intermediate_size router_aux_loss_coef tie_encoder_decoder is_decoder
    cross_attention_hidden_size add_cross_attention finetuning_task prefix top_k top_p temperature min_length max_length
    num_beams do_sample sep_token_id decoder_start_token_id
"""
_NESTED_READ_TEXT = """
    use_aux_hidden_state eagle_aux_hidden_state_layer_ids layer_ids aux_hidden_state_layer_ids norm_before_fc
    norm_before_residual use_last_layernorm next_layer_regular parallel_draft_step parallel_draft_heads_num_layers
    use_mtp_layernorm use_input_layernorm_in_first_layer
"""
_READ = frozenset(_READ_TEXT.split())
_NOT_IN_THE_FORWARD = frozenset(_NOT_IN_THE_FORWARD_TEXT.split())
_NESTED_READ = frozenset(_NESTED_READ_TEXT.split())
_NESTED_FIXED = {
    "use_last_layernorm": (True,),
    "parallel_draft_step": (0, 1),
    "parallel_draft_heads_num_layers": (0, None),
    "use_mtp_layernorm": (False,),
}
"""Model-Optimizer's own switches, with the values under which its draft is the EAGLE-3 one."""


@dataclass(frozen=True)
class Switches:
    """One way to run the draft.

    fc_norm: a norm per slot before fc. input_norm: one norm over all slots. norm_before_residual: the residual is the
    normed state. norm_output: the state handed to the next step is the normed one. d2t: how the map's numbers are
    meant. token_shift: added to the index of the token that goes with a row (0: x[t+1]). embedding: whose table.
    windows: tokens that a row of each layer sees, itself included; () where every layer sees everything.
    """

    fc_norm: bool = False
    input_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    d2t: str = OFFSETS
    token_shift: int = 0
    embedding: str = TARGETS
    windows: tuple[int | None, ...] = ()


def unknown_switches(config: DraftConfig, ignore: Collection[str] = ()) -> tuple[str, ...]:
    """Config keys that may change the forward and that this replay does not know. Those set to false are off."""
    layer = config.raw.get("transformer_layer_config")
    keys = {**(layer if isinstance(layer, dict) else {}), **config.raw}
    found = [
        key
        for key, value in keys.items()
        if key not in _READ and key not in _NOT_IN_THE_FORWARD and key not in ignore and value not in (None, False)
    ]
    nested = config.raw.get("eagle_config")
    for key, value in (nested if isinstance(nested, dict) else {}).items():
        fixed = _NESTED_FIXED.get(key)
        unknown = key not in _NESTED_READ and value not in (None, False)
        if key not in ignore and (unknown or (fixed is not None and value not in fixed)):
            found.append(f"eagle_config.{key}")
    return tuple(found)


def switches_of(config: DraftConfig, weights: DraftWeights, ignore: Collection[str] = ()) -> Switches:
    """The forward as the draft's config describes it: what training did.

    A norm is on where its flag is set, or where its weights are there (SGLang then skips it: the audit says so).
    Raises UnknownFormat for a config with a switch that this replay does not know.
    """
    unknown = unknown_switches(config, ignore)
    if unknown:
        listed = ", ".join(f"'{key}'" for key in unknown)
        raise UnknownFormat(
            f"{config.path} sets {listed}, which the replay does not know, so its numbers would be another model's; "
            f"give --ignore {unknown[0]} if it changes nothing in the draft's forward."
        )
    if config.activation not in ACTIVATIONS:
        raise UnknownFormat(
            f"{config.path} has hidden_act '{config.activation}', which the replay does not know; copy the training "
            f"run's config (known are {', '.join(sorted(ACTIVATIONS))})."
        )
    own = "embed_tokens.weight" in weights
    return Switches(
        fc_norm="fc_norm.0.weight" in weights,
        input_norm="input_norm.weight" in weights,
        norm_before_residual=config.norm_before_residual,
        norm_output=bool(config.norm_output),
        embedding=OWN if own else TARGETS,
        windows=config.windows if config.window is not None else (),
    )


ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu")
