"""Drafts that are quantized, drafts that only say so; files and releases of which little is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import (
    HIDDEN,
    LLAMA_TARGET,
    PRUNED,
    draft_tensors,
    mla,
    mla_tensors,
    specforge,
    write_draft,
    write_target,
)

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult
from drafttrace.tracer.errors import UnreadableFile

CANONICAL = [1, 15, 28]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}


def audited(
    folder: Path, said: dict[str, Any] | None, tensors: dict[str, torch.Tensor] | None = None
) -> CheckResult:
    held = {k: t.bfloat16() if t.is_floating_point() else t for k, t in (tensors or draft_tensors()).items()}
    draft = write_draft(folder / "draft", specforge(CANONICAL, quantization_config=said), held)
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23")


@pytest.mark.parametrize("said", [AWQ, FP8, GPTQ], ids=lambda said: said["quant_method"])
def test_tensors_as_trained_under_a_quantized_config_are_a_fault(said: dict[str, Any], tmp_path: Path) -> None:
    """The check passed them; AWQ's layers have no parameter of these names, FP8's no scale."""
    result = audited(tmp_path, said)
    (found,) = result.faults
    assert found.id == "weights-missing" and found.evidence["field"] == "quantization_config"
    assert len(found.evidence["tensors"]) == 7 and result.fix == {"quantization_config": None}


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_layers_that_the_config_leaves_out_are_not_judged(key: str, tmp_path: Path) -> None:
    assert not audited(tmp_path, {**FP8, key: ["model.layers.0"]}).faults


def test_a_quantization_without_its_numbers_stops_the_server(tmp_path: Path) -> None:
    """Seen on a server: 'Cannot find any of ['q_group_size', 'group_size'] in the model's quantization config'."""
    found = [f for f in audited(tmp_path, {"quant_method": "awq", "bits": 4}).faults if f.id == "fc-not-called"]
    assert len(found) == 1 and "no group_size and no zero_point" in found[0].summary


def quantized(parts: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """The draft with its projections stored in parts."""
    held = {}
    for name, tensor in draft_tensors().items():
        if not name.endswith("_proj.weight"):
            held[name] = tensor
            continue
        for part, dtype in parts.items():
            held[f"{name.removesuffix('weight')}{part}"] = torch.ones(tensor.shape[0], 4).to(dtype)
    return held


def test_a_draft_that_is_quantized_is_not_called_damaged(tmp_path: Path) -> None:
    """Seven faults of missing weights, for tensors that stand there under the names of their quantization."""
    parts = {"qweight": torch.int32, "qzeros": torch.int32, "scales": torch.float16}
    assert not audited(tmp_path / "awq", AWQ, quantized(parts)).findings
    held = {
        **draft_tensors(),
        **{f"{k}_scale": torch.ones(1) for k in draft_tensors() if k.endswith("_proj.weight")},
    }
    assert not [f for f in audited(tmp_path / "fp8", FP8, held).findings if f.id == "weights-unused"]
    plain = {k: v for k, v in held.items() if k != "midlayer.mlp.up_proj.weight"}
    assert any("up_proj.weight" in f.summary for f in audited(tmp_path / "none", {}, plain).faults)


def packed(name: str) -> dict[str, torch.Tensor]:
    """The draft with one more tensor stored as AWQ stores it, in the place of its ``weight``."""
    held = quantized({"qweight": torch.int32, "qzeros": torch.int32, "scales": torch.float16})
    module = name.removesuffix("weight")
    del held[name]
    parts = {"qweight": torch.int32, "qzeros": torch.int32, "scales": torch.float16}
    return held | {f"{module}{part}": torch.ones(16, 4).to(dtype) for part, dtype in parts.items()}


def scaled(name: str, rows: int, value: float = 0.5) -> dict[str, torch.Tensor]:
    """The draft with scales beside every projection and beside one more tensor."""
    held = draft_tensors()
    scales = {f"{k}_scale": torch.ones(1) for k in held if k.endswith("_proj.weight")}
    return {**held, **scales, f"{name}_scale": torch.full((rows, 1), value)}


CT = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
}


@pytest.mark.parametrize("name", ["fc.weight", "lm_head.weight"])
def test_packed_tensors_of_a_plain_module_fill_nothing(name: str, tmp_path: Path) -> None:
    """An AWQ draft with 'fc.qweight' was healthy; a head so stored was to be made the target's."""
    (found,) = audited(tmp_path, AWQ, packed(name)).faults
    assert found.id == "weights-missing" and f"'{name.removesuffix('weight')}qweight'" in found.summary
    assert found.remedy.startswith(f"Export {name} as it was trained") and "null" not in found.remedy
    held = {k: v for k, v in draft_tensors().items() if k != name}
    held |= {k: v for k, v in packed(name).items() if k.startswith(name.removesuffix("weight"))}
    (found,) = audited(tmp_path / "unsaid", None, held).faults
    assert found.evidence["tensor"] == name and "without a quantization_config" in found.summary


