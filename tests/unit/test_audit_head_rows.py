"""Heads whose rows are the target's rows, of other tokens than ``d2t`` says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from audit_folders import (
    PRUNED,
    VOCAB,
    draft_tensors,
    kept_tokens,
    specforge,
    target_tensors,
    write_draft,
    write_target,
)

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult

PLACE = torch.arange(PRUNED)
THEIRS = target_tensors()["lm_head.weight"].float()
MIXED = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[:PRUNED]
OTHER_KEPT = torch.cat([PLACE[:8], PLACE[8:] + 40])


def audited(folder: Path, drop: tuple[str, ...] = (), **changed: torch.Tensor) -> CheckResult:
    draft = write_draft(folder / "draft", specforge([1, 15, 28]), draft_tensors(), drop, **changed)
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23")


def told(result: CheckResult) -> list[tuple[str, str]]:
    return [(f.id, str(f.evidence["order"])) for f in result.faults if "rows of the draft's lm_head" in f.summary]


@pytest.mark.parametrize("moved", [0.0, 0.02], ids=["bit for bit", "trained further"])
def test_a_head_cut_off_the_target_is_told_where_d2t_keeps_other_tokens(moved: float, tmp_path: Path) -> None:
    """Nothing was said of it, whether training had moved the rows a little or not."""
    head = THEIRS[:PRUNED] + moved * torch.randn(
        PRUNED, THEIRS.shape[1], generator=torch.Generator().manual_seed(2)
    )
    result = audited(tmp_path, lm_head__weight=head)
    assert told(result) == [("weights-replaced", "first")]
    (found,) = result.faults
    assert f"first {PRUNED} rows" in found.summary and "row i for the target token i + d2t[i]" in found.remedy


@pytest.mark.parametrize(
    ("rows", "drop", "maps", "name", "order"),
    [
        (kept_tokens() + 1, (), {}, "vocab-map-range", "shifted +1"),
        (MIXED, (), {}, "vocab-map-range", "other"),
        (kept_tokens(), (), {"d2t": OTHER_KEPT - PLACE}, "vocab-map-range", "t2d"),
        (OTHER_KEPT, ("t2d",), {"d2t": OTHER_KEPT}, "", ""),  # absolute ids, which the map's own finding tells
        (torch.cat([kept_tokens()[:24], kept_tokens()[:24]]), (), {}, "vocab-map-range", "other"),
        (kept_tokens(), ("d2t",), {}, "vocab-map-range", "t2d"),
    ],
    ids=["one beside", "in any order", "of t2d", "absolute", "half of them", "no d2t"],
)
def test_other_orders_of_rows_are_told_as_what_they_are(
    rows: torch.Tensor, drop: tuple[str, ...], maps: dict[str, torch.Tensor], name: str, order: str, tmp_path: Path
) -> None:
    result = audited(tmp_path, drop, lm_head__weight=THEIRS[rows], **maps)
    assert told(result) == ([(name, order)] if name else [])


def test_t2d_tells_whether_the_head_or_the_map_is_of_another_run(tmp_path: Path) -> None:
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[:PRUNED] = True
    result = audited(tmp_path, lm_head__weight=THEIRS[:PRUNED], t2d=mask, d2t=OTHER_KEPT - PLACE)
    assert ("vocab-map-range", "first") in told(result)


@pytest.mark.parametrize("moved", [0.0, 0.02, 0.5, 5.0])
def test_a_head_of_the_kept_tokens_is_healthy_however_far_it_moved(moved: float, tmp_path: Path) -> None:
    noise = torch.randn(PRUNED, THEIRS.shape[1], generator=torch.Generator().manual_seed(3))
    result = audited(tmp_path, lm_head__weight=THEIRS[kept_tokens()] + moved * noise)
    assert not result.faults


def test_rows_of_the_target_that_are_all_alike_tell_nothing(tmp_path: Path) -> None:
    """Rows of an unused part of a vocabulary are one row: none of them is another token's."""
    from safetensors.torch import save_file

    draft = write_draft(
        tmp_path / "draft", specforge([1, 15, 28]), draft_tensors(), lm_head__weight=THEIRS[:1].repeat(PRUNED, 1)
    )
    target = write_target(tmp_path / "target")
    save_file(
        {**target_tensors(), "lm_head.weight": THEIRS[:1].repeat(VOCAB, 1).bfloat16()}, target / "model.safetensors"
    )
    assert not told(check(target, draft, sglang_version="0.5.23"))
