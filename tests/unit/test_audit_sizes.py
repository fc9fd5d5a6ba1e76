"""Sizes of a draft that are lost together: they are solved from all stored shapes at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import (
    HIDDEN,
    draft_tensors,
    mla,
    mla_tensors,
    specforge,
    write_draft,
    write_target,
)

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import fix
from drafttrace.compare.audit.result import CheckResult
from drafttrace.tracer.errors import UnreadableFile

CANONICAL = [1, 15, 28]


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def attention(heads: int, kv_heads: int, head_dim: int, fused: bool = False) -> dict[str, torch.Tensor]:
    """A draft's tensors with another attention."""
    at, query, key = "midlayer.self_attn.", heads * head_dim, kv_heads * head_dim
    held = {name: t for name, t in draft_tensors().items() if ".self_attn." not in name}
    parts = {"q_proj": query, "k_proj": key, "v_proj": key}
    if fused:
        parts = {"qkv_proj": query + 2 * key}
    held |= {f"{at}{name}.weight": torch.rand(rows, 2 * HIDDEN) for name, rows in parts.items()}
    return held | {f"{at}o_proj.weight": torch.rand(HIDDEN, query)}


def audited(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> CheckResult:
    return check(
        write_target(folder / "target"), write_draft(folder / "draft", config, tensors), sglang_version="0.5.23"
    )


LOST = ("num_key_value_heads", "head_dim")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(2, 8), (1, 8), (2, 2), (1, 16)])
def test_two_attention_sizes_lost_at_once_are_solved_together(
    kv_heads: int, head_dim: int, fused: bool, tmp_path: Path
) -> None:
    """Each tensor by itself was to be exported again, or num_key_value_heads came out for the head_dim that was lost."""
    config = without(specforge(CANONICAL), *LOST)
    result = audited(tmp_path, config, attention(4, kv_heads, head_dim, fused))
    (found,) = result.faults
    assert f'"num_key_value_heads": {kv_heads}, "head_dim": {head_dim}' in found.remedy, found.remedy
    assert {key: result.fix[key] for key in LOST} == {"num_key_value_heads": kv_heads, "head_dim": head_dim}
    fix(tmp_path / "draft", tmp_path / "fixed", result.fix)
    mended = json.loads((tmp_path / "fixed/config.json").read_text())
    again = audited(tmp_path / "again", mended, attention(4, kv_heads, head_dim, fused))
    assert again.exit_code == 0, [f.summary for f in again.faults]


def test_several_sets_of_sizes_that_fit_are_said(tmp_path: Path) -> None:
    """Heads of another model, and nothing in the config that decides: no single set is advised, and none is written."""
    config = specforge(CANONICAL, num_attention_heads=1, num_key_value_heads=3, head_dim=6)
    result = audited(tmp_path, config, attention(4, 2, 8))
    (found,) = result.faults
    assert found.remedy.startswith("Several sets of sizes fit") and "; or " in found.remedy
    assert '"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8' in found.remedy
    assert len(found.evidence["sets"]) > 1 and not set(LOST) & set(result.fix)


def test_of_two_lost_sizes_and_a_bad_export_each_is_told(tmp_path: Path) -> None:
    """q_proj, o_proj and v_proj were to be exported again, as the config's defaults would have them."""
    name = "midlayer.self_attn.v_proj.weight"
    result = audited(
        tmp_path, without(specforge(CANONICAL), *LOST), attention(4, 2, 8) | {name: torch.rand(12, 2 * HIDDEN)}
    )
    sizes, export = sorted(result.faults, key=lambda f: "sets" not in f.evidence)
    assert '"num_key_value_heads": 2, "head_dim": 8' in sizes.remedy and name not in sizes.evidence["tensors"]
    assert export.remedy == f"Export '{name}' again as [16, 32]." and not set(LOST) & set(result.fix)


