"""Targets whose config names no class or no type: decided from the file, and SGLang is not asked."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from audit_folders import KIMI_TARGET, LLAMA_TARGET, specforge, write_draft, write_target
from family_configs import FAMILIES

from drafttrace.compare.audit import asking_sglang, refusal_checks
from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.audit.sglang_rules import capability
from drafttrace.compare.audit.subject import OUTSIDE
from drafttrace.compare.audit.target_class import class_misfits

IDS = [1, 15, 28]


@pytest.fixture
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any) -> None:
        raise AssertionError("SGLang was asked")

    monkeypatch.setattr(refusal_checks, "ask", ask)


def audited(folder: Path, target: dict[str, Any], **more: Any) -> CheckResult:
    return check(write_target(folder / "target", target), write_draft(folder / "draft", specforge(IDS)), **more)


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM", [None], 5])
@pytest.mark.usefixtures("nobody_is_asked")
def test_a_target_without_a_class_is_judged_by_its_type(value: Any, tmp_path: Path) -> None:
    """SGLang was asked for a minute, and then "no capture for the target class None" was a second fault."""
    result = audited(tmp_path, {**LLAMA_TARGET, "architectures": value})
    (found,) = result.faults
    assert found.remedy == '"architectures": ["LlamaForCausalLM"].' and "does not start" in found.summary
    assert result.readings[-1].boundaries == (2, 16, 29)


@pytest.mark.parametrize("value", [None, 5, ["llama"]])
@pytest.mark.usefixtures("nobody_is_asked")
def test_a_target_without_a_type_is_judged_by_its_class(value: Any, tmp_path: Path) -> None:
    """A busy machine gave no answer in two minutes, and the verdict was a match."""
    result = audited(tmp_path, {**LLAMA_TARGET, "model_type": value})
    assert [f.remedy for f in result.faults] == ['"model_type": "llama".']


@pytest.mark.usefixtures("nobody_is_asked")
def test_a_target_with_neither_is_told_both_and_no_class_named_none(tmp_path: Path) -> None:
    bare = {key: value for key, value in LLAMA_TARGET.items() if key not in ("architectures", "model_type")}
    result = audited(tmp_path, bare)
    assert len(result.faults) == 2 and not any("None" in f.summary for f in result.faults)


@pytest.mark.parametrize("key", ["architectures", "model_type"])
@pytest.mark.usefixtures("nobody_is_asked")
def test_a_target_in_two_parts_is_named_by_the_whole(key: str, tmp_path: Path) -> None:
    result = audited(tmp_path, {k: v for k, v in KIMI_TARGET.items() if k != key}, sglang_version="0.5.23")
    assert key in [f.evidence.get("field") for f in result.faults]
    assert result.target_class == "KimiK25ForConditionalGeneration" and result.readings[-1].boundaries


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_meant_is_what_the_families_write(name: str) -> None:
    """The two keys of every public family, each from the other one."""
    whole = FAMILIES[name]
    assert not list(class_misfits(whole))
    for key in ("architectures", "model_type"):
        (found,) = class_misfits({**whole, key: None})
        known = capability(whole["architectures"][0], "0.5.23") is not None
        meant = whole[key][0] if key == "architectures" else whole[key]
        assert meant in found.line or not known


def test_an_answer_that_does_not_come_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "None that can be imported is installed here" was said of a SGLang that was slow."""

    def slow(*_: Any, **more: Any) -> None:
        raise subprocess.TimeoutExpired("python", more["timeout"])

    monkeypatch.setattr(asking_sglang, "installed_version", lambda: "0.5.23")
    monkeypatch.setattr(asking_sglang.subprocess, "run", slow)
    result = audited(tmp_path, {**LLAMA_TARGET, "vision_config": None})
    (said,) = [note for note in result.notes if "SGLang was asked" in note]
    assert "no answer within 120 s" in said and not any("is installed here" in note for note in result.notes)


@pytest.mark.parametrize("version", ["0.4.9", "0.5", "0.5.99", "0.6.0"])
def test_a_release_outside_the_table_is_in_the_verdicts_sentence(version: str, tmp_path: Path) -> None:
    result = audited(tmp_path, LLAMA_TARGET, sglang_version=version)
    assert f"SGLang {version} lies outside the table (0.5.12 to 0.5.23)" in result.summary


def test_a_class_without_capture_is_told_with_the_release_that_was_asked_for(tmp_path: Path) -> None:
    """0.5.23 was named, whatever --sglang-version said; and nothing of a release that the table does not have."""
    target = {**LLAMA_TARGET, "architectures": ["MiniMaxM3SparseForCausalLM"]}
    (found,) = audited(tmp_path / "in", target, sglang_version="0.5.12").faults
    assert "SGLang 0.5.12 has no EAGLE-3 capture" in found.summary
    outside = audited(tmp_path / "out", target, sglang_version="0.4.1")
    assert any(OUTSIDE in f.evidence for f in outside.findings) and "0.4.1 lies outside" in outside.summary
