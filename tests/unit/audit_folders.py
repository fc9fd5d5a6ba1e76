"""Small model folders for the audit and the replay: real configs and weights, a few kilobytes each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from drafttrace.tracer.capture import Capture, RowTable, Slot
from drafttrace.tracer.rows import ArrayRows, DType

HIDDEN, VOCAB, PRUNED = 16, 96, 48

LLAMA_TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 32,
    "num_attention_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
KIMI_TARGET: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {**LLAMA_TARGET, "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61},
}
DEEPSEEK_TARGET: dict[str, Any] = {
    **LLAMA_TARGET,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
}
GPT_OSS_TARGET: dict[str, Any] = {
    **LLAMA_TARGET,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
}

_LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
}


def specforge(ids: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    """The key layout of a SpecForge draft, ids nested."""
    config = {
        **_LAYER,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": PRUNED,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **changes,
    }
    if ids is not None:
        nested = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids}
        config["eagle_config"] = {**nested, **changes.get("eagle_config", {})}
    return config


def speculators(ids: list[int] | None, **changes: Any) -> dict[str, Any]:
    """The key layout of a speculators draft: ids at the top, the layer's config inside."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x"}},
        "transformer_layer_config": dict(_LAYER),
        "draft_vocab_size": PRUNED,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": ids,
        **changes,
    }


def modelopt(ids: list[int], **nested: Any) -> dict[str, Any]:
    """The key layout of a Model-Optimizer export."""
    return {
        **_LAYER,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": PRUNED,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": ids,
            "use_aux_hidden_state": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
            "next_layer_regular": True,
            "parallel_draft_step": 1,
            **nested,
        },
    }


def angelslim() -> dict[str, Any]:
    """The key layout of an AngelSlim draft: no ids anywhere."""
    return {
        **_LAYER,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": PRUNED,
        "torch_dtype": "bfloat16",
    }


def kept_tokens() -> torch.Tensor:
    """The target tokens that the pruned vocabulary keeps."""
    return torch.arange(PRUNED) * 2


def draft_tensors(slots: int = 3, slot_width: int = HIDDEN, prefix: str = "midlayer.") -> dict[str, torch.Tensor]:
    """Every tensor of a one-layer draft, random, with d2t offsets and t2d."""
    generator = torch.Generator().manual_seed(7)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / max(1, shape[-1]) ** 0.5

    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[kept_tokens()] = True
    return {
        "fc.weight": rand(HIDDEN, slots * slot_width),
        f"{prefix}hidden_norm.weight": 1 + rand(HIDDEN),
        f"{prefix}input_layernorm.weight": 1 + rand(HIDDEN),
        f"{prefix}post_attention_layernorm.weight": 1 + rand(HIDDEN),
        f"{prefix}self_attn.q_proj.weight": rand(HIDDEN, 2 * HIDDEN),
        f"{prefix}self_attn.k_proj.weight": rand(HIDDEN // 2, 2 * HIDDEN),
        f"{prefix}self_attn.v_proj.weight": rand(HIDDEN // 2, 2 * HIDDEN),
        f"{prefix}self_attn.o_proj.weight": rand(HIDDEN, HIDDEN),
        f"{prefix}mlp.gate_proj.weight": rand(24, HIDDEN),
        f"{prefix}mlp.up_proj.weight": rand(24, HIDDEN),
        f"{prefix}mlp.down_proj.weight": rand(HIDDEN, 24),
        "norm.weight": 1 + rand(HIDDEN),
        "lm_head.weight": rand(PRUNED, HIDDEN),
        "d2t": kept_tokens() - torch.arange(PRUNED),
        "t2d": mask,
    }


def mla(ids: list[int], **changes: Any) -> dict[str, Any]:
    """The key layout of a draft with multi-latent attention, as SGLang's ``kimi_k25_eagle3`` serves it."""
    dims = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
    return specforge(ids, **{"architectures": ["Eagle3DeepseekV2ForCausalLM"], **dims, **changes})


def mla_tensors() -> dict[str, torch.Tensor]:
    """Every tensor of a one-layer MLA draft of four heads."""
    held = {name: t for name, t in draft_tensors().items() if ".self_attn." not in name}
    shapes = {
        "q_a_proj": (8, 2 * HIDDEN),
        "q_a_layernorm": (8,),
        "q_b_proj": (4 * 8, 8),
        "kv_a_proj_with_mqa": (8 + 4, 2 * HIDDEN),
        "kv_a_layernorm": (8,),
        "kv_b_proj": (4 * 8, 8),
        "o_proj": (HIDDEN, 4 * 4),
    }
    return held | {f"midlayer.self_attn.{name}.weight": torch.rand(shape) for name, shape in shapes.items()}


def write_draft(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None = None,
    drop: tuple[str, ...] = (),
    **changes: torch.Tensor,
) -> Path:
    """A draft folder. ``changes`` replaces tensors, dots written as double underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    held = dict(tensors if tensors is not None else draft_tensors())
    held |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    for name in drop:
        held.pop(name)
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, folder / "model.safetensors")
    return folder


def target_tensors(hidden: int = HIDDEN, vocab: int = VOCAB) -> dict[str, torch.Tensor]:
    """The three tensors of a target that anything here reads."""
    generator = torch.Generator().manual_seed(11)
    return {
        "model.embed_tokens.weight": torch.randn(vocab, hidden, generator=generator).bfloat16(),
        "model.norm.weight": torch.ones(hidden).bfloat16(),
        "lm_head.weight": torch.randn(vocab, hidden, generator=generator).bfloat16(),
    }


def write_target(folder: Path, config: Mapping[str, Any] = LLAMA_TARGET, weights: bool = True) -> Path:
    """A target folder with embedding, norm and head."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        text = config.get("text_config") or config
        save_file(target_tensors(text["hidden_size"], text["vocab_size"]), folder / "model.safetensors")
    return folder


def dump_of(slots: list[np.ndarray], tokens: np.ndarray, declared: list[int | None]) -> Capture:
    """One sample of a dump in memory, its slots in order with the boundaries that it declares."""
    rows = [ArrayRows(np.ascontiguousarray(slot, np.float32), DType.FP32) for slot in slots]
    return Capture(
        path="dump/data_0.pt",
        format="SPEC-V1",
        recognised_by="test",
        tokens=tokens,
        table=RowTable.of_tokens(tokens),
        slots=tuple(Slot(f"s{k}", r, declared[k], "ASSUMED default") for k, r in enumerate(rows)),
    )
