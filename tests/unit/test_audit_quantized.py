"""Drafts that are quantized, drafts that only say so; files and releases of which little is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_folders import LLAMA_TARGET, draft_tensors, specforge, write_draft, write_target

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
