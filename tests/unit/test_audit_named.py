"""What a config says wrongly is named by key and value, with what to write; and a class is checked as a server reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_folders import (
    DEEPSEEK_TARGET,
    HIDDEN,
    draft_tensors,
    mla,
    mla_tensors,
    modelopt,
    specforge,
    write_draft,
    write_target,
)

from drafttrace.compare.audit import render
from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import fix
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.capture import Capture, RowTable, Slot
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import ArrayRows, DType

CANONICAL = [1, 15, 28]
PLAIN_CLASS, MLA_CLASS = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"


def audited(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None, **more: Any
) -> CheckResult:
    draft = write_draft(folder / "draft", config, tensors)
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23", **more)


def capture() -> Capture:
    tokens = np.arange(20, dtype=np.int64)
    states = np.random.default_rng(0).normal(size=(3, 20, HIDDEN)).astype(np.float32)
    slots = tuple(Slot(f"s{k}", ArrayRows(states[k], DType.FP32), b, "test") for k, b in enumerate((2, 16, 29)))
    return Capture("d.pt", "SPEC-V1", "test", tokens, RowTable.of_tokens(tokens), slots)


@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size",
        "target_hidden_size", "intermediate_size", "vocab_size", "draft_vocab_size", "num_aux_hidden_states",
        "max_position_embeddings",
    ],
)  # fmt: skip
def test_a_count_of_zero_is_refused_by_key_and_value(tmp_path: Path, key: str) -> None:
    """ "num_hidden_layers": 0 was read as 1, and so was every other 0 as what stands for a missing field."""
    draft, target = (
        write_draft(tmp_path / "draft", specforge(CANONICAL, **{key: 0})),
        write_target(tmp_path / "target"),
    )
    for run in (check, lambda t, d: replay(capture(), d, t, steps=1)):
        with pytest.raises(UnreadableFile, match=f"'{key}': 0, no positive number"):
            run(target, draft)


def test_a_target_without_layers_is_refused_by_key_and_value(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", {**DEEPSEEK_TARGET, "num_hidden_layers": 0})
    with pytest.raises(UnreadableFile, match="'num_hidden_layers': 0, no whole number"):
        check(target, write_draft(tmp_path / "draft", specforge(CANONICAL)))


def test_a_draft_that_does_not_say_its_layers_is_refused(tmp_path: Path) -> None:
    """It was read as 1, and a server's config class takes 32."""
    config = specforge(CANONICAL)
    del config["num_hidden_layers"]
    with pytest.raises(UnreadableFile, match=r"no 'num_hidden_layers'.*\"num_hidden_layers\": 1"):
        audited(tmp_path, config)


@pytest.mark.parametrize(
    ("ids", "finding", "said", "write"),
    [
        ([0.5, 15, 28], "slot-count", "entry 0, 0.5: write the whole number", "whole numbers of the training run"),
        (["3", 15, 28], "fc-not-called", 'entry 0, "3": write 3', "[3, 15, 28]"),
        ([True, 15, 28], "default-wiring", "entry 0, true: write 1", "[1, 15, 28]"),
        ([1, 15, 28.0], "default-wiring", "entry 2, 28.0: write 28", "[1, 15, 28]"),
        ([1, None, 28], "fc-not-called", "entry 1, null: write the whole number", "whole numbers of the training run"),
        ([1, [15], 28], "fc-not-called", "entry 1, [15]: write the whole number", "whole numbers of the training run"),
        ([1, 15, 10**30], "slot-count", "write the whole number of a layer", "whole numbers of the training run"),
        ("1,15,28", "fc-not-called", "write [1, 15, 28]", "[1, 15, 28]"),
        ("first", "fc-not-called", "write one whole number per slot", "whole numbers of the training run"),
        ([], "slot-count", "write one whole number per slot", "whole numbers of the training run"),
        (7, "fc-not-called", "write one whole number per slot", "whole numbers of the training run"),
        ({"a": 1}, "fc-not-called", "write one whole number per slot", "whole numbers of the training run"),
    ],
    ids=repr,
)  # fmt: skip
def test_an_id_that_is_no_integer_is_named_by_value_with_what_to_write(
    tmp_path: Path, ids: Any, finding: str, said: str, write: str
) -> None:
    """The list was called "not a list of integers", and a server was said to take its default instead of stopping."""
    config = specforge(eagle_config={"eagle_aux_hidden_state_layer_ids": ids})
    result = audited(tmp_path, config)
    (found,) = [f for f in result.findings if "not a list of integers" in f.summary]
    assert found.id == finding and said in found.summary and write in found.remedy
    assert "serves its default" not in render.markdown(result)
    assert (result.readings[-1].boundaries is None) == (finding != "default-wiring")
    if "[" in write:
        assert result.fix == {"eagle_config.eagle_aux_hidden_state_layer_ids": json.loads(write)}
        fix(tmp_path / "draft", tmp_path / "fixed", result.fix)
        written = json.loads((tmp_path / "fixed/config.json").read_text())
        assert written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == json.loads(write)
    else:
        assert not result.fix
    replayed = replay(capture(), tmp_path / "draft", tmp_path / "target", steps=1, sglang_version="0.5.23")
    assert said in " ".join(f.summary for f in replayed.findings)


