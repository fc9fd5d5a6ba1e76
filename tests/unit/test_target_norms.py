"""The final norm of families that name or store it in their own way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional

from drafttrace.tracer.part_names import gain_is_one_plus
from drafttrace.tracer.target_weights import TargetWeights

WIDTH = 16
RANDOM = torch.Generator().manual_seed(3)


def target(folder: Path, kind: str, **norm: torch.Tensor) -> TargetWeights:
    config = {"model_type": kind, "num_hidden_layers": 2, "hidden_size": WIDTH, "vocab_size": 8, "norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(config))
    named = {f"model.{name.replace('__', '.')}": tensor for name, tensor in norm.items()}
    table = torch.randn(8, WIDTH, generator=RANDOM)
    save_file({"model.embed_tokens.weight": table, **named}, folder / "model.safetensors")
    return TargetWeights(folder)


def test_the_final_norm_of_lfm2_is_its_embedding_norm(tmp_path: Path) -> None:
    """``inspect --target`` ended with "has no final norm"."""
    gain = torch.rand(WIDTH, generator=RANDOM) + 0.5
    layer = {"layers__0__ffn_norm__weight": torch.ones(WIDTH)}
    found = target(tmp_path, "lfm2", embedding_norm__weight=gain, **layer)
    assert found.norm_name == "model.embedding_norm.weight"
    x = torch.randn(5, WIDTH, generator=RANDOM)
    expected = functional.rms_norm(x, (WIDTH,), gain, 1e-5)
    np.testing.assert_allclose(found.final_norm(x.numpy()), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_the_norm_of_nemotron_multiplies_by_one_plus_its_weight(tmp_path: Path) -> None:
    """LayerNorm1P was read with the gain w: a true state after the norm was refuted, a wrong one written (0.5 off)."""
    weight, bias = (torch.randn(WIDTH, generator=RANDOM) * 0.1 for _ in range(2))
    found = target(tmp_path, "nemotron", norm__weight=weight, norm__bias=bias)
    x = torch.randn(5, WIDTH, generator=RANDOM)
    expected = functional.layer_norm(x, (WIDTH,), weight + 1, bias, 1e-5)
    np.testing.assert_allclose(found.final_norm(x.numpy()), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert not gain_is_one_plus("nemotron_h") and not gain_is_one_plus("nemotron-nas")
