"""A dump of another target than the one that is given: both widths are told, and no state is called something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare, UnknownFormat, UnreadableFile
from drafttrace.tracer.inspecting import Inspection, inspect_capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.open_two import open_two

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "pairs/tiny-llama/target"  # 16 layers, H 128, 1,024 tokens
TRACE = ROOT / "traces/tiny-llama/healthy.h5"
IDS = torch.arange(20) + 5


def saved(path: Path, **states: torch.Tensor) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"input_ids": IDS, "loss_mask": torch.ones(20).long(), **states}, path)
    return str(path)


def state(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).bfloat16()


def inspected(path: str, **more: Any) -> Inspection:
    return inspect_capture(path, target=TARGET, **more)


@pytest.mark.parametrize(
    ("place", "shape", "layout"),
    [
        ("3/data_0.ckpt", (1, 20, 4096), "BALD-PLAIN"),
        ("rows_0-5000/data_0.ckpt", (1, 20, 4096), "SF-LAST"),
        ("data_0.ckpt", (20, 4096), "EAGLE12-CKPT"),
        ("0/data_0.ckpt", (20, 12288), "EAGLE12-CKPT"),
        ("data_0.ckpt", (3, 20, 1024), "BALD-FUSED"),
    ],
)
def test_a_wider_last_state_is_of_another_target_and_no_logits(
    place: str, shape: tuple[int, ...], layout: str, tmp_path: Path
) -> None:
    """It was called shifted logits because it was wider than three hidden sizes, and the exit code was 0."""
    found = inspected(saved(tmp_path / place, hidden_state=state(*shape)))
    assert found.format == layout
    told = [check for check in found.checks if check.id == "hidden-size"]
    assert told and told[0].verdict == "refuted" and found.problems
    assert f"is {shape[-1]} wide, the target's hidden size is 128" in told[0].summary


@pytest.mark.parametrize(
    ("place", "width"), [("data_0.ckpt", 4096), ("3/data_0.ckpt", 12288), ("rows_0-5/d.ckpt", 3072)]
)
def test_a_file_of_another_target_that_could_be_two_layouts_tells_both_numbers(
    place: str, width: int, tmp_path: Path
) -> None:
    path = saved(tmp_path / place, hidden_state=state(1, 20, width))
    with pytest.raises(UnknownFormat, match=rf"of another target.* 128.*'hidden_state' is {width} wide"):
        inspected(path)
    with pytest.raises(UnknownFormat, match=rf"of another target.* 128.*'hidden_state' is {width} wide"):
        open_two(str(TRACE), path)


def test_a_hidden_size_that_the_user_says_is_told_with_the_width(tmp_path: Path) -> None:
    path = saved(tmp_path / "3/data_0.ckpt", hidden_state=state(1, 20, 4096))
    with pytest.raises(UnknownFormat, match=r"--hidden-size is 1024, .*'hidden_state' is 4096 wide"):
        open_capture(path, request=Request(hidden_size=1024))


@pytest.mark.parametrize("lenient", [False, True])
def test_more_slots_than_the_target_has_boundaries_are_of_another_target(lenient: bool, tmp_path: Path) -> None:
    """One state of 4,096 was cut into 32 slots of 128, of a target with 17 boundaries."""
    path = saved(tmp_path / "data_0.ckpt", hidden_states=state(1, 20, 4096))
    asked = Request(lenient=lenient).told(128, 16, 1024)
    with pytest.raises(
        UnreadableFile, match=r"4096 wide, 32 times the hidden size 128, .* 16 layers has 17 boundaries"
    ):
        open_capture(path, request=asked)
    assert len(open_capture(path, request=Request(lenient=lenient).told(1024, 16)).slots) == 4


def test_logits_are_as_wide_as_the_vocabulary_of_the_target(tmp_path: Path) -> None:
    path = saved(tmp_path / "3/data_0.ckpt", hidden_state=state(1, 20, 1024))
    assert "1024 wide, as wide as the target's vocabulary" in inspected(path).recognised_by
    assert open_capture(path).format == "BALD-PLAIN"
    assert open_capture(path, like=open_capture(str(TRACE))).format == "SF-D5DE56F7"
    # Where the hidden size is as large, it is a state.
    assert open_capture(path, request=Request().told(1024, 16, 1024)).format == "BALD-PLAIN"
    batch = saved(tmp_path / "4/data_0.ckpt", hidden_state=state(4, 20, 1024))
    with pytest.raises(UnknownFormat, match="no dump format"):
        inspected(batch)


def test_logits_of_another_vocabulary_are_told_with_both_numbers(tmp_path: Path) -> None:
    path = saved(tmp_path / "data_0.ckpt", aux_hidden_state=state(1, 20, 384), hidden_state=state(1, 20, 60_000))
    found = inspected(path)
    assert found.format == "SF-D5DE56F7"
    assert any("60000 wide, the target's vocabulary has 1024 tokens" in problem for problem in found.problems)


def test_a_last_state_of_another_target_beside_the_slots_of_this_one_is_no_logits(tmp_path: Path) -> None:
    """With the vocabulary known, another width is none."""
    path = saved(tmp_path / "data_0.ckpt", aux_hidden_state=state(1, 20, 384), hidden_state=state(1, 20, 160))
    with pytest.raises(
        UnreadableFile, match="384 wide, no multiple of the hidden size 160; the last state beside it"
    ):
        inspected(path)


def test_slots_of_a_fork_are_cut_by_the_hidden_size_that_is_said(tmp_path: Path) -> None:
    """Four slots of 96 without a last state were cut as three of 128, and --hidden-size 96 was refused."""
    path = saved(tmp_path / "data_0.ckpt", aux_hidden_state=state(1, 20, 4 * 96))
    cut = open_capture(path, request=Request(hidden_size=96))
    assert [slot.rows.width for slot in cut.slots] == [96] * 4
    assert len(open_capture(path).slots) == 3
    assert len(open_capture(path, request=Request().told(96, 61)).slots) == 4


def test_convert_refuses_a_target_of_another_width(tmp_path: Path) -> None:
    path = saved(tmp_path / "data_0.ckpt", aux_hidden_state=state(1, 20, 288), hidden_state=state(1, 20, 96))
    with pytest.raises(
        DrafttraceError, match=r"hidden size of the target .* is 128, .* is 96 wide, of another target"
    ):
        convert(path, tmp_path / "out.ckpt", "specforge", target=TARGET)


def test_a_dump_without_any_state_is_told_as_a_dump(tmp_path: Path) -> None:
    """ "record it with its taps on" was said of it."""
    path = saved(tmp_path / "data_0.ckpt", hidden_state=state(1, 20, 60_000))
    with pytest.raises(NothingToCompare, match=r"read as SF-D5DE56F7, holds no hidden states .*logits"):
        open_two(str(TRACE), path)
