"""Sizes that a draft's config leaves to its config class: which number the class has, and what follows for the tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import HIDDEN, VOCAB, draft_tensors, mla, mla_tensors, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.class_defaults import _HEAD_DIM, _KV_HEADS, _LATENT, implied_sizes
from drafttrace.compare.audit.model_types import COMMON, KNOWN_TYPES
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.draft_config import TIED_TYPES

CANONICAL = [1, 15, 28]
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 256}


def audited(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None, drop: tuple[str, ...] = ()
) -> CheckResult:
    draft = write_draft(folder / "draft", config, tensors, drop=drop)
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23")


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("kind", sorted(COMMON | {*_KV_HEADS, *_HEAD_DIM}))
def test_the_numbers_are_those_of_the_installed_classes(kind: str) -> None:
    auto = pytest.importorskip("transformers").AutoConfig
    try:
        made = auto.for_model(kind, **SIZES)
    except ValueError:
        pytest.skip("no type of this transformers (SGLang brings kimi_k2 itself)")
    implied = implied_sizes({"model_type": kind, **SIZES}, 4, 128)
    assert made.num_key_value_heads == implied["num_key_value_heads"]
    assert (getattr(made, "head_dim", None) or 32) == implied["head_dim"]
    for key, value in _LATENT.items():
        assert getattr(made, key, value) == value


@pytest.mark.parametrize("kind", sorted(COMMON | KNOWN_TYPES | TIED_TYPES))
def test_the_types_that_tie_their_head_are_those_of_the_installed_classes(kind: str) -> None:
    auto = pytest.importorskip("transformers").AutoConfig
    try:
        made = auto.for_model(kind)
    except ValueError:
        pytest.skip("no type of this transformers (SGLang brings kimi_k2 itself)")
    assert bool(getattr(made, "tie_word_embeddings", False)) == (kind in TIED_TYPES)


@pytest.mark.parametrize(
    ("kind", "key", "line"),
    [
        ("qwen3", "head_dim", '"head_dim": 4'),
        ("gpt_oss", "head_dim", '"head_dim": 4'),
        ("kimi_k2", "head_dim", '"head_dim": 4'),
        ("qwen2", "num_key_value_heads", '"num_key_value_heads": 2'),
        ("mistral", "num_key_value_heads", '"num_key_value_heads": 2'),
    ],
)
def test_a_size_that_the_class_has_otherwise_is_a_fault_and_written_by_fix(
    kind: str, key: str, line: str, tmp_path: Path
) -> None:
    """A Qwen3 draft without head_dim is built with heads 128 wide: it passed, and half of its acceptance was lost."""
    whole = specforge(CANONICAL, model_type=kind, head_dim=4)
    assert not audited(tmp_path / "whole", whole).faults
    result = audited(tmp_path / "lost", without(whole, key))
    assert {f.id for f in result.faults} == {"weights-missing"} and all(line in f.remedy for f in result.faults)
    assert result.fix == {key: int(line.rsplit(" ", 1)[1])}


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "mixtral"])
def test_a_width_of_the_heads_that_the_class_derives_need_not_be_there(kind: str, tmp_path: Path) -> None:
    assert not audited(tmp_path, specforge(CANONICAL, model_type=kind)).faults


def test_a_size_that_the_class_has_as_the_tensors_do_need_not_be_there(tmp_path: Path) -> None:
    """It was called wrong: the check divided hidden_size by the heads."""
    held = {k: v for k, v in draft_tensors().items() if ".self_attn." not in k}
    rows = {"q_proj": 4 * 128, "k_proj": 2 * 128, "v_proj": 2 * 128}
    held |= {f"midlayer.self_attn.{name}.weight": torch.rand(n, 2 * HIDDEN) for name, n in rows.items()}
    held["midlayer.self_attn.o_proj.weight"] = torch.rand(HIDDEN, 4 * 128)
    assert not audited(tmp_path, specforge(CANONICAL, model_type="qwen3"), held).faults


def test_the_mlp_of_a_llama_4_has_a_size_of_its_own(tmp_path: Path) -> None:
    """intermediate_size was advised and written, which the draft class does not read for this type."""
    llama4 = specforge(
        CANONICAL, model_type="llama4_text", head_dim=4, intermediate_size=7, intermediate_size_mlp=24
    )
    assert not [f for f in audited(tmp_path / "right", llama4).faults if f.id == "weights-missing"]
    for name, config in {
        "lost": without(llama4, "intermediate_size_mlp"),
        "wrong": {**llama4, "intermediate_size_mlp": 9},
    }.items():
        result = audited(tmp_path / name, {**config, "intermediate_size": 24})
        (found,) = [f for f in result.faults if f.id == "weights-missing"]
        assert '"intermediate_size_mlp": 24' in found.remedy and result.fix["intermediate_size_mlp"] == 24
        assert "intermediate_size" not in result.fix


@pytest.mark.parametrize("kind", ["kimi_k2", "deepseek_v3"])
def test_latent_sizes_of_the_class_are_not_called_refused(kind: str, tmp_path: Path) -> None:
    config = without(mla(CANONICAL, model_type=kind), *_LATENT)
    result = audited(tmp_path, config, mla_tensors())
    assert not any("requires one" in f.summary for f in result.faults)
    assert {**mla(CANONICAL)}["kv_lora_rank"] == result.fix["kv_lora_rank"]
    lost = audited(tmp_path / "q", without(mla(CANONICAL, model_type=kind), "q_lora_rank"), mla_tensors())
    assert not any("requires one" in f.summary for f in lost.faults) and lost.fix["q_lora_rank"] == 8
    null = audited(tmp_path / "null", mla(CANONICAL, model_type=kind, q_lora_rank=None), mla_tensors())
    assert any("requires one" in f.summary for f in null.faults)


MAPS = ("d2t", "t2d", "lm_head.weight")


def test_a_tied_draft_needs_the_number_of_its_tokens(tmp_path: Path) -> None:
    """Absent is an AttributeError and null a TypeError: both passed."""
    tied = specforge(CANONICAL, tie_word_embeddings=True, draft_vocab_size=VOCAB)
    assert not audited(tmp_path / "whole", tied, drop=MAPS).faults
    for name, config, error in (
        ("absent", without(tied, "draft_vocab_size"), "AttributeError"),
        ("null", {**tied, "draft_vocab_size": None}, "TypeError"),
    ):
        result = audited(tmp_path / name, config, drop=MAPS)
        (found,) = result.faults
        assert error in found.summary and found.remedy.startswith(f'"draft_vocab_size": {VOCAB}')
        assert result.fix == {"draft_vocab_size": VOCAB}


def test_a_map_of_kept_tokens_beside_a_head_of_the_targets_is_a_fault(tmp_path: Path) -> None:
    """Both passed; the replay refused them."""
    tied = audited(tmp_path / "tied", specforge(CANONICAL, tie_word_embeddings=True), drop=("lm_head.weight",))
    (found,) = tied.faults
    assert found.id == "weights-replaced" and '"tie_word_embeddings": false' in found.remedy
    null = audited(tmp_path / "null", specforge(CANONICAL, draft_vocab_size=None), drop=("lm_head.weight",))
    (found,) = null.faults
    assert found.id == "vocab-map-range" and '"draft_vocab_size": 48' in found.remedy
    assert not audited(tmp_path / "shared", specforge(CANONICAL, draft_vocab_size=None), drop=MAPS).faults
