"""``drafttrace check`` on weight files whose names count others that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit_folders import LLAMA_TARGET, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult


def audited(folder: Path, name: str) -> CheckResult:
    draft = write_draft(folder / "draft", specforge([1, 15, 28]))
    (weights,) = draft.glob("*.safetensors")
    weights.rename(draft / name)
    return check(write_target(folder / "target", LLAMA_TARGET), draft, sglang_version="0.5.23")


def test_a_shard_that_the_name_of_another_counts_is_missed(tmp_path: Path) -> None:
    """model-00001-of-00002.safetensors alone was accepted with exit code 0."""
    (found,) = audited(tmp_path, "model-00001-of-00002.safetensors").faults
    assert found.id == "weights-missing" and "holds no model-00002-of-00002.safetensors" in found.summary


@pytest.mark.parametrize(
    "name", ["model-00001-of-00001.safetensors", "eagle-1-of-2.safetensors", "draft.safetensors"]
)
def test_a_name_that_counts_no_other_file_is_fine(name: str, tmp_path: Path) -> None:
    assert audited(tmp_path, name).exit_code == 0


def test_many_missing_shards_are_counted(tmp_path: Path) -> None:
    (found,) = audited(tmp_path, "model-00003-of-00099.safetensors").faults
    assert "and 95 more" in found.summary and found.evidence["count"] == 98
