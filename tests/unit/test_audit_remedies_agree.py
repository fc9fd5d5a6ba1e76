"""Remedies are right for what the weights say, and none of them contradicts another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import (
    GPT_OSS_TARGET,
    HIDDEN,
    LLAMA_TARGET,
    draft_tensors,
    mla,
    mla_tensors,
    specforge,
    write_draft,
    write_target,
)
from safetensors.torch import save_file

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import fix
from drafttrace.compare.audit.result import CheckResult

CANONICAL = [1, 15, 28]
IDS = {"eagle_aux_hidden_state_layer_ids": CANONICAL}
LINE = '"eagle_config": {"eagle_aux_hidden_state_layer_ids": '


def audited(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None, **more: Any
) -> CheckResult:
    draft = write_draft(folder / "draft", config, tensors)
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23", **more)


def mended(folder: Path, result: CheckResult, tensors: dict[str, torch.Tensor]) -> CheckResult:
    """The audit of the copy that --fix writes, with the same weights."""
    fix(folder / "draft", folder / "fixed", result.fix)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "fixed" / "model.safetensors"
    )
    return check(folder / "target", folder / "fixed", sglang_version="0.5.23")


def test_a_word_for_false_that_is_served_as_the_weights_want_it_is_a_hint(tmp_path: Path) -> None:
    """The draft works, and the remedy was to switch fc off."""
    result = audited(tmp_path, specforge(None, eagle_config={**IDS, "use_aux_hidden_state": "false"}))
    (found,) = [f for f in result.findings if "neither true nor false" in f.summary]
    assert (
        not result.faults
        and found.remedy == 'Write "use_aux_hidden_state": true, as training had it by its weights.'
    )
    assert result.fix == {"eagle_config.use_aux_hidden_state": True}


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        ({"fc_norm": "false"}, {f"fc_norm.{k}.weight": torch.rand(HIDDEN) for k in range(3)}),
        ({"norm_before_fc": "off"}, {"input_norm.weight": torch.rand(3 * HIDDEN)}),
        ({"bias": "no"}, {"fc.bias": torch.rand(HIDDEN)}),
    ],
    ids=lambda value: next(iter(value)),
)
def test_weights_tell_what_a_word_meant(
    config: dict[str, Any], extra: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    (key,) = config
    result = audited(tmp_path, specforge(CANONICAL, **config), {**draft_tensors(), **extra})
    (found,) = [f for f in result.findings if "neither true nor false" in f.summary]
    assert f'"{key}": true, as training had it by its weights' in found.remedy and result.fix == {key: True}
    assert not result.faults and not mended(tmp_path, result, {**draft_tensors(), **extra}).findings


@pytest.mark.parametrize("value", [False, ""])
def test_the_line_that_switches_the_slots_on_is_written_and_keeps_the_ids(value: Any, tmp_path: Path) -> None:
    """Pasted as it stood, the line took the ids away; and --fix did not write it."""
    result = audited(tmp_path, specforge(None, eagle_config={**IDS, "use_aux_hidden_state": value}))
    assert result.fix == {"eagle_config.use_aux_hidden_state": True}
    assert all('"eagle_config": {"use' not in f.remedy for f in result.faults)
    again = mended(tmp_path, result, draft_tensors())
    assert not again.faults and again.readings[-1].boundaries == (2, 16, 29)


def test_a_word_for_a_norm_is_written_by_fix(tmp_path: Path) -> None:
    """The remedy was an exact line, and --fix left it out."""
    result = audited(tmp_path, specforge(CANONICAL, norm_output="false"))
    assert result.fix == {"norm_output": False}
    assert not mended(tmp_path, result, draft_tensors()).faults


@pytest.mark.parametrize("more", [{}, {"num_aux_hidden_states": 5}], ids=["default", "counted"])
def test_five_slots_without_ids_are_told_one_thing(more: dict[str, Any], tmp_path: Path) -> None:
    """One finding said to list five ids, and the next to paste the three of the default."""
    result = audited(tmp_path, specforge(**more), draft_tensors(slots=5))
    assert any("List 5 ids" in f.remedy for f in result.faults)
    assert not any("[1, 15, 28]" in f.remedy for f in result.findings)
    assert any(
        f.id == "default-wiring" and "List the 5 ids that training used" in f.remedy for f in result.findings
    )


@pytest.mark.parametrize("value", [[1, 15, 28], [1, 2], "1,15,28", 5, True], ids=repr)
def test_an_eagle_config_that_is_no_object_stops_the_server(value: Any, tmp_path: Path) -> None:
    """It was said to serve its default; the draft class asks it for a key and raises."""
    result = audited(tmp_path, specforge(eagle_config=value))
    (found,) = result.faults
    assert (
        found.id == "fc-not-called" and "AttributeError" in found.summary and LINE + "[1, 15, 28]}" in found.remedy
    )
    known = audited(tmp_path / "known", specforge(eagle_config=value), trained=(2, 16, 29))
    assert known.fix == {"eagle_config.eagle_aux_hidden_state_layer_ids": CANONICAL}
    again = mended(tmp_path / "known", known, draft_tensors())
    assert not again.faults and again.readings[-1].boundaries == (2, 16, 29)


@pytest.mark.parametrize("value", [[], "", 0, False])
def test_an_eagle_config_that_is_nothing_is_served_as_none(value: Any, tmp_path: Path) -> None:
    assert not any("AttributeError" in f.summary for f in audited(tmp_path, specforge(eagle_config=value)).faults)


def test_the_class_with_latent_attention_takes_an_eagle_config_that_is_no_object(tmp_path: Path) -> None:
    config = mla(CANONICAL)
    config["eagle_config"] = [1, 2]
    assert not any("AttributeError" in f.summary for f in audited(tmp_path, config, mla_tensors()).faults)


@pytest.mark.parametrize("ids", [[2, 16, 29], [1, 15, 28]], ids=["as vLLM reads them", "as trainers do"])
@pytest.mark.parametrize("place", ["eagle_aux_hidden_state_layer_ids", "target_layer_ids"])
def test_ids_elsewhere_that_one_reader_takes_for_what_is_served_are_a_hint(
    ids: list[int], place: str, tmp_path: Path
) -> None:
    """[2, 16, 29] at the top level, vLLM's field, means the default that SGLang serves: it was a fault of 0.9."""
    result = audited(tmp_path, specforge(**{place: ids}))
    assert not result.faults and [f.id for f in result.findings] == ["default-wiring"]
    assert audited(tmp_path / "other", specforge(**{place: [5, 20, 25]})).faults


