"""Every line that ``check`` prints is right: pasted into a copy of the config, its finding is gone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import HIDDEN, LLAMA_TARGET, PRUNED, VOCAB, draft_tensors, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import corrected
from drafttrace.compare.audit.gathering import gather
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.draft_config import NESTED
from drafttrace.compare.replay.not_loaded import refuse_what_no_server_loads
from drafttrace.tracer.errors import UnreadableFile

IDS = [1, 15, 28]
_KEY = re.compile(r'"([a-z_]+)": ')
WRONG: list[dict[str, Any]] = [
    {"target_hidden_size": 2 * HIDDEN},
    {"target_hidden_size": HIDDEN // 2},
    {"target_hidden_size": 3 * HIDDEN},
    {"target_hidden_size": 7},
    {"target_hidden_size": None},
    {"target_hidden_size": 2 * HIDDEN, "hidden_size": 2 * HIDDEN, "head_dim": 4},
    {"hidden_size": 2 * HIDDEN, "head_dim": 4},
    {"vocab_size": 2 * VOCAB},
    {"vocab_size": PRUNED - 8},
    {"vocab_size": PRUNED - 8, "draft_vocab_size": 2 * VOCAB},
    {"draft_vocab_size": 2 * PRUNED},
    {"draft_vocab_size": None},
    {"num_attention_heads": 8},
    {"num_key_value_heads": 1},
    {"head_dim": 8},
    {"intermediate_size": 48},
    {"num_hidden_layers": 2},
    {"num_aux_hidden_states": 5},
    {"tie_word_embeddings": True},
    {"bias": True},
    {"architectures": ["LlamaForCausalLM"]},
    {"model_type": "foo"},
    {"hidden_act": "gelu"},
    {"torch_dtype": "bf16"},
    {"rms_norm_eps": 1},
    {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["1", "15", "28"]}},
    {"eagle_config": {"eagle_aux_hidden_state_layer_ids": IDS, "use_aux_hidden_state": False}},
    {"eagle_config": {"eagle_aux_hidden_state_layers_ids": [2, 16, 29]}},
    {"eagle_config": None, "eagle_aux_hidden_state_layers_ids": [2, 16, 29]},
    {"eagle_config": None},
    {"norm_befor_fc": False},
    {"eagle_config": {"eagle_aux_hidden_state_layer_ids": IDS, "draft_vocab_sizes": PRUNED - 1}},
    {"max_position_embeddings": 128},
    {"norm_before_fc": True},
    {"rope_theta": 500000.0},
    {"eagle_aux_hidden_state_layer_ids": [5, 9, 20]},
    {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 32]}},
    {"quantization_config": {"quant_method": "awq", "bits": 4}},
]  # fmt: skip


def _weights() -> dict[str, dict[str, torch.Tensor | None]]:
    """Tensors that are wrong, by what is; None for those that are not there."""
    kept, first = draft_tensors()["d2t"] + torch.arange(PRUNED), torch.arange(VOCAB) < PRUNED
    order = torch.randperm(PRUNED, generator=torch.Generator().manual_seed(0))
    parts = {"qweight": torch.ones(6, 4, dtype=torch.int32), "scales": torch.ones(6, 4)}
    return {
        "no head": {"lm_head.weight": None},
        "no head and no map": {"lm_head.weight": None, "d2t": None, "t2d": None},
        "no map": {"d2t": None},
        "ids for offsets": {"d2t": kept + 1, "t2d": None},
        "a map in another order": {"d2t": kept[order] - torch.arange(PRUNED)},
        "ids in another order": {"d2t": kept[order]},
        "an empty mask": {"t2d": torch.zeros(VOCAB, dtype=torch.bool)},
        "zero offsets": {"d2t": torch.zeros(PRUNED, dtype=torch.int64), "t2d": first},
        "a quantized fc": {"fc.weight": None, **{f"fc.{name}": part for name, part in parts.items()}},
        "a quantized head": {"lm_head.weight": None, **{f"lm_head.{name}": part for name, part in parts.items()}},
        "scales of fc": {"fc.weight_scale": torch.full((HIDDEN, 1), 0.5)},
        "a norm of no switch": {"input_norm.weight": torch.rand(3 * HIDDEN)},
        "a head of more rows": {"lm_head.weight": torch.rand(PRUNED + 8, HIDDEN)},
    }


WEIGHTS = _weights()


def lines(remedy: str) -> list[tuple[str, Any]]:
    """Every ``"key": value`` of a remedy."""
    found, place = [], 0
    while match := _KEY.search(remedy, place):
        try:
            value, place = json.JSONDecoder().raw_decode(remedy, match.end())
            found.append((match.group(1), value))
        except ValueError:
            place = match.end()
    return found


def pasted(config: dict[str, Any], key: str, value: Any, remedy: str) -> dict[str, Any]:
    inside = re.search(r'(in|inside) "?eagle_config', remedy) is not None or key == NESTED.rpartition(".")[2]
    if key == "eagle_config":
        return corrected(config, {f"eagle_config.{name}": one for name, one in value.items()})
    return corrected(config, {f"eagle_config.{key}" if inside else key: value})


def audited(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> CheckResult:
    target = folder / "target"
    if not target.exists():
        write_target(target)
    return check(target, write_draft(folder / "draft", config, tensors), sglang_version="0.5.23")


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_a_pasted_line_makes_its_finding_go(change: dict[str, Any], tmp_path: Path) -> None:
    """A wrong target_hidden_size had four remedies, of which one asked for a third width and one for an embedding."""
    config = {**specforge(IDS), **change}
    assert each_line_pasted(tmp_path, config).findings


@pytest.mark.parametrize("config", [{}, {"draft_vocab_size": None}, {"draft_vocab_size": "absent"}], ids=str)
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_line_pasted_beside_wrong_weights_stops_no_server(
    name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """No head beside a d2t: the line for sharing the target's head stopped the server at its first request."""
    whole = {key: value for key, value in {**specforge(IDS), **config}.items() if value != "absent"}
    held = {**draft_tensors(), **WEIGHTS[name]}
    each_line_pasted(tmp_path, whole, {key: tensor for key, tensor in held.items() if tensor is not None})


