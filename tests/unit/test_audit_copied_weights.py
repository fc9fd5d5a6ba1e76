"""Tensors of a draft that are the target's bit for bit: named; a shared embedding and norms of ones are none."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from audit_folders import (
    HIDDEN,
    LLAMA_TARGET,
    VOCAB,
    draft_tensors,
    kept_tokens,
    specforge,
    target_tensors,
    write_draft,
)
from safetensors.torch import save_file

from drafttrace.compare.audit.check import check
from drafttrace.compare.result import NOTE, Finding


def target_of(folder: Path, prefix: str = "model.", layers: int = 4) -> dict[str, torch.Tensor]:
    """A target with layers, a norm that is not ones, and its folder."""
    generator = torch.Generator().manual_seed(3)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    tensors = {f"{prefix}{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
               for name, tensor in target_tensors().items()}  # fmt: skip
    tensors[f"{prefix}norm.weight"] = rand(HIDDEN)
    for k in range(layers):
        at = f"{prefix}layers.{k}."
        tensors |= {
            f"{at}input_layernorm.weight": rand(HIDDEN),
            f"{at}post_attention_layernorm.weight": rand(HIDDEN),
            f"{at}self_attn.o_proj.weight": rand(HIDDEN, HIDDEN),
            f"{at}mlp.down_proj.weight": rand(HIDDEN, 24),
            f"{at}mlp.up_proj.weight": rand(24, HIDDEN),
        }
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**LLAMA_TARGET, "num_hidden_layers": 32}))
    return tensors


def copied(folder: Path, tensors: dict[str, torch.Tensor]) -> list[Finding]:
    draft = write_draft(folder / "draft", specforge([1, 15, 28], torch_dtype="float32"), tensors)
    result = check(folder / "target", draft, sglang_version="0.5.23")
    return [f for f in result.findings if f.id == "weights-replaced" and "bit for bit" in f.summary]


@pytest.mark.parametrize("prefix", ["model.", "language_model.model."])
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("norm.weight", "norm.weight"),
        ("midlayer.self_attn.o_proj.weight", "layers.3.self_attn.o_proj.weight"),
        ("midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("midlayer.hidden_norm.weight", "layers.2.input_layernorm.weight"),
        ("midlayer.post_attention_layernorm.weight", "layers.2.post_attention_layernorm.weight"),
    ],
)
def test_a_tensor_that_is_the_targets_is_named(prefix: str, mine: str, theirs: str, tmp_path: Path) -> None:
    """A draft whose norm or o_proj was the target's had no finding, not even with --hash."""
    held = target_of(tmp_path / "target", prefix)
    (found,) = copied(tmp_path, {**draft_tensors(), mine: held[prefix + theirs].float()})
    assert found.severity == NOTE and found.evidence["tensors"] == {mine: prefix + theirs}
    assert mine in found.summary and "1 of the draft's tensors is" in found.summary


def test_the_rows_of_a_pruned_head_are_compared_with_those_of_their_tokens(tmp_path: Path) -> None:
    held = target_of(tmp_path / "target")
    (found,) = copied(
        tmp_path, {**draft_tensors(), "lm_head.weight": held["lm_head.weight"][kept_tokens()].float()}
    )
    assert found.evidence["tensors"] == {"lm_head.weight": "lm_head.weight"} and "kept tokens" in found.summary


def test_several_copies_are_one_finding(tmp_path: Path) -> None:
    held = target_of(tmp_path / "target")
    parts = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
    copies = {f"midlayer.{part}": held[f"model.layers.1.{part}"].float() for part in parts}
    (found,) = copied(tmp_path, {**draft_tensors(), **copies})
    assert "2 of the draft's tensors are" in found.summary and len(found.evidence["tensors"]) == 2


@pytest.mark.parametrize(
    "change", ["nothing", "embedding", "ones", "one value", "first rows", "head of other tokens"]
)
def test_nobody_is_accused_who_trained(change: str, tmp_path: Path) -> None:
    held, tensors = target_of(tmp_path / "target"), draft_tensors()
    o_proj, up = "midlayer.self_attn.o_proj.weight", "midlayer.mlp.up_proj.weight"
    if change == "embedding":
        tensors["embed_tokens.weight"] = held["model.embed_tokens.weight"].float()
    if change == "ones":
        for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight"):
            held[name] = torch.ones(HIDDEN).bfloat16()
        save_file(held, tmp_path / "target/model.safetensors")
        tensors |= {name: torch.ones(HIDDEN) for name in ("norm.weight", "midlayer.input_layernorm.weight")}
    if change == "one value":
        tensors[o_proj] = held["model.layers.3.self_attn.o_proj.weight"].float()
        tensors[o_proj][5, 5] += 1.0
    if change == "first rows":
        tensors[up] = held["model.layers.3.mlp.up_proj.weight"].float()
        tensors[up][1:-1] += 0.5
    if change == "head of other tokens":
        tensors["lm_head.weight"] = held["lm_head.weight"][(kept_tokens() + 1) % VOCAB].float()
    assert not copied(tmp_path, tensors)


def test_a_target_of_many_layers_costs_little(tmp_path: Path) -> None:
    target_of(tmp_path / "target", layers=200)
    began = time.perf_counter()
    assert not copied(tmp_path, draft_tensors())
    assert time.perf_counter() - began < 2
