"""Configs of the public target families of EAGLE-3 drafts, in the layout of their makers' files and in small numbers."""

from __future__ import annotations

from typing import Any

from audit_folders import HIDDEN, LLAMA_TARGET, VOCAB

_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 512, "initializer_range": 0.02,
    "rms_norm_eps": 1e-05, "use_cache": True,
}  # fmt: skip
_COMMON: dict[str, Any] = {
    **_SIZES, "hidden_act": "silu", "attention_dropout": 0.0, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.54.0",
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}  # fmt: skip
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "moe_intermediate_size": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "depth": 2, "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "in_chans": 3,
    "out_hidden_size": HIDDEN, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112,
    "fullatt_block_indexes": [0, 1], "tokens_per_second": 2, "temporal_patch_size": 2,
}  # fmt: skip
_DEEP: dict[str, Any] = {
    "deepstack_visual_indexes": [0, 1], "depth": 2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 16,
    "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 32, "num_heads": 2, "num_position_embeddings": 16,
    "out_hidden_size": HIDDEN, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
_IMAGE_IDS: dict[str, Any] = {
    "image_token_id": 90,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}
_MIXED: dict[str, Any] = {
    "attn_output_gate": True, "full_attention_interval": 4, "head_dim": 8, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_value_head_dim": 8,
    "partial_rotary_factor": 0.25,
}  # fmt: skip
_KINDS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8


def _without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def _named(name: str, kind: str, **rest: Any) -> dict[str, Any]:
    return {"architectures": [name], "model_type": kind, **rest}


_QWEN35: dict[str, Any] = {
    **_without(_COMMON, "torch_dtype", "rope_theta", "transformers_version"), **_MIXED, "dtype": "bfloat16",
    "attention_bias": False, "eos_token_id": 1, "layer_types": _KINDS, "mamba_ssm_dtype": "float32", "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
        "rope_type": "default",
    },
}  # fmt: skip
_VL_TEXT: dict[str, Any] = {
    **_without(_COMMON, "torch_dtype", "transformers_version", "tie_word_embeddings"), "attention_bias": False,
    "bos_token_id": 0, "dtype": "bfloat16", "eos_token_id": 1, "head_dim": 8,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default"}, "rope_theta": 5000000,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "GLM-4.5": _named(
        "Glm4MoeForCausalLM", "glm4_moe", **{**_COMMON, "rope_theta": 1000000}, **_ROUTED, attention_bias=True, head_dim=8,
        eos_token_id=[1, 2, 3], pad_token_id=1, partial_rotary_factor=0.5, rope_scaling=None, use_qk_norm=True,
    ),
    "GLM-4.7-Flash": _named(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", **_without(_COMMON, "torch_dtype", "rope_theta"), **_LATENT, **_ROUTED,
        attention_bias=False, dtype="bfloat16", eos_token_id=[1, 2, 3], pad_token_id=1, partial_rotary_factor=1.0,
        rope_scaling=None, rope_theta=1000000, topk_method="noaux_tc",
    ),
    "MiniMax-M2": _named(
        "MiniMaxM2ForCausalLM", "minimax_m2", **_without(_COMMON, "torch_dtype"),
        attn_type_list=[1] * 32,
        auto_map={
            "AutoConfig": "configuration_minimax_m2.MiniMaxM2Config",
            "AutoModelForCausalLM": "modeling_minimax_m2.MiniMaxM2ForCausalLM",
        },
        bos_token_id=None, eos_token_id=None, head_dim=8, layernorm_full_attention_beta=1.0, mlp_intermediate_size=32,
        mtp_transformer_layers=1, num_experts_per_tok=2, num_local_experts=4, num_mtp_modules=3, qk_norm_type="per_layer",
        quantization_config={
            "activation_scheme": "dynamic", "fmt": "float8_e4m3fn", "quant_method": "fp8", "weight_block_size": [128, 128],
            "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
        },
        rotary_dim=4, router_aux_loss_coef=0.001, router_jitter_noise=0.0, scoring_func="sigmoid",
        shared_intermediate_size=0, shared_moe_mode="sigmoid", sliding_window=None, use_mtp=True, use_qk_norm=True,
        use_routing_bias=True,
    ),
    "Llama-4": _named(
        "Llama4ForConditionalGeneration", "llama4", boi_token_index=80, eoi_token_index=81, image_token_index=82,
        text_config={
            **_without(_COMMON, "torch_dtype", "transformers_version"), "_attn_implementation_autoset": True,
            "attention_bias": False, "attention_chunk_size": 64, "attn_scale": 0.1, "attn_temperature_tuning": True,
            "bos_token_id": 0, "eos_token_id": [1, 2, 3], "floor_scale": 64, "for_llm_compressor": False, "head_dim": 8,
            "interleave_moe_layer_step": 1, "intermediate_size_mlp": 64, "model_type": "llama4_text", "no_rope_layers": [],
            "num_experts_per_tok": 1, "num_local_experts": 4, "output_router_logits": False, "pad_token_id": 4,
            "rope_scaling": {
                "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64,
                "rope_type": "llama3",
            },
            "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "torch_dtype": "bfloat16", "use_qk_norm": True,
        },
        tie_word_embeddings=False, torch_dtype="bfloat16", transformers_version="4.51.0.dev0",
        vision_config={
            "_attn_implementation_autoset": True, "attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": 16,
            "image_size": 336, "initializer_range": 0.02, "intermediate_size": 32, "model_type": "llama4_vision_model",
            "multi_modal_projector_bias": False, "norm_eps": 1e-05, "num_attention_heads": 2, "num_channels": 3,
            "num_hidden_layers": 2, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_dropout": 0.0,
            "projector_input_dim": 32, "projector_output_dim": 32, "rope_theta": 10000,
            "vision_feature_layer": -1, "vision_feature_select_strategy": "default", "vision_output_dim": 32,
        },
    ),
    "Qwen3-Next": _named(
        "Qwen3NextForCausalLM", "qwen3_next", **{**_COMMON, "rope_theta": 10000000}, **_MIXED, **_EXPERTS,
        attention_bias=False, bos_token_id=0, decoder_sparse_step=1, eos_token_id=1, mlp_only_layers=[], num_experts=4,
        rope_scaling=None, shared_expert_intermediate_size=8,
    ),
    "Gemma-3-1B": _named(
        "Gemma3ForCausalLM", "gemma3_text", **_without(_COMMON, "hidden_act", "tie_word_embeddings"), attention_bias=False,
        attn_logit_softcapping=None, bos_token_id=2, cache_implementation="hybrid", eos_token_id=[1, 3],
        final_logit_softcapping=None, head_dim=8, hidden_activation="gelu_pytorch_tanh", pad_token_id=0,
        query_pre_attn_scalar=8, rope_local_base_freq=10000, rope_scaling=None, sliding_window=64, sliding_window_pattern=6,
    ),
    "Gemma-3-27B": _named(
        "Gemma3ForConditionalGeneration", "gemma3", boi_token_index=90, eoi_token_index=91, eos_token_id=[1, 3],
        image_token_index=92, initializer_range=0.02, mm_tokens_per_image=256,
        text_config={
            **_without(_SIZES, "max_position_embeddings", "initializer_range", "rms_norm_eps", "use_cache"), "head_dim": 8,
            "model_type": "gemma3_text", "query_pre_attn_scalar": 168,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 64,
        },
        torch_dtype="bfloat16", transformers_version="4.50.0.dev0",
        vision_config={
            "hidden_size": 16, "image_size": 896, "intermediate_size": 32, "model_type": "siglip_vision_model",
            "num_attention_heads": 2, "num_hidden_layers": 2, "patch_size": 14, "vision_use_head": False,
        },
    ),
    "Phi-4": _named(
        "Phi3ForCausalLM", "phi3", **{**_COMMON, "rope_theta": 250000}, attention_bias=False, bos_token_id=0,
        embd_pdrop=0.0, eos_token_id=1, original_max_position_embeddings=512, pad_token_id=2, resid_pdrop=0.0,
        rope_scaling=None, sliding_window=None,
    ),
    "Phi-4-mini": _named(
        "Phi3ForCausalLM", "phi3", **_COMMON, attention_bias=False,
        auto_map={
            "AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
            "AutoTokenizer": "Xenova/gpt-4o",
        },
        bos_token_id=0, embd_pdrop=0.0, eos_token_id=1, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False,
        mlp_bias=False, original_max_position_embeddings=64, pad_token_id=2, partial_rotary_factor=1.0, resid_pdrop=0.0,
        rope_scaling={"long_factor": [1, 1.5], "short_factor": [1.0, 1.0], "type": "longrope"}, sliding_window=64,
    ),
    "Qwen2.5-VL": _named(
        "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", **_COMMON, **_IMAGE_IDS, bos_token_id=0, eos_token_id=1,
        max_window_layers=28, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 0]}, sliding_window=64,
        use_sliding_window=False, vision_config=_VISION, vision_token_id=94,
    ),
    "Qwen2.5-VL in two parts": _named(
        "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", **_IMAGE_IDS, dtype="bfloat16", tie_word_embeddings=False,
        text_config={
            **_without(_COMMON, "torch_dtype", "tie_word_embeddings", "transformers_version"),
            "architectures": ["Qwen2_5_VLForConditionalGeneration"], "bos_token_id": 0, "eos_token_id": 1,
            "layer_types": ["full_attention"] * 32, "max_window_layers": 28, "model_type": "qwen2_5_vl_text",
            "rope_scaling": {"mrope_section": [1, 1, 0], "rope_type": "default", "type": "default"}, "sliding_window": None,
            "use_sliding_window": False, "vision_token_id": 94,
        },
        vision_config={**_VISION, "model_type": "qwen2_5_vl_vision"},
    ),
    "Qwen3-VL": _named(
        "Qwen3VLForConditionalGeneration", "qwen3_vl", **_IMAGE_IDS,
        text_config={**_VL_TEXT, "model_type": "qwen3_vl_text"}, tie_word_embeddings=False,
        transformers_version="4.57.0.dev0", vision_config={**_DEEP, "model_type": "qwen3_vl"},
    ),
    "Qwen3-VL-MoE": _named(
        "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", **_IMAGE_IDS, tie_word_embeddings=False,
        text_config={
            **_VL_TEXT, **_without(_EXPERTS, "output_router_logits", "router_aux_loss_coef"), "decoder_sparse_step": 1,
            "mlp_only_layers": [], "model_type": "qwen3_vl_moe_text", "num_experts": 4,
        },
        vision_config={**_DEEP, "model_type": "qwen3_vl_moe"},
    ),
    "Qwen3.5": _named(
        "Qwen3_5ForConditionalGeneration", "qwen3_5", **_IMAGE_IDS, text_config={**_QWEN35, "model_type": "qwen3_5_text"},
        tie_word_embeddings=False, vision_config={**_DEEP, "deepstack_visual_indexes": [], "model_type": "qwen3_5"},
    ),
    "Qwen3.5-MoE": _named(
        "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", **_IMAGE_IDS, tie_word_embeddings=False,
        text_config={
            **_without(_QWEN35, "mlp_only_layers", "intermediate_size"), **_without(_EXPERTS, "norm_topk_prob"),
            "model_type": "qwen3_5_moe_text", "num_experts": 4, "shared_expert_intermediate_size": 8,
        },
        vision_config={**_DEEP, "deepstack_visual_indexes": [], "model_type": "qwen3_5_moe"},
    ),
    "Mistral-Small-3.1": _named(
        "Mistral3ForConditionalGeneration", "mistral3", image_token_index=10, multimodal_projector_bias=False,
        projector_hidden_act="gelu", spatial_merge_size=2, tie_word_embeddings=False, torch_dtype="bfloat16",
        text_config={
            **_without(_COMMON, "torch_dtype", "tie_word_embeddings", "transformers_version"), "head_dim": 8,
            "model_type": "mistral", "rope_theta": 1000000000.0, "sliding_window": None,
        },
        vision_config={
            "attention_dropout": 0.0, "head_dim": 8, "hidden_act": "silu", "hidden_size": 16, "image_size": 1540,
            "initializer_range": 0.02, "intermediate_size": 32, "model_type": "pixtral", "num_attention_heads": 2,
            "num_channels": 3, "num_hidden_layers": 2, "patch_size": 14, "rope_theta": 10000.0,
        },
        vision_feature_layer=-1,
    ),
    "Ministral-3": _named(
        "Mistral3ForConditionalGeneration", "mistral3", dtype="bfloat16", image_token_index=10,
        multimodal_projector_bias=False, projector_hidden_act="gelu", spatial_merge_size=2, tie_word_embeddings=False,
        text_config={
            **_without(_COMMON, "torch_dtype", "rope_theta", "transformers_version"), "head_dim": 8,
            "model_type": "ministral3", "sliding_window": None,
            "rope_parameters": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 64, "rope_theta": 1000000.0, "rope_type": "yarn",
                "type": "yarn",
            },
        },
        vision_config={
            "attention_dropout": 0.0, "head_dim": 8, "hidden_act": "silu", "hidden_size": 16, "image_size": 1540,
            "initializer_range": 0.02, "intermediate_size": 32, "model_type": "pixtral", "num_attention_heads": 2,
            "num_channels": 3, "num_hidden_layers": 2, "patch_size": 14,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        vision_feature_layer=-1,
    ),
    "DeepSeek-V3.2": _named(
        "DeepseekV32ForCausalLM", "deepseek_v32", **{**_COMMON, "num_key_value_heads": 4}, **_LATENT, **_ROUTED,
        attention_bias=False, bos_token_id=0, eos_token_id=1, ep_size=1, index_head_dim=8, index_n_heads=2, index_topk=16,
        moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc",
        quantization_config={
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        rope_scaling={
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64, "type": "yarn",
        },
    ),
    "GLM-5": _named(
        "GlmMoeDsaForCausalLM", "glm_moe_dsa",
        **{**_without(_COMMON, "torch_dtype", "rope_theta"), "num_key_value_heads": 4}, **_LATENT, **_ROUTED,
        attention_bias=False, dtype="bfloat16", eos_token_id=[1, 2, 3], ep_size=1, head_dim=4, index_head_dim=8,
        index_n_heads=2, index_topk=16, indexer_rope_interleave=True, moe_layer_freq=1, pad_token_id=1, pretraining_tp=1,
        qk_head_dim=12, rope_interleave=True, rope_parameters={"rope_theta": 1000000, "rope_type": "default"},
        scoring_func="sigmoid", topk_method="noaux_tc",
    ),
    "Apertus": _named(
        "ApertusForCausalLM", "apertus", **{**_COMMON, "hidden_act": "xielu", "rope_theta": 12000000}, attention_bias=False,
        bos_token_id=0, eos_token_id=[1, 2], mlp_bias=False, pad_token_id=3, post_norm=False, qk_norm=True,
        rope_scaling={
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64,
            "rope_type": "llama3", "type": "llama3",
        },
    ),
    "K-EXAONE": _named(
        "ExaoneMoEForCausalLM", "exaone_moe", **_without(_COMMON, "torch_dtype"), bos_token_id=0, dtype="bfloat16",
        eos_token_id=1, first_k_dense_replace=1, head_dim=8, is_moe_layer=[False] + [True] * 31,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 8,
        mlp_layer_types=["dense"] + ["sparse"] * 31, moe_intermediate_size=8, n_group=1, norm_topk_prob=True, num_experts=4,
        num_experts_per_tok=2, num_nextn_predict_layers=1, num_shared_experts=1, pad_token_id=0, rope_scaling=None,
        routed_scaling_factor=2.5, scoring_func="sigmoid", sliding_window=64, sliding_window_pattern="LLLG", topk_group=1,
        topk_method="noaux_tc",
    ),
    "Mellum": _named(
        "MellumForCausalLM", "mellum", **_without(_COMMON, "torch_dtype", "rope_theta"), **_EXPERTS, attention_bias=False,
        bos_token_id=0, dtype="bfloat16", eos_token_id=1, head_dim=8, layer_types=["full_attention"] * 32,
        mlp_layer_types=["sparse"] * 32, num_experts=4, sliding_window=64,
        rope_parameters={
            "full_attention": {"rope_theta": 500000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ),
    "Qwen2.5": _named(
        "Qwen2ForCausalLM", "qwen2", **_COMMON, bos_token_id=0, eos_token_id=1, max_window_layers=28, sliding_window=64,
        use_sliding_window=False, use_mrope=False,
    ),
    "Qwen3-MoE": _named(
        "Qwen3MoeForCausalLM", "qwen3_moe", **_COMMON, **_EXPERTS, attention_bias=False, bos_token_id=0,
        decoder_sparse_step=1, eos_token_id=1, head_dim=8, max_window_layers=32, mlp_only_layers=[], num_experts=4,
        rope_scaling=None, sliding_window=None, use_sliding_window=False,
    ),
    "gpt-oss": _named(
        "GptOssForCausalLM", "gpt_oss", **_without(_COMMON, "torch_dtype"), attention_bias=True, eos_token_id=1,
        experts_per_token=2, head_dim=8, initial_context_length=64, num_experts_per_tok=2, num_local_experts=4,
        layer_types=["sliding_attention", "full_attention"] * 16, output_router_logits=False, pad_token_id=2,
        quantization_config={
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
            "quant_method": "mxfp4",
        },
        rope_scaling={
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 64,
            "rope_type": "yarn", "truncate": False,
        },
        router_aux_loss_coef=0.9, sliding_window=64, swiglu_limit=7.0,
    ),
    "Llama-3.1": {
        **LLAMA_TARGET, "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": [1, 2, 3],
        "hidden_act": "silu", "initializer_range": 0.02, "intermediate_size": 32, "mlp_bias": False,
        "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": False, "use_cache": True,
    },
}  # fmt: skip
"""By a name of the family: the config of a target of 32 layers."""
