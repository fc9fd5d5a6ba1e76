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

from drafttrace.compare.audit import copied_weights
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


def copied(folder: Path, tensors: dict[str, torch.Tensor], hash_weights: bool = False) -> list[Finding]:
    draft = write_draft(folder / "draft", specforge([1, 15, 28], torch_dtype="float32"), tensors)
    result = check(folder / "target", draft, sglang_version="0.5.23", hash_weights=hash_weights)
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


_FEW = 16_000
"""Bytes: the headers of twelve files without experts, and of three with thirty."""


def sharded(folder: Path, layers: int, experts: int) -> dict[str, torch.Tensor]:
    """The target in one file per layer, each with a header of many experts."""
    held, where = target_of(folder, layers=layers), {}
    (folder / "model.safetensors").unlink()
    for k in range(layers):
        mine = {
            name: tensor
            for name, tensor in held.items()
            if f"layers.{k}." in name or (not k and "layers" not in name)
        }
        mine |= {f"model.layers.{k}.mlp.experts.{e}.up_proj.weight": torch.zeros(1) for e in range(experts)}
        save_file(mine, folder / f"model-{k}.safetensors")
        where |= dict.fromkeys(mine, f"model-{k}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return held


@pytest.mark.parametrize(("experts", "layer"), [(0, 5), (30, 11), (30, 0)])
def test_a_target_in_many_files_costs_little_and_its_outer_layers_are_compared(
    experts: int, layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kimi-K2's 61 headers of 3,500 tensors took five seconds to read."""
    monkeypatch.setattr(copied_weights, "_MOST_HEADERS", _FEW)
    held = sharded(tmp_path / "target", 12, experts)
    o_proj = held[f"model.layers.{layer}.self_attn.o_proj.weight"].float()
    began = time.perf_counter()
    (found,) = copied(tmp_path, {**draft_tensors(), "midlayer.self_attn.o_proj.weight": o_proj})
    assert time.perf_counter() - began < 2 and f"layers.{layer}.self_attn.o_proj" in found.summary


def test_with_hashing_every_layer_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied_weights, "_MOST_HEADERS", _FEW)
    held = sharded(tmp_path / "target", 12, 30)
    name = "midlayer.self_attn.o_proj.weight"
    tensors = {**draft_tensors(), name: held["model.layers.5.self_attn.o_proj.weight"].float()}
    assert not copied(tmp_path, tensors)
    (found,) = copied(tmp_path, tensors, hash_weights=True)
    assert found.evidence["tensors"] == {name: "model.layers.5.self_attn.o_proj.weight"}