def test_ids_for_the_embedding_say_where_it_is_not_known_whether_they_work(tmp_path: Path) -> None:
    """The check of other ids said so; the line for a Qwen3 target did not, and --fix wrote it."""
    target = {**LLAMA_TARGET, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    write_target(tmp_path / "target", target)
    write_draft(tmp_path / "draft", specforge(CANONICAL))
    result = check(tmp_path / "target", tmp_path / "draft", sglang_version="0.5.23", trained=(0, 3, 31))
    told = [f for f in result.faults if "[-1, 2, 30]" in f.remedy]
    assert told and all("whether this class can capture B0 is not known" in f.remedy for f in told)
    assert any("[-1, 2, 30] that --fix writes ask for B0" in remark for remark in result.notes)
    llama = audited(tmp_path / "llama", specforge(CANONICAL), trained=(0, 3, 31))
    assert not any("is not known" in f.remedy for f in llama.faults)


def test_the_line_for_the_ids_says_that_other_keys_stay(tmp_path: Path) -> None:
    config = specforge([2, 16, 29])
    config["eagle_config"]["norm_before_fc"] = True
    tensors = {**draft_tensors(), "input_norm.weight": torch.rand(3 * HIDDEN)}
    result = audited(tmp_path, config, tensors, trained=(2, 16, 29))
    assert result.faults and all("beside the other keys of eagle_config" in f.remedy for f in result.faults)
    fix(tmp_path / "draft", tmp_path / "fixed", result.fix)
    assert json.loads((tmp_path / "fixed" / "config.json").read_text())["eagle_config"]["norm_before_fc"] is True


@pytest.mark.parametrize("wrong", [8, 32, 20])
@pytest.mark.parametrize("fc_norm", [False, True])
def test_a_hidden_size_that_all_weights_contradict_is_one_fault(wrong: int, fc_norm: bool, tmp_path: Path) -> None:
    """Four remedies stood side by side, one of them right, and --fix wrote none."""
    extra = {f"fc_norm.{k}.weight": torch.rand(HIDDEN) for k in range(3)} if fc_norm else {}
    tensors = {**draft_tensors(), **extra}
    result = audited(tmp_path, specforge(CANONICAL, hidden_size=wrong, head_dim=4, fc_norm=fc_norm), tensors)
    (found,) = result.faults
    assert found.remedy == f'"hidden_size": {HIDDEN}' and result.fix == {"hidden_size": HIDDEN}
    assert not mended(tmp_path, result, tensors).findings


def test_a_hidden_size_beside_another_fault_is_told_with_it(tmp_path: Path) -> None:
    result = audited(tmp_path, specforge(None, hidden_size=32, head_dim=4), trained=(0, 3, 31))
    assert {f.id for f in result.faults} == {"weights-missing", "default-wiring", "wrong-boundary"}
    assert set(result.fix) == {"hidden_size", "eagle_config.eagle_aux_hidden_state_layer_ids"}


def test_a_bad_export_of_fc_alone_blames_no_hidden_size(tmp_path: Path) -> None:
    result = audited(tmp_path, specforge(CANONICAL), {**draft_tensors(), "fc.weight": torch.rand(20, 3 * HIDDEN)})
    assert "hidden_size" not in result.fix and not any("all weights are" in f.summary for f in result.faults)


def test_a_reading_that_no_boundary_fits_is_not_offered(tmp_path: Path) -> None:
    """[24, 30, 36] of 36 layers was said to be ambiguous with [B25, B31, B37], to be tried with --wiring B25,B31,B37."""
    draft = write_draft(tmp_path / "draft", specforge([24, 30, 36]))
    result = check(write_target(tmp_path / "target", GPT_OSS_TARGET), draft, sglang_version="0.5.23")
    assert not any("B37" in f.summary + f.remedy for f in result.findings) and not result.faults
    at_top = write_draft(tmp_path / "top", specforge(eagle_aux_hidden_state_layer_ids=[24, 30, 36]))
    result = check(tmp_path / "target", at_top, sglang_version="0.5.23")
    assert not any("B37" in f.remedy for f in result.findings)


def test_an_absent_draft_vocab_size_stops_the_server_and_does_nothing_else(tmp_path: Path) -> None:
    """It stops with an AttributeError, and was also said to replace the head with the target's."""
    config = {key: value for key, value in specforge(CANONICAL).items() if key != "draft_vocab_size"}
    (found,) = audited(tmp_path, config).faults
    assert "AttributeError" in found.summary and found.remedy.startswith('"draft_vocab_size": 48')
    headless = {name: t for name, t in draft_tensors().items() if name != "lm_head.weight"}
    result = audited(tmp_path / "headless", config, headless)
    assert result.fix == {"draft_vocab_size": 48}  # null would take the target's head, which d2t does not fit
    assert not any("null" in f.remedy for f in result.faults)
    assert [f.id for f in mended(tmp_path / "headless", result, headless).faults] == ["weights-missing"]


@pytest.mark.parametrize("said", [True, False])
def test_no_class_of_plain_attention_is_the_remedy_of_a_latent_draft(said: bool, tmp_path: Path) -> None:
    """norm_before_fc was to be served with LlamaForCausalLMEagle3, which the next check refused for MLA weights."""
    held = {**mla_tensors(), "input_norm.weight": torch.rand(3 * HIDDEN)}
    result = audited(tmp_path, mla(CANONICAL, **({"norm_before_fc": True} if said else {})), held)
    told = [f for f in result.faults if f.id == "norm-missing"]
    assert told and all("No line of the config helps" in f.remedy for f in told)
    assert not any("LlamaForCausalLMEagle3" in f.remedy for f in result.findings)


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "Qwen2MoeForCausalLM"])
@pytest.mark.parametrize("version", [None, "0.5.23"])
def test_an_id_without_a_layer_stops_a_class_that_looks_it_up(
    name: str, version: str | None, tmp_path: Path
) -> None:
    """ "fc gets 2 slots": these setters mark self.layers[32] of 32, and the server stops with an IndexError."""
    target = write_target(tmp_path / "target", {**LLAMA_TARGET, "architectures": [name]})
    for ids in ([1, 15, 31], [1, 15, 40]):
        draft = write_draft(tmp_path / str(ids[2]), specforge(ids))
        told = [f for f in check(target, draft, sglang_version=version).faults if "IndexError" in f.summary]
        assert [f.id for f in told] == ["fc-not-called"] and f"[B{ids[2] + 1}]" in told[0].summary
    fine = check(target, write_draft(tmp_path / "fine", specforge(CANONICAL)), sglang_version=version)
    assert not any("IndexError" in f.summary for f in fine.findings)


@pytest.mark.parametrize(
    ("top", "told"), [([5, 15, 28], True), ([1, 15, 28], False), ([2, 16, 29], False), ([1, 15], True)]
)
def test_two_lists_of_ids_that_contradict_each_other_are_a_hint(top: list[int], told: bool, tmp_path: Path) -> None:
    result = audited(tmp_path, specforge(CANONICAL, eagle_aux_hidden_state_layer_ids=top))
    assert any(f.id == "wrong-boundary" and str(top) in f.summary for f in result.findings) is told
    assert not result.faults
