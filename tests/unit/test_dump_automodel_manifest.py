"""NeMo Automodel: what the manifest says is held against the tensors, and against the target where one is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dump_layouts as made
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture

Write = Callable[[Path], Path]
SHARD = "shard-000000.safetensors"


def said(folder: Path, **fields: Any) -> str:
    """The cache, whose manifest says other things; None takes a field out."""
    manifest = json.loads((folder / "manifest.json").read_text()) | fields
    (folder / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))
    return str(folder)


def problems(folder: Path, **fields: Any) -> list[str]:
    return list(inspect_capture(said(folder, **fields)).problems)


@pytest.mark.parametrize("write", [made.write_am_eagle3, made.write_am_dspark])
def test_a_manifest_that_is_right_is_no_problem(write: Write, tmp_path: Path) -> None:
    found = inspect_capture(str(write(tmp_path)))
    assert not [check for check in found.checks if check.id == "declared-field"]
    assert any(
        note.startswith("believed of manifest.json") and "layer_ids, target_model" in note for note in found.notes
    )


@pytest.mark.parametrize(
    ("write", "fields", "sentence"),
    [
        (made.write_am_eagle3, {"format_version": 3}, "says format_version 3, and AM-EAGLE3 is known as version 2"),
        (made.write_am_eagle3, {"seq_length": 99}, "says seq_length 99, and input_ids has"),
        (made.write_am_eagle3, {"dtype": "float16"}, "says dtype float16, and aux_hidden_states is bf16"),
        (made.write_am_eagle3, {"aux_hidden_dim": 7}, "says aux_hidden_dim 7, and aux_hidden_states is 48 wide"),
        (made.write_am_eagle3, {"draft_vocab_size": 21}, "says draft_vocab_size 21, and selected_token_ids names 20"),
        (made.write_am_eagle3, {"selected_token_ids": list(range(19))}, "names 19 draft tokens, and target_probs is 20"),
        (made.write_am_eagle3, {"selected_token_ids": [0, *range(19)]}, "names 1 tokens twice"),
        (made.write_am_eagle3, {"target_vocab_size": 19}, "names 19, which is no token of the target"),
        (made.write_am_eagle3, {"target_vocab_size": 3}, "says target_vocab_size 3, and input_ids holds"),
        (made.write_am_eagle3, {"target_vocab_size": 10**6}, "and target_embeddings.safetensors has"),
        (made.write_am_eagle3, {"target_probs_topk": 4}, "says target_probs_topk 4, and the shards hold target_probs"),
        (made.write_am_dspark, {"format_version": 2}, "says format_version 2, and AM-DSPARK is known as version 1"),
        (made.write_am_dspark, {"hidden_size": 32}, "says hidden_size 32, and one state is 16 wide"),
        (made.write_am_dspark, {"target_hidden_dim": 9}, "says target_hidden_dim 9, and target_hidden_states is 64 wide"),
        (made.write_am_dspark, {"target_last_hidden_dim": 9}, "says target_last_hidden_dim 9, and it is 16 wide"),
        (made.write_am_dspark, {"dtype": "fp32"}, "says dtype fp32, and target_hidden_states is bf16"),
        (made.write_am_dspark, {"target_vocab_size": 3}, "says target_vocab_size 3, and input_ids holds"),
    ],
)  # fmt: skip
def test_what_the_tensors_refute_is_a_problem(
    write: Write, fields: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    """Everything in a manifest was believed but num_samples."""
    assert any(sentence in problem for problem in problems(write(tmp_path), **fields))


def test_a_contradiction_is_told_wherever_the_dump_is_read(tmp_path: Path) -> None:
    """Also where it is no reason to stop: convert writes what the tensors are, and says so."""
    (tmp_path / "in").mkdir()
    path = said(made.write_am_dspark(tmp_path / "in"), hidden_size=32)
    written = convert(f"{path}#0", tmp_path / "out.safetensors", "safetensors", request=Request(layers=made.LAYERS),
                      lose=["last-state"])  # fmt: skip
    assert any("says hidden_size 32" in note for note in written.notes)


def test_that_nothing_stored_can_prove_the_shift_is_said(tmp_path: Path) -> None:
    made.write_am_eagle3(tmp_path)
    note = "and the manifest has no word of it; no distributions over known tokens are stored that could confirm it"
    assert not any(note in text for text in inspect_capture(str(tmp_path)).notes)
    assert any(note in text for text in inspect_capture(said(tmp_path, selected_token_ids=None)).notes)


@pytest.mark.parametrize("same", [True, False])
def test_the_last_layer_of_a_dspark_cache_is_no_boundary(same: bool, tmp_path: Path) -> None:
    """Automodel's default ends with layer n-1, of which it stores what the final norm made; it was believed to be B(n)."""
    made.write_am_dspark(tmp_path)
    shard = load_file(tmp_path / SHARD)
    if same:
        shard["target_hidden_states"][..., -made.H :] = shard["target_last_hidden_states"]
    save_file(shard, tmp_path / SHARD)
    path = said(tmp_path, target_layer_ids=[-1, 1, 3, made.LAYERS - 1])
    found = inspect_capture(path)
    assert open_capture(path).wiring == (0, 2, 4, None if same else made.LAYERS)
    told = "the last state after the final norm, no boundary" if same else f"B{made.LAYERS} (declared)"
    assert found.states[3].probably == told


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=made.VOCAB, hidden_size=made.H, intermediate_size=32, num_hidden_layers=made.LAYERS,
                         num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    folder = tmp_path_factory.mktemp("target")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("own", [True, False])
def test_the_stored_embedding_is_held_against_that_of_the_target(own: bool, target: Path, tmp_path: Path) -> None:
    made.write_am_eagle3(tmp_path)
    if own:
        weight = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
        save_file({"weight": weight.float()}, tmp_path / "target_embeddings.safetensors")
    found = inspect_capture(said(tmp_path, target_vocab_size=made.VOCAB), target=target)
    check = next(check for check in found.checks if check.id == "stored-embedding")
    assert check.verdict == ("confirmed" if own else "refuted")
    assert any("holds another embedding than the target's" in text for text in found.problems) is not own


def test_the_vocabulary_of_the_manifest_is_held_against_that_of_the_target(target: Path, tmp_path: Path) -> None:
    made.write_am_eagle3(tmp_path)
    found = inspect_capture(said(tmp_path, target_vocab_size=made.VOCAB - 1), target=target)
    assert any(f"target_vocab_size {made.VOCAB - 1}, and this target has {made.VOCAB}" in p for p in found.problems)
