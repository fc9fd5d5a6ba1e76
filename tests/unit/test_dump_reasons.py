"""What is printed of a dump is true of it: the reason why it is of a format, what was cut, what was left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dump_layouts as made
import pytest
import torch

from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture


def saved(path: Path, **fields: Any) -> str:
    value = {"input_ids": made.tokens(), "loss_mask": made.loss_mask()} | fields
    torch.save(value, path)
    return str(path)


def states(width: int) -> torch.Tensor:
    return torch.randn(1, made.LENGTH, width, generator=torch.Generator().manual_seed(width)).to(torch.bfloat16)


LAST_AND_AUX = [("hidden_state", "aux_hidden_state"), ("target", "hidden_state"), ("target_hiddens", "hidden_states"),
                ("target_last_hidden_states", "hidden_states")]  # fmt: skip


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize(("last", "aux"), LAST_AND_AUX)
def test_aux_states_that_are_no_multiple_of_the_last_state_are_refused(
    last: str, aux: str, lenient: bool, tmp_path: Path
) -> None:
    """70 beside 24 was read as shifted logits "wider than a state", and the last state was dropped."""
    path = saved(tmp_path / "data_0.ckpt", **{aux: states(70), last: states(24)})
    with pytest.raises(
        UnreadableFile, match=r"70 wide, no multiple of the hidden size 24; the last state beside it"
    ):
        open_capture(path, request=Request(lenient=lenient))


@pytest.mark.parametrize(
    ("aux", "last", "hidden"), [(24, 70, None), (48, 70, 16), (96, 40, 32), (180_000, 128_256, None)]
)
def test_logits_beside_the_slots_are_told_by_their_width(
    aux: int, last: int, hidden: int | None, tmp_path: Path
) -> None:
    """Also where three slots are wider than the vocabulary."""
    path = saved(tmp_path / "data_0.ckpt", aux_hidden_state=states(aux), hidden_state=states(last))
    capture = open_capture(path, request=Request(hidden_size=hidden))
    assert capture.format == "SF-D5DE56F7"
    assert f"hidden_state is {last} wide, more than one of the three slots" in capture.recognised_by
    assert last > aux / 3
    assert capture.last is None and len(capture.slots) == 3


@pytest.mark.parametrize("name", ["data_0.ckpt", "sample_00000001_rank0.ckpt"])
def test_slots_that_nothing_could_cut_ask_for_the_hidden_size(name: str, tmp_path: Path) -> None:
    """Five slots of DFlash were shown as one of 80, without a word."""
    path = saved(tmp_path / name, hidden_states=states(80))
    found = inspect_capture(path)
    assert [state.shape[1] for state in found.states] == [80]
    assert any("80 wide and may hold several slots side by side" in note for note in found.notes)
    assert any("--hidden-size H" in note for note in found.notes)
    cut = inspect_capture(path, request=Request(hidden_size=16))
    assert len(cut.states) == 5 and not any("side by side" in note for note in cut.notes)


def test_a_sample_of_angelslim_without_attention_mask_is_told_by_its_name_and_says_so(tmp_path: Path) -> None:
    """The reason named an attention_mask that the file does not hold."""
    request = Request(hidden_size=16)
    named = saved(tmp_path / "sample_00000001_rank0.ckpt", hidden_states=states(80))
    found = open_capture(named, request=request)
    assert found.format == "AS-DFLASH"
    assert "attention_mask" not in found.recognised_by
    assert "in a file named sample_{i}_rank{r}" in found.recognised_by
    assert "--format SF-DFLASH" in found.recognised_by
    assert open_capture(named, format="SF-DFLASH", request=request).format == "SF-DFLASH"
    other = saved(tmp_path / "data_0.ckpt", hidden_states=states(80))
    assert open_capture(other, request=request).format == "SF-DFLASH"
    masked = saved(tmp_path / "any.ckpt", hidden_states=states(80), attention_mask=torch.ones(made.LENGTH).long())
    assert "hidden_states and attention_mask" in open_capture(masked, request=request).recognised_by
