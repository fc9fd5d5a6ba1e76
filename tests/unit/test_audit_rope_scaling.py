"""A rope scaling that differs between draft and target is told, as another rope_theta is: a hint, no fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audit_folders import LLAMA_TARGET, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check

LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


def told(folder: Path, draft: dict[str, Any] | None, target: dict[str, Any] | None) -> list[tuple[str, str]]:
    found = check(
        write_target(folder / "target", {**LLAMA_TARGET, "rope_scaling": target}),
        write_draft(folder / "draft", specforge([1, 15, 28], rope_scaling=draft)),
        sglang_version="0.5.23",
    ).findings
    return [(f.severity, f.summary) for f in found if "stretches positions otherwise" in f.summary]


@pytest.mark.parametrize(
    ("draft", "target", "words"),
    [
        ({"rope_type": "linear", "factor": 4.0}, LINEAR, "linear (factor 4.0), the target's linear (factor 8.0)"),
        (YARN, None, "the target's no scaling"),
        (LLAMA3, None, "the target's no scaling"),
        (None, LLAMA3, "its rope has no scaling"),
    ],
)
def test_another_scaling_is_a_hint(
    draft: dict[str, Any] | None, target: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    """The check was silent."""
    ((severity, said),) = told(tmp_path, draft, target)
    assert severity == "note" and words in said


@pytest.mark.parametrize("same", [None, LINEAR, YARN, LLAMA3])
def test_the_same_scaling_says_nothing(same: dict[str, Any] | None, tmp_path: Path) -> None:
    assert not told(tmp_path, same, same)


@pytest.mark.parametrize("kind", [LINEAR, YARN, LLAMA3], ids=["linear", "yarn", "llama3"])
def test_a_stretch_by_one_is_none(kind: dict[str, Any], tmp_path: Path) -> None:
    """The healthy pair of the tutorial got the hint: its target says yarn with the factor 1."""
    assert not told(tmp_path / "a", None, {**kind, "factor": 1.0})
    assert not told(tmp_path / "b", {**kind, "factor": 1}, None)
