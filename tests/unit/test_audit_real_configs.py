"""Targets' configs as their makers wrote them, in the layout of the files and in small numbers: no SGLang is asked."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from audit_folders import DEEPSEEK_TARGET, LLAMA_TARGET, mla, mla_tensors, specforge, write_draft, write_target

from drafttrace.compare.audit import asking_sglang
from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.model_types import PLAIN_TYPES
from drafttrace.compare.audit.plain_configs import unusual_target

CODE = {
    "AutoConfig": "configuration_deepseek.DeepseekV3Config",
    "AutoModel": "modeling_deepseek.DeepseekV3Model",
    "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
}
SIZES: dict[str, Any] = {
    **DEEPSEEK_TARGET,
    "num_key_value_heads": 4, "intermediate_size": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6, "kv_lora_rank": 8,
    "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4,
    "n_shared_experts": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "ep_size": 1,
    "num_nextn_predict_layers": 1, "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02,
    "tie_word_embeddings": False, "use_cache": True, "bos_token_id": 0, "eos_token_id": 1, "aux_loss_alpha": 0.001,
    "seq_aux": True, "pretraining_tp": 1,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64, "type": "yarn",
    },
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]
    },
}  # fmt: skip
DUMPED: dict[str, Any] = {
    "_name_or_path": "", "add_cross_attention": False, "bad_words_ids": None, "begin_suppress_tokens": None,
    "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "decoder_start_token_id": None,
    "diversity_penalty": 0.0, "do_sample": False, "early_stopping": False, "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None, "finetuning_task": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False,
    "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0, "max_length": 20,
    "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1,
    "output_attentions": False, "output_hidden_states": False, "output_scores": False, "prefix": None,
    "problem_type": None, "pruned_heads": {}, "remove_invalid_values": False, "repetition_penalty": 1.0,
    "return_dict": True, "return_dict_in_generate": False, "sep_token_id": None, "suppress_tokens": None,
    "task_specific_params": None, "temperature": 1.0, "tf_legacy_loss": False, "tie_encoder_decoder": False,
    "tokenizer_class": None, "top_k": 50, "top_p": 1.0, "torchscript": False, "typical_p": 1.0, "use_bfloat16": False,
}  # fmt: skip
"""What transformers 4 wrote into each part of a config beside what the part's class has."""
VISION: dict[str, Any] = {
    "init_pos_emb_height": 64, "init_pos_emb_time": 4, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool", "mm_hidden_size": 32, "mm_projector_type": "patchmerger", "patch_size": 14,
    "pos_emb_type": "divided_fixed", "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05, "text_hidden_size": 16,
    "video_attn_type": "spatial_temporal", "vt_hidden_size": 32, "vt_intermediate_size": 64, "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 2,
}  # fmt: skip
REAL: dict[str, dict[str, Any]] = {
    "DeepSeek-V3": {**SIZES, "auto_map": CODE, "transformers_version": "4.33.1"},
    "Kimi-K2": {**SIZES, "auto_map": CODE, "model_type": "kimi_k2", "transformers_version": "4.48.3", "unk_token_id": None},
    "Kimi-K2.5": {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
        "auto_map": {
            "AutoConfig": "configuration_kimi_k25.KimiK25Config",
            "AutoModel": "modeling_kimi_k25.KimiK25ForConditionalGeneration",
            "AutoModelForCausalLM": "modeling_kimi_k25.KimiK25ForConditionalGeneration",
        },
        "bos_token_id": 0, "dtype": "bfloat16", "eos_token_id": 1, "ignore_index": -100, "media_placeholder_token_id": 95,
        "pad_token_id": 94, "text_config": {**SIZES, **DUMPED, "auto_map": CODE}, "tie_word_embeddings": False,
        "transformers_version": "4.57.1", "use_unified_vision_chunk": True, "video_placeholder": "<|video|>",
        "vision_config": VISION,
    },
    "SmolLM2": {
        **LLAMA_TARGET, "_model_name_or_path": "Smollm2 135M 8k", "num_key_value_heads": 2, "rms_norm_eps": 9.999e-06,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}, "unk_token_id": 0, "mlp_bias": False,
    },
    "a dump of a Llama": {**LLAMA_TARGET, **DUMPED},
}  # fmt: skip


def audited(folder: Path, target: dict[str, Any]) -> Any:
    text = target.get("text_config", target)
    draft = mla([1, 30, 57]) if text["num_hidden_layers"] == 61 else specforge([1, 15, 28])
    tensors = mla_tensors() if "kv_lora_rank" in draft else None
    draft["model_type"] = "kimi_k2" if tensors is not None else "llama"
    return check(write_target(folder / "target", target), write_draft(folder / "draft", draft, tensors))


@pytest.mark.parametrize("name", REAL)
def test_the_config_of_a_real_model_is_checked_without_asking_sglang(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """auto_map and _model_name_or_path each took the ten seconds of SGLang's import; a check has two."""
    monkeypatch.setattr(asking_sglang.subprocess, "run", None)  # whoever calls it fails
    began = time.perf_counter()
    result = audited(tmp_path, REAL[name])
    assert time.perf_counter() - began < 2 and not result.faults, result.faults
    assert not [said for said in result.notes if "asked" in said]


@pytest.mark.parametrize(
    "change",
    [
        {"auto_map": None},
        {"auto_map": "own.Code"},
        {"auto_map": {"AutoConfig": ["own.Config"]}},
        {"auto_map": {"AutoModel": "modeling_deepseekocr.DeepseekOCRForCausalLM"}},
        {"auto_map": CODE, "model_type": "own"},
        {"auto_map": CODE, "model_type": "chatglm"},
        {"id2label": {"a": "b"}},
        {"label2id": {"a": "b"}},
        {"pruned_heads": {"0": [1]}},
    ],
    ids=str,
)
def test_what_is_not_known_to_load_is_still_asked_about(change: dict[str, Any]) -> None:
    assert unusual_target({**SIZES, **change})


@pytest.mark.slow
def test_sglang_loads_each_of_them_and_the_dump_in_every_plain_type(tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    from drafttrace.compare.audit.sglang_loads import _asked

    every = {
        **REAL,
        **{kind: {**LLAMA_TARGET, **DUMPED, "auto_map": CODE, "model_type": kind} for kind in PLAIN_TYPES},
    }
    for name, config in every.items():
        place = tmp_path / name
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
        said = _asked("target", place, tmp_path)
        assert "error" not in said and not unusual_target(config), (name, said)