@pytest.mark.parametrize("name", ["fc.weight", "lm_head.weight"])
@pytest.mark.parametrize("said", [FP8, CT, None], ids=["fp8", "compressed-tensors", "unsaid"])
def test_scales_of_a_plain_module_are_a_fault(name: str, said: dict[str, Any] | None, tmp_path: Path) -> None:
    """Seen on a server: fc in FP8 has an accept length of 1.33 where 4.92 is right, and the check found nothing."""
    held = scaled(name, PRUNED)
    if said is None:
        held = {k: v for k, v in held.items() if "_proj.weight_scale" not in k}
    (found,) = audited(tmp_path, said, held).faults
    assert found.id == "weights-unused" and f"'{name}_scale'" in found.summary and "unscaled" in found.summary
    ones = audited(tmp_path / "ones", said, {**held, f"{name}_scale": torch.ones(PRUNED, 1)})
    assert not ones.findings  # nothing is lost


def test_a_head_that_its_quantization_names_is_read(tmp_path: Path) -> None:
    assert not audited(tmp_path / "awq", {**AWQ, "lm_head": True}, packed("lm_head.weight")).findings
    groups = {"group_0": {**CT["config_groups"]["group_0"], "targets": ["Linear", "re:.*lm_head"]}}
    assert not audited(tmp_path / "ct", {**CT, "config_groups": groups}, scaled("lm_head.weight", PRUNED)).findings
    assert audited(tmp_path / "fc", {**CT, "config_groups": groups}, scaled("fc.weight", HIDDEN)).faults


def test_one_scale_of_the_whole_head_is_a_hint(tmp_path: Path) -> None:
    """It leaves the order of the tokens as it is."""
    result = audited(tmp_path, FP8, scaled("lm_head.weight", 1))
    assert not result.faults and any("leaves the order of the tokens" in f.summary for f in result.findings)


def test_a_quantized_fc_of_the_latent_class_is_read(tmp_path: Path) -> None:
    """It passes the quantization on to its fc."""
    held = {**mla_tensors(), "fc.weight_scale": torch.full((1,), 0.5)}
    draft = write_draft(tmp_path / "draft", mla(CANONICAL, quantization_config=FP8), held)
    result = check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    assert not any("fc" in f.summary for f in result.faults)


def test_an_integer_fc_under_a_quantized_config_is_a_fault(tmp_path: Path) -> None:
    """Shapes and formats of whole numbers were passed over, as those of a layer have to be."""
    held = {**scaled("fc.weight", 1, 1.0), "fc.weight": torch.ones(HIDDEN, 3 * HIDDEN).to(torch.int8)}
    (found,) = audited(tmp_path, FP8, held).faults
    assert found.evidence["dtype"] == "I8" and "whole numbers" in found.summary


def test_no_head_beside_a_map_is_not_to_be_shared(tmp_path: Path) -> None:
    """Pasted, "draft_vocab_size": null took the target's head, and the server stopped at the first id beyond d2t."""
    held = {k: v for k, v in draft_tensors().items() if k != "lm_head.weight"}
    (found,) = audited(tmp_path, None, held).faults
    assert found.remedy == "Export lm_head.weight with the draft, a row for each token of d2t."
    bare = {k: v for k, v in held.items() if k not in ("d2t", "t2d")}
    told = [
        f for f in audited(tmp_path / "bare", None, bare).faults if f.evidence.get("tensor") == "lm_head.weight"
    ]
    assert '"draft_vocab_size": null' in told[0].remedy


def test_scales_without_a_config_that_says_so_are_lost(tmp_path: Path) -> None:
    held = {
        **draft_tensors(),
        **{f"{k}_scale": torch.ones(1) for k in draft_tensors() if k.endswith("_proj.weight")},
    }
    (found,) = audited(tmp_path, None, held).faults
    assert found.id == "weights-unused" and "scales of quantized tensors" in found.summary
    (tmp_path / "draft" / "hf_quant_config.json").write_text("{}")  # Model-Optimizer's place for it
    assert not check(tmp_path / "target", tmp_path / "draft", sglang_version="0.5.23").faults


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello", "it begins with b'hell', and weights of torch are a zip"),
        (b"", "it is empty"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "it is a bare pickle, as torch wrote before release 1.6"),
    ],
)
def test_a_bin_file_that_is_no_zip_is_named_as_what_it_is(content: bytes, words: str, tmp_path: Path) -> None:
    """The reason was torch's sentence about mmap."""
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL))
    (draft / "model.safetensors").unlink()
    (draft / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(UnreadableFile, match="cannot be loaded as plain weights") as told:
        check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    assert words in str(told.value) and "mmap" not in str(told.value)


@pytest.mark.parametrize(
    ("version", "outside"), [("0.4.0", True), ("0.6.0", True), ("0.5.12", False), ("0.5.23", False)]
)
def test_a_release_outside_the_table_is_a_hint(version: str, outside: bool, tmp_path: Path) -> None:
    """Only a cell of a table of the report said so."""
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL))
    result = check(write_target(tmp_path / "target", LLAMA_TARGET), draft, sglang_version=version)
    assert any("lies outside the table" in f.summary for f in result.findings) is outside and result.exit_code == 0