def each_line_pasted(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None
) -> CheckResult:
    """What the audit says, with each line that it prints pasted into a copy by itself: its finding is gone, and nothing
    that stops the server is new."""
    before = audited(folder, config, tensors)
    known = {one.id for one in before.faults if "stops" in one.summary}
    for finding in before.findings:
        for key, value in lines(finding.remedy):
            after = audited(folder, pasted(config, key, value, finding.remedy), tensors)
            told = {(one.id, one.summary) for one in after.findings}
            assert (finding.id, finding.summary) not in told, (finding.summary, finding.remedy, key, value)
            new = [one.summary for one in after.faults if "stops" in one.summary]
            assert known or not new, (finding.summary, finding.remedy, key, value, new)
    return before


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_what_fix_says_it_leaves_is_what_its_copy_has(change: dict[str, Any], tmp_path: Path) -> None:
    """--fix said nothing of what it could not put right."""
    tensors = {**draft_tensors(), "norm.weight": torch.full((HIDDEN,), float("nan"))}
    config = {**specforge(IDS), **change}
    result = audited(tmp_path, config, tensors)
    again = audited(tmp_path, corrected(config, result.fix), tensors)
    assert [(f.id, f.summary) for f in result.left] == [(f.id, f.summary) for f in again.faults]
    assert any(f.id == "nan-inf" for f in result.left)


@pytest.mark.parametrize("said", [2 * HIDDEN, HIDDEN // 2, 3 * HIDDEN, 7])
def test_a_wrong_target_hidden_size_is_one_fault_with_one_line(said: int, tmp_path: Path) -> None:
    result = audited(tmp_path, specforge(IDS, target_hidden_size=said))
    (found,) = result.findings
    assert found.remedy == f'"target_hidden_size": {HIDDEN}' and result.fix == {"target_hidden_size": HIDDEN}
    assert not result.left
    subject, _, _ = gather(tmp_path / "target", tmp_path / "draft", version="0.5.23")
    with pytest.raises(UnreadableFile, match=f'"target_hidden_size": {HIDDEN}'):  # the replay says the same
        refuse_what_no_server_loads(subject)


def test_a_draft_narrower_than_its_target_that_does_not_say_so(tmp_path: Path) -> None:
    """The width of the slots was the draft's own, and nothing was written."""
    target = write_target(tmp_path / "target", {**LLAMA_TARGET, "hidden_size": 2 * HIDDEN})
    tensors = {**draft_tensors(slot_width=2 * HIDDEN), "embed_tokens.weight": torch.rand(VOCAB, HIDDEN)}
    draft = write_draft(tmp_path / "draft", specforge(IDS), tensors)
    result = check(target, draft, sglang_version="0.5.23")
    assert result.fix == {"target_hidden_size": 2 * HIDDEN} and not result.left
    assert [f.id for f in result.faults] == ["slot-count"]


def test_a_draft_of_a_wider_target_gets_no_line(tmp_path: Path) -> None:
    """Its fc was trained on the width that its config says: "target_hidden_size": 16 would only hide that."""
    tensors = {**draft_tensors(slot_width=2 * HIDDEN), "embed_tokens.weight": torch.rand(VOCAB, HIDDEN)}
    result = audited(tmp_path, specforge(IDS, target_hidden_size=2 * HIDDEN), tensors)
    (found,) = result.faults
    assert found.id == "slot-count" and "Give the target" in found.remedy and not result.fix
    assert result.left == (found,)


def test_no_tensor_asks_for_another_width_than_the_targets(tmp_path: Path) -> None:
    """A bad fc was to be made fit by "target_hidden_size": 20."""
    tensors = {**draft_tensors(), "fc.weight": torch.rand(HIDDEN, 60)}
    result = audited(tmp_path, specforge(IDS, target_hidden_size=HIDDEN), tensors)
    assert result.faults and not any('target_hidden_size": 20' in f.remedy for f in result.findings)


def test_a_vocab_size_that_t2d_contradicts_is_written(tmp_path: Path) -> None:
    result = audited(tmp_path, specforge(IDS, vocab_size=2 * VOCAB))
    assert result.fix == {"vocab_size": VOCAB} and [f.remedy for f in result.faults] == [f'"vocab_size": {VOCAB}']
    held = {k: v for k, v in draft_tensors().items() if k != "t2d"}
    (tmp_path / "draft" / "model.safetensors").unlink()
    result = audited(tmp_path, specforge(IDS, vocab_size=2 * VOCAB), held)
    assert (
        result.fix == {} and "if both use the same tokenizer" in result.faults[0].remedy and len(result.left) == 1
    )
