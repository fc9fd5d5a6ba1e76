"""Faults that make many things not fit, told once with one remedy; and stray keys, which are no faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import HIDDEN, VOCAB, draft_tensors, mla, mla_tensors, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile

IDS = [1, 15, 28]


def audited(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> CheckResult:
    draft = write_draft(folder / "draft", config, tensors)
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23")


def first_eagle() -> dict[str, torch.Tensor]:
    """The tensors of a draft of EAGLE-1: no norm before its attention, which reads the draft's own width."""
    held = {name: t for name, t in draft_tensors(prefix="layers.0.").items() if name.startswith("layers.0.")}
    held = {name: t for name, t in held.items() if "hidden_norm" not in name and "input_layernorm" not in name}
    for part in ("q_proj", "k_proj", "v_proj"):
        held[f"layers.0.self_attn.{part}.weight"] = held[f"layers.0.self_attn.{part}.weight"][:, :HIDDEN]
    return held | {"fc.weight": torch.rand(HIDDEN, 2 * HIDDEN), "embed_tokens.weight": torch.rand(VOCAB, HIDDEN)}


def test_a_transposed_fc_is_one_fault_with_one_remedy(tmp_path: Path) -> None:
    """It was told to be exported as [16, 16], to be skipped for its width, and to be of another target."""
    tensors = draft_tensors()
    tensors["fc.weight"] = tensors["fc.weight"].T
    result = audited(tmp_path, specforge(IDS), tensors)
    (found,) = result.findings
    assert "'fc.weight' [48, 16] is stored transposed" in found.summary and "[16, 48]" in found.remedy
    assert result.fc_slots == 3 and not result.fix


def test_every_transposed_tensor_is_told_in_the_same_fault(tmp_path: Path) -> None:
    tensors = draft_tensors()
    for name in ("fc.weight", "midlayer.mlp.up_proj.weight", "midlayer.self_attn.q_proj.weight"):
        tensors[name] = tensors[name].T
    (found,) = audited(tmp_path, specforge(IDS), tensors).findings
    assert found.evidence["tensors"] == [
        "fc.weight",
        "midlayer.mlp.up_proj.weight",
        "midlayer.self_attn.q_proj.weight",
    ]


def test_a_tensor_of_another_shape_is_not_called_transposed(tmp_path: Path) -> None:
    tensors = draft_tensors()
    tensors["midlayer.mlp.up_proj.weight"] = torch.rand(20, HIDDEN)
    found = audited(tmp_path, specforge(IDS), tensors).faults
    assert found and not any("transposed" in one.summary for one in found)


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "LlamaForCausalLMEagle", "LlamaForCausalLM"])
def test_a_draft_of_the_first_eagle_is_told_alone(tmp_path: Path, name: str) -> None:
    """Eight faults told to export fc again, to write hidden_size 32, target_hidden_size 8, and to train on two slots."""
    result = audited(tmp_path, specforge(IDS, architectures=[name]), first_eagle())
    (found,) = result.findings
    assert "EAGLE-1 or EAGLE-2" in found.summary and "--speculative-algorithm EAGLE" in found.remedy
    assert result.exit_code == 1 and not result.fix


def test_a_draft_of_eagle_3_with_two_slots_is_not_called_one_of_eagle_1(tmp_path: Path) -> None:
    result = audited(tmp_path, specforge([1, 15]), draft_tensors(slots=2))
    assert not any("EAGLE-1" in found.summary for found in result.findings) and not result.faults


@pytest.mark.parametrize("value", [512, 0, "x", 1.5])
def test_a_stray_size_of_multi_latent_attention_is_no_fault_of_a_plain_draft(tmp_path: Path, value: Any) -> None:
    """ "has no 'qk_nope_head_dim', so it is no draft's config": exit 2 for a draft with an accept length of 2.96."""
    plain = audited(tmp_path / "plain", specforge(IDS))
    stray = audited(tmp_path / "stray", specforge(IDS, kv_lora_rank=value))
    assert stray.exit_code == 0 and stray.findings == plain.findings


def test_latent_sizes_that_a_latent_draft_lacks_are_still_asked_for(tmp_path: Path) -> None:
    config = {key: value for key, value in mla(IDS).items() if key != "v_head_dim"}
    with pytest.raises(UnreadableFile, match="v_head_dim"):
        audited(tmp_path, config, mla_tensors())


