"""The EAGLE-3 draft in plain torch: what SGLang's `LlamaForCausalLMEagle3` computes, unrolled for training.

Row t reads the target's slots at t and the embedding of token t+1, and predicts token t+2. Step s of the
unrolled form (training-time test) reads the state that step s-1 left in the row and the embedding of token
t+1+s, and attends to the first-step keys up to t and to the row's own later keys, as a chain of drafted
tokens does in serving.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pairs.chat import BOS_ID, END_ID
from pairs.shapes import EPS, MAX_POSITIONS
from pairs.targets import rms_norm, rope_angles, rotate_halves
from pairs.tokenizer import VOCAB_SIZE


@dataclass(frozen=True)
class DraftShape:
    """Sizes of a draft. Its hidden size is the target's: it shares the target's embedding."""

    hidden: int
    slots: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    inter: int = 256
    vocab: int = 512
    theta: float = 10_000.0

    def config(self, layer_ids: list[int]) -> dict[str, Any]:
        """config.json as SpecForge exports it; `layer_ids` are what the trainer wrote down."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": BOS_ID,
            "draft_vocab_size": self.vocab,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": layer_ids, "use_aux_hidden_state": True},
            "eos_token_id": END_ID,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.inter,
            "max_position_embeddings": MAX_POSITIONS,
            "mlp_bias": False,
            "num_attention_heads": self.heads,
            "num_hidden_layers": 1,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": END_ID,
            "pretraining_tp": 1,
            "rms_norm_eps": EPS,
            "rope_scaling": None,
            "rope_theta": self.theta,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": VOCAB_SIZE,
        }


