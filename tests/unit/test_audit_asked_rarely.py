"""SGLang, whose import takes seconds, is asked only about what the audit does not know by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audit_folders import DEEPSEEK_TARGET, LLAMA_TARGET, specforge, speculators, write_draft, write_target

from drafttrace.compare.audit import refusal_checks
from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import corrected
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.draft_config import parse_draft_config

IDS = [1, 15, 28]
MROPE = {"type": "mrope", "mrope_section": [2, 1, 1]}
DEEPSEEK_V2 = {
    **DEEPSEEK_TARGET,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
}


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds, where the audit has two."""

    def ask(*_: Any) -> None:
        raise AssertionError("SGLang was asked")

    monkeypatch.setattr(refusal_checks, "ask", ask)


def audited(folder: Path, draft: dict[str, Any], target: dict[str, Any] = LLAMA_TARGET) -> CheckResult:
    return check(write_target(folder / "target", target), write_draft(folder / "draft", draft))


def test_the_mrope_of_a_qwen_vl_in_a_llama_draft_is_known_to_load(tmp_path: Path) -> None:
    audited(tmp_path, specforge(IDS, rope_scaling=MROPE))


def test_a_deepseek_v2_that_names_its_own_code_is_known_to_load(tmp_path: Path) -> None:
    audited(tmp_path, specforge([2, 30, 58]), DEEPSEEK_V2)


def test_the_layout_of_speculators_is_known_to_load_once_its_keys_are_copied_up(tmp_path: Path) -> None:
    found = audited(tmp_path, speculators(IDS))
    fixed = corrected(parse_draft_config(speculators(IDS), tmp_path / "draft/config.json").raw, found.fix)
    assert fixed["transformer_layer_config"] and fixed["model_type"]
    audited(tmp_path / "again", fixed)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"architectures": []}, "names no class"),
        ({"architectures": None}, "names no class"),
        ({"model_type": None}, "no model_type"),
        ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "'foo' is none that SGLang knows"),
    ],
)
def test_a_fault_that_the_file_shows_needs_no_answer(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    assert any(told in fault.summary for fault in audited(tmp_path, specforge(IDS, **change)).faults)