@pytest.mark.parametrize("ids", [["3", 3, 31], "3,3,31", [3.0, 3, 31], ["1", 15, 99]], ids=repr)
def test_ids_that_the_next_check_refuses_are_not_told_to_be_written(ids: Any, tmp_path: Path) -> None:
    """ "Write integers [3, 3, 31]"."""
    result = audited(tmp_path, specforge(eagle_config={"eagle_aux_hidden_state_layer_ids": ids}))
    assert result.exit_code == 1 and not result.fix
    assert not any("Write integers" in f.remedy or "write [" in f.summary for f in result.findings)


def test_where_training_is_known_its_ids_are_what_to_write(tmp_path: Path) -> None:
    result = audited(
        tmp_path, specforge(eagle_config={"eagle_aux_hidden_state_layer_ids": [0.5, 15, 28]}), trained=(2, 16, 29)
    )
    (found,) = result.faults
    assert '"eagle_aux_hidden_state_layer_ids": [1, 15, 28]' in found.remedy
    assert result.fix == {"eagle_config.eagle_aux_hidden_state_layer_ids": [1, 15, 28]}


def test_odd_ids_at_the_top_level_are_named_too(tmp_path: Path) -> None:
    result = audited(tmp_path, {**specforge(), "eagle_aux_hidden_state_layer_ids": ["3", 0.5, True]})
    (found,) = [f for f in result.findings if "not a list of integers" in f.summary]
    assert all(part in found.summary for part in ('"3": write 3', "0.5: write the whole", "true: write 1"))


def test_the_plain_class_over_an_mla_checkpoint_is_named_by_its_tensors(tmp_path: Path) -> None:
    """The tensors were checked for the sizes in the config, whatever class it names: no fault."""
    result = audited(tmp_path, mla(CANONICAL, architectures=[PLAIN_CLASS]), mla_tensors())
    (found,) = result.faults
    assert found.id == "weights-missing" and f'"architectures": ["{MLA_CLASS}"]' in found.remedy
    for name in ("q_proj", "k_proj", "v_proj"):
        assert f"layers.0.self_attn.{name}.weight" in found.evidence["missing"] and name in found.summary
    for name in ("q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj"):
        assert f"midlayer.self_attn.{name}.weight" in found.evidence["unused"] and name in found.summary
    assert not [f for f in result.findings if f.id == "weights-unused"]
    assert result.fix == {"architectures": [MLA_CLASS]}
    replayed = replay(capture(), tmp_path / "draft", tmp_path / "target", steps=1, sglang_version="0.5.23")
    assert "multi-latent" in " ".join(f.summary for f in replayed.faults)


def test_the_mla_class_over_a_plain_checkpoint_is_named_by_its_tensors(tmp_path: Path) -> None:
    result = audited(tmp_path, specforge(CANONICAL, architectures=[MLA_CLASS]))
    (found,) = [f for f in result.faults if f.id == "weights-missing" and "has multi-latent" in f.summary]
    assert "kv_a_proj_with_mqa" in found.summary and "midlayer.self_attn.k_proj.weight" in found.evidence["unused"]
    assert result.fix == {"architectures": [PLAIN_CLASS]}