def test_a_bad_export_alone_blames_no_size(tmp_path: Path) -> None:
    name = "midlayer.self_attn.v_proj.weight"
    tensors = attention(4, 2, 8) | {name: torch.rand(12, 2 * HIDDEN)}
    (found,) = audited(tmp_path, specforge(CANONICAL, num_key_value_heads=2, head_dim=8), tensors).faults
    assert f"Export '{name}' again as [16, 32]" in found.remedy


def test_two_latent_sizes_that_are_wrong_at_once_are_solved_together(tmp_path: Path) -> None:
    config = mla(CANONICAL, model_type="kimi_k2", qk_nope_head_dim=2, v_head_dim=2)
    result = audited(tmp_path, config, mla_tensors())
    (found,) = result.faults
    assert '"qk_nope_head_dim": 4, "v_head_dim": 4' in found.remedy


def test_sizes_without_which_no_draft_can_be_built_are_read_off_the_weights(tmp_path: Path) -> None:
    """ "it is no draft's config; give the draft's folder", for a draft's folder."""
    config = without(specforge(CANONICAL), "num_attention_heads", "hidden_size", "intermediate_size")
    with pytest.raises(UnreadableFile) as refused:
        audited(tmp_path, config, attention(4, 2, 8))
    said = str(refused.value)
    assert "has no 'hidden_size' and no 'intermediate_size' and no 'num_attention_heads'" in said
    assert '"hidden_size": 16, "intermediate_size": 24' in said
    assert '"num_attention_heads": 4, "head_dim": 8' in said  # num_key_value_heads 2 stands there


def test_latent_sizes_that_are_lost_are_read_off_the_weights(tmp_path: Path) -> None:
    config = without(mla(CANONICAL, model_type="kimi_k2"), "qk_nope_head_dim", "v_head_dim")
    with pytest.raises(UnreadableFile, match=r'"qk_nope_head_dim": 4, "v_head_dim": 4'):
        audited(tmp_path, config, mla_tensors())


def test_a_folder_without_a_draft_is_still_called_none(tmp_path: Path) -> None:
    config = without(specforge(CANONICAL), "num_attention_heads")
    with pytest.raises(UnreadableFile, match="no draft's config; give the draft's folder"):
        audited(tmp_path, config, {"lm_head.weight": torch.rand(4, 4)})


LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@pytest.mark.parametrize("name", ["Eagle3DeepseekV2ForCausalLM", "LlamaForCausalLMEagle3"])
def test_a_latent_attention_without_any_size_in_the_config_gets_all_of_them(name: str, tmp_path: Path) -> None:
    """kv_lora_rank was given, and for the others the training run's config was to be found."""
    config = without(mla(CANONICAL, model_type="kimi_k2", architectures=[name]), *LATENT)
    result = audited(tmp_path, config, mla_tensors())
    lines = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
    remedies = [f.remedy for f in result.faults if "kv_lora_rank" in f.remedy]
    assert remedies and all(f'"{key}": {value}' in remedies[0] for key, value in lines.items()), remedies


LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def latent_tensors() -> dict[str, torch.Tensor]:
    """Multi-latent attention of four heads in which no two sizes are the same."""
    shapes = {"q_a_proj": (10, 32), "q_a_layernorm": (10,), "q_b_proj": (4 * 12, 10), "o_proj": (HIDDEN, 4 * 6)}
    shapes |= {"kv_a_proj_with_mqa": (14 + 8, 32), "kv_a_layernorm": (14,), "kv_b_proj": (4 * 10, 14)}
    held = {name: t for name, t in draft_tensors().items() if ".self_attn." not in name}
    return held | {f"midlayer.self_attn.{name}.weight": torch.rand(shape) for name, shape in shapes.items()}


def latent(**changes: Any) -> dict[str, Any]:
    right = dict(zip(LATENT, (10, 14, 4, 8, 6), strict=True))
    return mla(CANONICAL, model_type="kimi_k2", **{**right, **changes})


