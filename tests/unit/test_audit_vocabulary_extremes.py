"""A vocabulary map with any number in it: a finding, and never a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from audit_folders import PRUNED, draft_tensors, specforge, write_draft, write_target

from drafttrace.compare.audit.check import check

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
