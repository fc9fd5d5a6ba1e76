"""Which stored names SGLang's draft classes take: the audit's table against their own ``load_weights``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import HIDDEN, draft_tensors, mla, mla_tensors, specforge, write_draft, write_target
from sglang_load_weights import filled

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.class_tensors import filled_by, parameters
from drafttrace.compare.audit.installed import installed_version
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.draft_config import parse_draft_config
from drafttrace.compare.draft_weights import split_fused

CANONICAL = [1, 15, 28]
KINDS: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]] = {
    "LlamaForCausalLMEagle3": (specforge(CANONICAL, fc_norm=True, attention_bias=True), draft_tensors()),
    "Eagle3DeepseekV2ForCausalLM": (mla(CANONICAL, fc_norm=True), mla_tensors()),
}
BEFORE = ("", "model.", "module.", "draft_model.", "model.model.", "module.model.", "x.")
MORE = (
    "embed_tokens.weight", "fc.bias", "lm_head.bias", "aux_norm_low.weight", "aux_norm_high.weight", "fc_norm.1.weight",
    "midlayer.self_attn.qkv_proj.weight", "midlayer.mlp.gate_up_proj.weight", "midlayer.self_attn.q_proj.bias",
    "midlayer.self_attn.o_proj.bias", "midlayer.self_attn.q_norm.weight", "midlayer.mlp.up_proj.bias",
    "midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight", "layers.1.hidden_norm.weight", "midlayer.0.hidden_norm.weight",
    "d2t.weight", "t2d.weight", "mask_hidden", "input_norm.weight", "verifier_lm_head.weight",
)  # fmt: skip


def audited(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> CheckResult:
    draft = write_draft(folder / "draft", config, tensors)
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23")


def sglangs_name(canonical: str) -> str:
    """What the plain class calls a parameter."""
    for part in ("q_proj", "k_proj", "v_proj"):
        canonical = canonical.replace(f".{part}.", ".qkv_proj.")
    for part in ("gate_proj", "up_proj"):
        canonical = canonical.replace(f".{part}.", ".gate_up_proj.")
    return canonical if canonical == "lm_head.weight" else f"model.{canonical}"


def latent_name(canonical: str) -> str:
    """What the class with multi-latent attention calls one."""
    for part in ("q_a_proj", "kv_a_proj_with_mqa"):
        canonical = canonical.replace(f".{part}.", ".fused_qkv_a_proj_with_mqa.")
    plain = sglangs_name(canonical.replace(".q_b_proj.", ".Q_B.").replace(".kv_b_proj.", ".KV_B."))
    plain = plain.replace(".Q_B.", ".q_b_proj.").replace(".KV_B.", ".kv_b_proj.")
    return plain.replace("model.layers.0.", "model.midlayer.")


@pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed here")
@pytest.mark.parametrize("name", list(KINDS))
def test_every_name_is_judged_as_the_class_itself_loads_it(name: str) -> None:
    config, tensors = KINDS[name]
    held = parameters(parse_draft_config(config, Path("config.json")), 3)
    latent = name != "LlamaForCausalLMEagle3"
    called = latent_name if latent else sglangs_name
    roots = {*tensors, *MORE} | {one.replace("midlayer.", "layers.0.") for one in (*tensors, *MORE)}
    stored = [f"{before}{root}" for before in BEFORE for root in sorted(roots)]
    really = filled(name, {called(one) for one in held}, stored)
    for one in stored:
        said = filled_by(one, held, latent)
        if said == "t2d":
            assert one not in really
            continue
        mine = None if said is None else said if said == "d2t" else called(split_fused(said)[0])
        assert mine == really.get(one), one
    assert len(really) > 20


@pytest.mark.parametrize("before", ["module.", "draft_model.", "module.model."])
def test_a_draft_of_which_the_class_loads_nothing_is_a_fault(before: str, tmp_path: Path) -> None:
    """The check took 'module.fc.weight' for 'fc.weight', as every trainer's own reader does, and passed the draft."""
    result = audited(tmp_path, specforge(CANONICAL), {f"{before}{k}": v for k, v in draft_tensors().items()})
    (found,) = result.faults
    assert found.id == "weights-missing" and "all 13 tensors" in found.summary and result.exit_code == 1
    assert f"'fc.weight' in the place of '{before}fc.weight' and the other 12 likewise" in found.remedy


def test_a_draft_of_a_class_that_sglang_does_not_have_is_judged_by_the_one_to_write(tmp_path: Path) -> None:
    """--fix wrote the class, and the copy passed with its head under a name that nothing reads."""
    named = {(k if k in {"d2t", "t2d"} else f"model.{k}"): v for k, v in draft_tensors().items()}
    result = audited(tmp_path, specforge(CANONICAL, architectures=["LlamaEagle3DraftModel"]), named)
    assert any(
        "passes over 1 tensor for its name, such as 'model.lm_head.weight'" in f.summary for f in result.faults
    )


def test_of_two_names_the_one_that_is_loaded_counts(tmp_path: Path) -> None:
    """'module.norm.weight' beside 'norm.weight' was called a clash in which the last one wins."""
    result = audited(tmp_path, specforge(CANONICAL), {**draft_tensors(), "module.norm.weight": torch.rand(HIDDEN)})
    assert not result.faults and "'module.norm.weight'" in " ".join(f.summary for f in result.findings)


def test_a_map_under_any_name_that_the_class_takes_is_a_map(tmp_path: Path) -> None:
    """The plain class takes every name with d2t in it."""
    held = {(f"eagle.{k}" if k in {"d2t", "t2d"} else k): v for k, v in draft_tensors().items()}
    result = audited(tmp_path, specforge(CANONICAL), held)
    assert not result.faults and result.vocabulary