def mended(folder: Path, result: CheckResult, tensors: dict[str, torch.Tensor]) -> list[str]:
    """What is still wrong with the copy of ``--fix``."""
    fix(folder / "draft", folder / "fixed", result.fix)
    config = json.loads((folder / "fixed/config.json").read_text())
    return [f.summary for f in audited(folder / "again", config, tensors).faults]


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_a_wrong_number_of_heads_of_latent_attention_is_one_fault_with_one_answer(
    heads: int, tmp_path: Path
) -> None:
    """Three faults: v_head_dim 8, v_head_dim 16, and a tensor to be exported again. Only four heads fit."""
    result = audited(tmp_path, latent(num_attention_heads=heads), latent_tensors())
    (found,) = result.faults
    assert '"num_attention_heads": 4' in found.remedy and "v_head_dim" not in found.remedy
    assert result.fix["num_attention_heads"] == 4 and not mended(tmp_path, result, latent_tensors())


def test_all_latent_sizes_lost_are_one_fault(tmp_path: Path) -> None:
    """A second one asked for "head_dim", which this attention does not have."""
    result = audited(tmp_path, without(latent(), *LATENT), latent_tensors())
    (found,) = result.faults
    assert '"kv_lora_rank": 14' in found.remedy and "head_dim" not in result.fix
    assert not mended(tmp_path, result, latent_tensors())


@pytest.mark.parametrize(
    "changes",
    [
        {"qk_nope_head_dim": 8, "v_head_dim": 2},
        {"kv_lora_rank": 18, "qk_rope_head_dim": 4},
        {"q_lora_rank": 8, "kv_lora_rank": 8},
        {"num_attention_heads": 2, "qk_nope_head_dim": 16},
        {"v_head_dim": 8},
    ],
    ids=str,
)
def test_wrong_latent_sizes_that_only_one_set_puts_right_are_written_by_fix(
    changes: dict[str, int], tmp_path: Path
) -> None:
    """They were named, and --fix said that nothing could be corrected with certainty."""
    result = audited(tmp_path, latent(**changes), latent_tensors())
    assert {key: result.fix[key] for key in changes} == {key: {**latent()}[key] for key in changes}
    assert not mended(tmp_path, result, latent_tensors())


def test_a_bad_export_beside_wrong_latent_sizes_is_written_into_no_config(tmp_path: Path) -> None:
    tensors = latent_tensors() | {"midlayer.self_attn.o_proj.weight": torch.rand(HIDDEN, 4 * 7)}
    result = audited(tmp_path, latent(), tensors)
    assert result.faults and not set(LATENT) & set(result.fix)


def test_a_wrong_intermediate_size_is_written_by_fix_beside_lost_sizes(tmp_path: Path) -> None:
    """The copy kept 333 without a word."""
    config = without(specforge(CANONICAL, intermediate_size=333), *LOST)
    result = audited(tmp_path, config, attention(4, 2, 8))
    assert result.fix["intermediate_size"] == 24 and not mended(tmp_path, result, attention(4, 2, 8))


def test_a_bad_export_of_one_part_of_the_mlp_is_written_into_no_config(tmp_path: Path) -> None:
    tensors = attention(4, 2, 8) | {"midlayer.mlp.up_proj.weight": torch.rand(25, HIDDEN)}
    for size in (24, 333):
        config = specforge(CANONICAL, head_dim=8, intermediate_size=size)
        result = audited(tmp_path / str(size), config, tensors)
        assert result.faults and "intermediate_size" not in result.fix


@pytest.mark.parametrize(("eps", "told"), [(0.5, True), (1e-5, False), (1e-6, False)])
def test_a_norms_number_as_large_as_its_states_is_a_hint(eps: float, told: bool, tmp_path: Path) -> None:
    """ "rms_norm_eps": 0.5 passed without a word, and so did the 1.0 that --fix wrote for a 1."""
    draft = write_draft(tmp_path / "draft", specforge([1, 15, 28], rms_norm_eps=eps))
    found = check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23").findings
    assert [f.id for f in found] == ["norm-gain"] * told
