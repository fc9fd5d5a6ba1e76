"""A vocabulary map with any number in it: a finding, and never a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from audit_folders import PRUNED, VOCAB, draft_tensors, kept_tokens, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult

TOKENIZER = Path(__file__).parents[2] / "pairs" / "tiny-llama" / "target" / "tokenizer.json"
EXTREMES = [-99, -(2**31) - 1, 2**32, 2**40, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("place", [0, PRUNED // 2, PRUNED - 1])
@pytest.mark.parametrize("value", EXTREMES)
def test_a_target_id_that_no_tokenizer_takes_is_named_by_the_map(value: int, place: int, tmp_path: Path) -> None:
    """Decoding the samples ended in an OverflowError where one of them was below zero or beyond 32 bits."""
    target = write_target(tmp_path / "target")
    shutil.copy(TOKENIZER, target / "tokenizer.json")
    d2t = draft_tensors()["d2t"].clone()
    d2t[place] = value
    result = check(
        target, write_draft(tmp_path / "draft", specforge([1, 15, 28]), d2t=d2t), sglang_version="0.5.23"
    )
    assert any(f.id == "vocab-map-range" and "1 target id outside 0..95" in f.summary for f in result.faults)
    texts = {i: text for i, _, text in result.vocabulary}
    assert texts.get(place) is None and any(text for text in texts.values())


def test_maps_of_every_number_format_with_extremes(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    shutil.copy(TOKENIZER, target / "tokenizer.json")
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool):
        ends = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        d2t = torch.tensor([ends[k % 2] for k in range(PRUNED)], dtype=dtype)
        draft = write_draft(tmp_path / str(dtype), specforge([1, 15, 28]), d2t=d2t)
        assert any(f.id.startswith("vocab-map") for f in check(target, draft, sglang_version="0.5.23").faults)


ORDER = torch.randperm(PRUNED, generator=torch.Generator().manual_seed(0))


def audited(folder: Path, **changes: torch.Tensor) -> CheckResult:
    """The audit of a draft whose map and head were changed."""
    draft = write_draft(folder / "draft", specforge([1, 15, 28]), **changes)
    return check(write_target(folder / "target"), draft, sglang_version="0.5.23")


@pytest.mark.parametrize("with_t2d", [True, False])
def test_a_map_in_another_order_is_no_fault(with_t2d: bool, tmp_path: Path) -> None:
    """Rows of the head and d2t by frequency: the accept length is 4.00, and that of the remedy (d2t sorted) 1.02."""
    ids = kept_tokens()[ORDER]
    mask = {} if with_t2d else {"t2d": torch.zeros(VOCAB, dtype=torch.bool)}
    result = audited(tmp_path, d2t=ids - torch.arange(PRUNED), lm_head__weight=head()[ORDER], **mask)
    assert not result.faults and any("out of ascending order" in f.summary for f in result.findings)
    assert not any("flatnonzero" in f.remedy for f in result.findings)


def test_a_map_in_another_order_stored_as_ids_is_an_offset_fault(tmp_path: Path) -> None:
    """t2d proves it; it was told to be sorted, which names other tokens than the rows of the head."""
    (found,) = audited(tmp_path, d2t=kept_tokens()[ORDER], lm_head__weight=head()[ORDER]).faults
    assert found.id == "vocab-map-offset" and found.remedy.startswith("Store d2t[i] - i")


@pytest.mark.parametrize("full", [False, True])
def test_a_t2d_that_was_never_filled_is_a_hint(full: bool, tmp_path: Path) -> None:
    """SGLang reads d2t only, which is right."""
    result = audited(tmp_path, t2d=torch.full((VOCAB,), full))
    assert not result.faults and any("never filled" in f.summary for f in result.findings)


def test_offsets_of_the_first_tokens_are_zero_where_t2d_keeps_these(tmp_path: Path) -> None:
    """ "Unless it kept exactly these tokens", which t2d proves."""
    zero, first = torch.zeros(PRUNED, dtype=torch.int64), torch.arange(VOCAB) < PRUNED
    assert not audited(tmp_path, d2t=zero, t2d=first).findings
    told = audited(tmp_path / "unknown", d2t=zero, t2d=torch.zeros(VOCAB, dtype=torch.bool)).faults
    assert [f.id for f in told] == ["vocab-map-missing"]
    assert audited(tmp_path / "ids", d2t=torch.arange(PRUNED), t2d=first).faults[0].id == "vocab-map-offset"


def head() -> torch.Tensor:
    return draft_tensors()["lm_head.weight"]