class Eagle3(nn.Module):
    """One decoder layer behind `fc`, and a head over the draft vocabulary."""

    _NAMES = {  # noqa: RUF012
        "fc": "fc",
        "q": "midlayer.self_attn.q_proj",
        "k": "midlayer.self_attn.k_proj",
        "v": "midlayer.self_attn.v_proj",
        "o": "midlayer.self_attn.o_proj",
        "gate": "midlayer.mlp.gate_proj",
        "up": "midlayer.mlp.up_proj",
        "down": "midlayer.mlp.down_proj",
        "hidden_norm": "midlayer.hidden_norm",
        "embed_norm": "midlayer.input_layernorm",
        "mlp_norm": "midlayer.post_attention_layernorm",
        "norm": "norm",
        "lm_head": "lm_head",
    }

    def __init__(self, shape: DraftShape, draft_ids: Tensor) -> None:
        super().__init__()
        self.shape = shape
        h, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

        def matrix(fan_out: int, fan_in: int, gain: float = 1.0) -> nn.Parameter:
            # one matrix is a stack of one: the optimiser tells matrices by their three dimensions
            return nn.Parameter(torch.randn(1, fan_out, fan_in) * gain * fan_in**-0.5)

        self.weights = nn.ParameterDict(
            {
                "fc": matrix(h, shape.slots * h),
                "q": matrix(q, 2 * h),
                "k": matrix(kv, 2 * h),
                "v": matrix(kv, 2 * h),
                "o": matrix(h, q, 0.5),
                "gate": matrix(shape.inter, h),
                "up": matrix(shape.inter, h),
                "down": matrix(h, shape.inter, 0.5),
                "hidden_norm": nn.Parameter(torch.ones(h)),
                "embed_norm": nn.Parameter(torch.ones(h)),
                "mlp_norm": nn.Parameter(torch.ones(h)),
                "norm": nn.Parameter(torch.ones(h)),
                "lm_head": nn.Parameter(torch.randn(shape.vocab, h) * h**-0.5),
            }
        )
        self.draft_ids: Tensor
        self.register_buffer("draft_ids", draft_ids)
        self.angles = rope_angles(MAX_POSITIONS, shape.head_dim, shape.theta)

    def _matrix(self, name: str) -> Tensor:
        weight = self.weights[name]
        return weight[0] if weight.ndim == 3 else weight

    def _heads(self, x: Tensor, name: str, count: int) -> Tensor:
        return F.linear(x, self._matrix(name)).unflatten(-1, (count, self.shape.head_dim)).transpose(1, 2)

    def forward(self, slots: Tensor, next_ids: Tensor, embed: Tensor, steps: int) -> list[Tensor]:
        """Logits of each step, [batch, rows, draft vocabulary].

        `slots` is [batch, rows, slots * hidden] at positions 0..rows-1 and `next_ids` [batch, rows + steps - 1]
        holds the tokens at positions 1.., of which step s reads those from 1 + s on.
        """
        rows, repeat = slots.shape[1], self.shape.heads // self.shape.kv_heads
        causal = torch.ones(rows, rows, dtype=torch.bool).tril()
        h = F.linear(slots, self._matrix("fc"))
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits = []
        for step in range(steps):
            tokens = next_ids[:, step : step + rows]
            cos, sin = (a[step : step + rows] for a in self.angles)
            e = rms_norm(F.embedding(tokens, embed), self.weights["embed_norm"])
            x = torch.cat((e, rms_norm(h, self.weights["hidden_norm"])), dim=-1)
            q = rotate_halves(self._heads(x, "q", self.shape.heads), cos, sin)
            k = rotate_halves(self._heads(x, "k", self.shape.kv_heads), cos, sin)
            keys.append(k.repeat_interleave(repeat, 1))
            values.append(self._heads(x, "v", self.shape.kv_heads).repeat_interleave(repeat, 1))
            a = (
                F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
                if step == 0
                else self._attend(q, keys, values, causal)
            )
            h = h + F.linear(a.transpose(1, 2).flatten(-2), self._matrix("o"))
            m = rms_norm(h, self.weights["mlp_norm"])
            h = h + F.linear(
                F.silu(F.linear(m, self._matrix("gate"))) * F.linear(m, self._matrix("up")),
                self._matrix("down"),
            )
            logits.append(F.linear(rms_norm(h, self.weights["norm"]), self._matrix("lm_head")))
        return logits

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor], causal: Tensor) -> Tensor:
        scale = self.shape.head_dim**-0.5
        past = (q @ keys[0].mT).masked_fill(~causal, float("-inf"))
        own = torch.stack([(q * k).sum(-1) for k in keys[1:]], dim=-1)
        shares = (torch.cat((past, own), dim=-1) * scale).softmax(-1)
        rows = past.shape[-1]
        a = shares[..., :rows] @ values[0]
        for i, v in enumerate(values[1:]):
            a = a + shares[..., rows + i, None] * v
        return a

    def round_to_bf16(self) -> None:
        """Give every weight the value that the saved bf16 draft has."""
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.copy_(tensor.bfloat16().float())

    def save(self, folder: Path, layer_ids: list[int]) -> None:
        """Write config.json and model.safetensors under the names that SpecForge exports."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.shape.config(layer_ids), indent=2) + "\n")
        tensors = {
            f"{full}.weight": self._matrix(name).detach().bfloat16().contiguous().clone()
            for name, full in self._NAMES.items()
        }
        tensors["d2t"] = self.draft_ids - torch.arange(self.shape.vocab)
        tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, self.draft_ids, True)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_draft(folder: Path) -> Eagle3:
    """A saved draft, computing in float32 with its bf16 values."""
    config = json.loads((folder / "config.json").read_text())
    saved = load_file(folder / "model.safetensors")
    hidden = config["hidden_size"]
    shape = DraftShape(
        hidden=hidden,
        slots=saved["fc.weight"].shape[1] // hidden,
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        inter=config["intermediate_size"],
        vocab=config["draft_vocab_size"],
        theta=config["rope_theta"],
    )
    draft = Eagle3(shape, saved["d2t"] + torch.arange(shape.vocab))
    with torch.no_grad():
        for name, full in draft._NAMES.items():
            draft._matrix(name).copy_(saved[f"{full}.weight"].float())
    return draft
