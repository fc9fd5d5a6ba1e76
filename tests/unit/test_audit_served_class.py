"""Which of several classes in ``architectures`` counts, and the arguments without which a server does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audit_folders import LLAMA_TARGET, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult

IDS = [1, 15, 28]
PLAIN = "LlamaForCausalLMEagle3"


def audited(folder: Path, config: dict[str, Any], positions: int = 512, **more: Any) -> CheckResult:
    target = write_target(folder / "target", {**LLAMA_TARGET, "max_position_embeddings": positions})
    return check(target, write_draft(folder / "draft", config), **more)


def test_a_class_that_sglang_does_not_have_before_the_drafts_is_passed_over(tmp_path: Path) -> None:
    """["Foo", "LlamaForCausalLMEagle3"] was a fault, and SGLang takes the second and comes up."""
    result = audited(tmp_path, specforge(IDS, architectures=["Foo", PLAIN]), sglang_version="0.5.23")
    assert result.draft_class == PLAIN and result.exit_code == 0 and "architectures" not in result.fix


@pytest.mark.parametrize("names", [["LlamaForCausalLM", PLAIN], ["Foo"], ["Foo", "Bar"], ["LlamaForCausalLM"]])
def test_another_class_that_sglang_takes_first_is_still_a_fault(names: list[str], tmp_path: Path) -> None:
    result = audited(tmp_path, specforge(IDS, architectures=names), sglang_version="0.5.23")
    assert result.exit_code == 1 and result.draft_class == names[0]


def test_a_class_of_the_installed_sglang_that_no_table_has_counts(tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    result = audited(
        tmp_path, specforge(IDS, architectures=["LlamaForCausalLMEagle", PLAIN]), sglang_version="0.5.23"
    )
    assert result.exit_code == 1 and result.draft_class == "LlamaForCausalLMEagle"


LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"max_position_embeddings": 128}, "--context-length 128"),
        ({"max_position_embeddings": 128, "rope_scaling": {**LINEAR, "factor": 2.0}}, "--context-length 256"),
        ({"max_position_embeddings": 128, "rope_scaling": LINEAR}, None),
        ({"max_position_embeddings": 512}, None),
    ],
)
def test_a_short_draft_with_which_a_plain_start_stops_is_a_fault(
    changes: dict[str, Any], needed: str | None, tmp_path: Path
) -> None:
    """ "NO PROBLEM FOUND": by default SGLang stops with a ValueError (seen on a server)."""
    result = audited(tmp_path, specforge(IDS, **changes), sglang_version="0.5.23", trained=(2, 16, 29))
    assert result.exit_code == int(needed is not None)
    assert needed is None or f"Start the server with {needed}" in result.faults[0].remedy


def test_absent_positions_are_those_of_the_config_class(tmp_path: Path) -> None:
    config = {key: value for key, value in specforge(IDS).items() if key != "max_position_embeddings"}
    result = audited(tmp_path, config, 4096, sglang_version="0.5.23")
    assert "--context-length 2048" in result.faults[0].remedy
    assert not audited(tmp_path / "two", config, 2048, sglang_version="0.5.23").faults


def test_beside_a_server_that_runs_no_argument_is_asked_for(tmp_path: Path) -> None:
    config = specforge(IDS, max_position_embeddings=128)
    health = {"sglang_version": "0.5.23", "wiring": {"boundaries": [2, 16, 29], "algorithm": "EAGLE3"}}
    result = audited(tmp_path, config, url_health=health)
    assert result.live is not None and not result.faults and not result.left
    assert not any("--context-length" in f.remedy for f in result.findings)
