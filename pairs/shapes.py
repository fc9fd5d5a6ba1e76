"""The sizes of the two target architectures, to and from the config.json that a model is saved with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pairs.chat import BOS_ID, END_ID
from pairs.tokenizer import VOCAB_SIZE

MAX_POSITIONS = 2048
EPS = 1e-6


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of the dense target."""

    layers: int = 16
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    inter: int = 192
    theta: float = 10_000.0

    def config(self) -> dict[str, Any]:
        """config.json of the saved model."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": BOS_ID,
            "eos_token_id": END_ID,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.inter,
            "max_position_embeddings": MAX_POSITIONS,
            "mlp_bias": False,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pretraining_tp": 1,
            "rms_norm_eps": EPS,
            "rope_scaling": None,
            "rope_theta": self.theta,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": VOCAB_SIZE,
        }


@dataclass(frozen=True)
class DeepseekShape:
    """Sizes of the MLA + mixture-of-experts target: the architecture inside Kimi-K2.5, 61 layers deep."""

    layers: int = 61
    dense_layers: int = 1
    hidden: int = 96
    heads: int = 4
    nope: int = 16
    rope: int = 32
    v_dim: int = 32
    q_rank: int = 24
    kv_rank: int = 40
    experts: int = 4
    top_k: int = 2
    expert_inter: int = 16
    routed_scale: float = 1.0
    theta: float = 10_000.0

    @property
    def dense_inter(self) -> int:
        """Width of the dense layers' MLP: as wide as all experts together."""
        return (self.experts + 1) * self.expert_inter

    def config(self) -> dict[str, Any]:
        """config.json of the saved model. The yarn factor 1 makes it plain rope, which the draft shares."""
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": BOS_ID,
            "eos_token_id": END_ID,
            "ep_size": 1,
            "first_k_dense_replace": self.dense_layers,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.dense_inter,
            "kv_lora_rank": self.kv_rank,
            "max_position_embeddings": MAX_POSITIONS,
            "moe_intermediate_size": self.expert_inter,
            "moe_layer_freq": 1,
            "n_group": 1,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": self.heads,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.heads,
            "num_nextn_predict_layers": 0,
            "pretraining_tp": 1,
            "q_lora_rank": self.q_rank,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "rms_norm_eps": EPS,
            "rope_scaling": {
                "beta_fast": 1,
                "beta_slow": 1,
                "factor": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": MAX_POSITIONS,
                "type": "yarn",
            },
            "rope_theta": self.theta,
            "routed_scaling_factor": self.routed_scale,
            "scoring_func": "sigmoid",
            "tie_word_embeddings": False,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "v_head_dim": self.v_dim,
            "vocab_size": VOCAB_SIZE,
        }


def shape_from_config(config: dict[str, Any]) -> LlamaShape | DeepseekShape:
    """Read the sizes back out of a config.json that `Target.save` wrote."""
    shape: LlamaShape | DeepseekShape
    if config["model_type"] == "llama":
        shape = LlamaShape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            inter=config["intermediate_size"],
            theta=config["rope_theta"],
        )
    else:
        shape = DeepseekShape(
            layers=config["num_hidden_layers"],
            dense_layers=config["first_k_dense_replace"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            nope=config["qk_nope_head_dim"],
            rope=config["qk_rope_head_dim"],
            v_dim=config["v_head_dim"],
            q_rank=config["q_lora_rank"],
            kv_rank=config["kv_lora_rank"],
            experts=config["n_routed_experts"],
            top_k=config["num_experts_per_tok"],
            expert_inter=config["moe_intermediate_size"],
            routed_scale=config["routed_scaling_factor"],
            theta=config["rope_theta"],
        )
    return shape


def describe(shape: LlamaShape | DeepseekShape) -> str:
    """One line for the log."""
    sizes = ", ".join(f"{k}={v}" for k, v in asdict(shape).items())
    return f"{type(shape).__name__}({sizes})"