def test_sizes_of_an_mla_draft_do_not_make_a_plain_one_of_it(tmp_path: Path) -> None:
    """Left over in the config of a plain draft, they change nothing: its class does not read them."""
    assert not audited(tmp_path / "plain", mla(CANONICAL, architectures=[PLAIN_CLASS]), draft_tensors()).faults
    config = mla(CANONICAL)
    del config["kv_lora_rank"]
    (found,) = [
        f for f in audited(tmp_path / "mla", config, mla_tensors()).faults if "no kv_lora_rank" in f.summary
    ]
    assert '"kv_lora_rank": 8' in found.remedy


def test_the_layer_with_a_window_is_named(tmp_path: Path) -> None:
    """Of a draft of two layers nothing said which one has it."""
    kinds = ["full_attention", "sliding_attention"]
    two = audited(tmp_path / "two", specforge(CANONICAL, num_hidden_layers=2, sliding_window=8, layer_types=kinds))
    (found,) = [f for f in two.faults if f.id == "window-mismatch"]
    assert found.summary.startswith("layers.1 of the draft's 2 layers was trained with a sliding window of 8")
    one = audited(tmp_path / "one", specforge(CANONICAL, sliding_window=8, layer_types=kinds[1:]))
    assert any(f.summary.startswith("The draft was trained with a sliding window of 8") for f in one.faults)


@pytest.mark.parametrize(
    "config",
    [specforge([1, 1, 28]), specforge(CANONICAL, num_aux_hidden_states=2), modelopt([1, 15, 90])],
    ids=["twice", "aux", "beyond"],
)
def test_no_sentence_points_at_a_place_in_a_report(tmp_path: Path, config: dict[str, Any]) -> None:
    """ "see the wirings above" stood in --json, where nothing stands above; and below the summary stood no hint."""
    result = audited(tmp_path, config)
    texts = [result.summary, *(f"{f.summary} {f.remedy}" for f in result.findings)]
    assert result.findings and not any(
        word in text.split() for text in texts for word in ("above.", "below.", "above;", "below")
    )
    assert all("see the wirings" not in text and "said above" not in text for text in texts)


@pytest.mark.parametrize(
    ("change", "finding", "severity", "words"),
    [
        ({"norm_output": "false"}, "norm-extra", "fault", "norm_output is 'false', which is neither"),
        ({"norm_before_residual": "off"}, "norm-extra", "fault", "as true"),
        ({"tie_word_embeddings": "no"}, "weights-replaced", "fault", "as true"),
        ({"eagle_config": {"use_aux_hidden_state": ""}}, "fc-not-called", "fault", "as false"),
        ({"bias": []}, "weights-missing", "fault", "as false"),
        ({"norm_before_residual": "maybe"}, "norm-extra", "fault", "as true"),
        ({"norm_output": "true"}, "norm-extra", "note", "as true"),
    ],
    ids=repr,
)
def test_a_switch_that_is_neither_true_nor_false_is_named(
    tmp_path: Path, change: dict[str, Any], finding: str, severity: str, words: str
) -> None:
    """Every reader asks only whether something stands there, so "false" switched a norm on without a word."""
    result = audited(tmp_path, specforge(CANONICAL, **change))
    (found,) = [f for f in result.findings if "neither true nor false" in f.summary]
    assert (found.id, found.severity) == (finding, severity) and words in found.summary and "Write" in found.remedy
    replayed = replay(capture(), tmp_path / "draft", tmp_path / "target", steps=1, sglang_version="0.5.23")
    assert found.summary in {f.summary for f in replayed.findings}


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("value", [0, -1e-6])
def test_a_size_that_is_not_above_zero_is_refused(tmp_path: Path, key: str, value: float) -> None:
    """Every state became NaN, and the replay called the draft useless."""
    with pytest.raises(UnreadableFile, match=f"'{key}': .*, no positive number"):
        audited(tmp_path, specforge(CANONICAL, **{key: value}))