def test_the_size_that_a_llama_4_reads_is_no_strange_key(tmp_path: Path) -> None:
    """ "Of intermediate_size_mlp (24) in the draft's config nothing is known here": SGLang builds the MLP with it."""
    config = specforge(IDS, model_type="llama4_text", head_dim=4, intermediate_size=7, intermediate_size_mlp=24)
    result = audited(tmp_path, config)
    assert not result.faults and not [said for said in result.notes if "intermediate_size_mlp" in said]


def test_a_type_that_ties_its_head_ties_it_without_the_key(tmp_path: Path) -> None:
    """SGLang takes the embedding for the head of such a draft, and the audit said nothing."""
    config = {key: value for key, value in specforge(IDS).items() if key != "tie_word_embeddings"}
    result = audited(tmp_path, {**config, "model_type": "gemma2"})
    assert any("tie_word_embeddings" in found.summary for found in result.faults)
    assert result.fix["tie_word_embeddings"] is False
    assert not any("tie_word" in found.summary for found in audited(tmp_path / "llama", config).findings)


def test_an_fc_of_one_slot_is_told_as_skipped_alone(tmp_path: Path) -> None:
    """It was told to list 1 ids, and to train on two or more slots."""
    result = audited(tmp_path, specforge(IDS), {**draft_tensors(), "fc.weight": torch.rand(HIDDEN, HIDDEN)})
    assert [found.id for found in result.faults] == ["fc-not-called"]


def test_slots_that_are_lost_for_their_ids_are_told_once(tmp_path: Path) -> None:
    """Once that two ids name no layer, and once that 3 ids should be listed, which are."""
    (found,) = audited(tmp_path, specforge([-5, 15, 99])).faults
    assert found.id == "slot-count" and "fc gets 1 slot." in found.summary


def test_a_pruned_vocabulary_that_is_too_large_has_one_remedy(tmp_path: Path) -> None:
    """ "96 or less", and 48."""
    found = audited(tmp_path, specforge(IDS, draft_vocab_size=200)).faults
    assert len(found) > 1 and all(one.remedy.startswith('"draft_vocab_size": 48') for one in found)


def test_an_empty_tensor_is_called_empty(tmp_path: Path) -> None:
    """ "[0, 48]: it has to be of 2 dimensions"."""
    found = audited(tmp_path, specforge(IDS), {**draft_tensors(), "fc.weight": torch.empty(0, 48)}).faults
    assert any("is empty" in one.remedy for one in found)


def test_a_draft_of_the_first_eagle_that_is_served_as_such_is_not_audited(tmp_path: Path) -> None:
    """It was told to start the server with EAGLE3."""
    draft = write_draft(tmp_path / "draft", specforge(IDS), first_eagle())
    with pytest.raises(DrafttraceError, match="knows drafts of EAGLE-3 only"):
        check(write_target(tmp_path / "target"), draft, algorithm="eagle")


def test_two_wrong_sizes_are_two_faults(tmp_path: Path) -> None:
    """Eight, two of which told to write target_hidden_size and to look after it."""
    result = audited(tmp_path, specforge(IDS, hidden_size=32, intermediate_size=48))
    assert len(result.faults) == 2 and result.fix == {"hidden_size": HIDDEN, "intermediate_size": 24}


def test_two_tensors_of_each_others_shape_may_be_exchanged(tmp_path: Path) -> None:
    tensors, at = draft_tensors(), "midlayer.mlp."
    up, down = tensors[f"{at}up_proj.weight"], tensors[f"{at}down_proj.weight"]
    held = {**tensors, f"{at}up_proj.weight": down, f"{at}down_proj.weight": up}
    (found,) = audited(tmp_path, specforge(IDS), held).findings
    assert "under each other's names" in found.remedy


def test_a_bias_of_ones_is_no_norm(tmp_path: Path) -> None:
    """ "1 norm weights are exactly one everywhere, such as 'fc.bias'"."""
    result = audited(tmp_path, specforge(IDS, bias=True), {**draft_tensors(), "fc.bias": torch.ones(HIDDEN)})
    assert not any("norm weight" in found.summary for found in result.findings)