def test_tensors_that_one_number_puts_right_are_one_fault(tmp_path: Path) -> None:
    """A wrong head_dim was four faults with one remedy, a wrong hidden_size fourteen."""
    result = audited(tmp_path, specforge(CANONICAL, head_dim=6))
    (found,) = result.faults
    assert found.summary.startswith("4 tensors have other shapes") and '"head_dim": 4' in found.remedy
    assert len(found.evidence["tensors"]) == 4


def test_of_two_numbers_that_fit_the_nearer_one_is_advised(tmp_path: Path) -> None:
    """For a target_hidden_size of 17 where 16 is right, 3 was advised: 16 slots of 3 fill fc, too."""
    result = audited(tmp_path, specforge(CANONICAL, target_hidden_size=17))
    (found,) = result.faults
    assert found.remedy == '"target_hidden_size": 16'


@pytest.mark.parametrize("layers", [2, 1000])
def test_layers_that_the_checkpoint_does_not_hold_are_one_fault(tmp_path: Path, layers: int) -> None:
    """Each of their tensors was one: nine thousand of them for a thousand layers."""
    result = audited(tmp_path, specforge(CANONICAL, num_hidden_layers=layers))
    (found,) = result.faults
    assert found.summary.startswith(
        f"num_hidden_layers is {layers}, and the checkpoint holds no tensor of layers.1"
    )
    assert '"num_hidden_layers": 1' in found.remedy and not result.fix


def test_a_layer_that_the_config_does_not_ask_for_is_a_fault(tmp_path: Path) -> None:
    """It was a hint that tensors are read by nothing; the server runs another model than training did."""
    tensors = draft_tensors()
    for name, tensor in draft_tensors(prefix="layers.1.").items():
        if name.startswith("layers.1."):
            tensors[name] = (
                tensor[:, :HIDDEN] if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else tensor
            )
    result = audited(tmp_path, specforge(CANONICAL), tensors)
    (found,) = result.faults
    assert found.id == "weights-unused" and "holds layers.1, and num_hidden_layers is 1" in found.summary
    assert '"num_hidden_layers": 2' in found.remedy
    replayed = replay(capture(), tmp_path / "draft", tmp_path / "target", steps=1, sglang_version="0.5.23")
    assert found.summary in {f.summary for f in replayed.faults}


@pytest.mark.parametrize("kinds", ["sliding_attention", [5], [], ["sliding_attention"] * 2, [["x"]]], ids=repr)
def test_layer_types_that_are_none_are_named(tmp_path: Path, kinds: Any) -> None:
    """They switched the window off, or on, without a word."""
    result = audited(tmp_path, specforge(CANONICAL, sliding_window=8, layer_types=kinds))
    assert any(f"layer_types is {kinds!r}" in f.summary and "full_attention" in f.remedy for f in result.findings)


def test_architectures_that_are_no_list_are_named_by_value(tmp_path: Path) -> None:
    """ "names the class None"."""
    result = audited(tmp_path, specforge(CANONICAL, architectures=PLAIN_CLASS))
    (found,) = result.faults
    assert f"names no class (architectures is '{PLAIN_CLASS}'" in found.summary and found.remedy


@pytest.mark.parametrize("act", ["gelu", "SiLU", None])
def test_an_activation_that_the_server_refuses_is_a_fault(tmp_path: Path, act: str | None) -> None:
    """SGLang's MLPs raise for everything but silu, and the check said nothing."""
    (found,) = audited(tmp_path, specforge(CANONICAL, hidden_act=act)).faults
    assert f"hidden_act is '{act}'" in found.summary and '"hidden_act": "silu"' in found.remedy


@pytest.mark.parametrize("factor", [0, 2, -1, 0.3])
def test_a_share_of_turned_channels_that_is_none_is_a_fault(tmp_path: Path, factor: float) -> None:
    """Only the replay refused it."""
    (found,) = audited(tmp_path, specforge(CANONICAL, partial_rotary_factor=factor)).faults
    assert found.id == "rope-mismatch" and f"partial_rotary_factor is {factor:g}" in found.summary
