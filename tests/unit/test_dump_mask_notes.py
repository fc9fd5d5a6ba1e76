"""Masks as lists, with gaps, or of no numbers: what is read of them, and what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dump_layouts as made
import pytest
import torch

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.convert import convert
from drafttrace.tracer.open import open_capture

L = made.LENGTH
MASK = [0] * 4 + [1] * (L - 4)


def online(root: Path, attention: Any) -> Capture:
    value = {"input_ids": made.tokens()[None], "loss_mask": torch.tensor([MASK]), "hidden_state": made.aux()[None],
             "target": made.last_post()[None], "attention_mask": attention}  # fmt: skip
    torch.save(value, root / "sample_0.pt")
    return open_capture(str(root / "sample_0.pt"))


@pytest.mark.parametrize("mask", [MASK, [MASK], [bool(one) for one in MASK], [float(one) for one in MASK]])
def test_a_loss_mask_that_is_a_list_is_one(mask: list[Any], tmp_path: Path) -> None:
    """It was dropped without a word, and --mask-ones made another."""
    torch.save(made.sf_sample() | {"loss_mask": mask}, tmp_path / "data_0.ckpt")
    capture = open_capture(str(tmp_path / "data_0.ckpt"))
    assert capture.mask is not None and capture.mask.tolist() == MASK
    assert not any("mask" in note for note in capture.notes)
    convert(str(tmp_path / "data_0.ckpt"), tmp_path / "out.ckpt", "specforge", mask="ones")
    assert torch.load(tmp_path / "out.ckpt", weights_only=True)["loss_mask"].tolist() == MASK


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([0, None, 1], "a list that holds no number for each token"),
        ([], "an empty list"),
        ("0,1", "a str, no numbers"),
    ],
)
def test_a_loss_mask_that_is_none_is_told(mask: Any, said: str, tmp_path: Path) -> None:
    torch.save(made.sf_sample() | {"loss_mask": mask}, tmp_path / "data_0.ckpt")
    capture = open_capture(str(tmp_path / "data_0.ckpt"))
    assert capture.mask is None
    assert f"no loss mask: the field loss_mask is {said}" in capture.notes


def test_an_attention_mask_that_is_a_list_tells_the_padding(tmp_path: Path) -> None:
    capture = online(tmp_path, [1] * (L - 2) + [0, 0])
    assert capture.valid_length == L - 2
    assert not any("attention_mask" in note for note in capture.notes)


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        ([0, 0] + [1] * (L - 2), "2 tokens from 0 on, which are"),
        ([1] * 3 + [0] + [1] * (L - 4), "token 3, which is"),
        ([0] + [1] * (L - 3) + [0, 0], "token 0, which is"),
    ],
)
def test_zeros_before_the_last_token_are_told(attention: list[int], said: str, tmp_path: Path) -> None:
    """Left padding was kept as tokens, and nothing said so."""
    capture = online(tmp_path, torch.tensor([attention]))
    assert f"attention_mask is 0 for {said} kept all the same" in capture.notes
    done = convert(str(tmp_path / "sample_0.pt"), tmp_path / "out.ckpt", "specforge")
    assert any("attention_mask is 0" in note for note in done.notes)


def test_padding_of_a_layout_that_reads_no_attention_mask_is_told(tmp_path: Path) -> None:
    value = {"input_ids": made.tokens(), "hidden_states": [made.state(k) for k in (3, 5, 6, made.LAYERS)],
             "loss_mask": torch.tensor(MASK), "attention_mask": torch.tensor([1] * (L - 3) + [0] * 3)}  # fmt: skip
    torch.save(value, tmp_path / "data_0.pt")
    capture = open_capture(str(tmp_path / "data_0.pt"))
    assert f"attention_mask is 0 for 3 tokens from {L - 3} on, which are kept all the same" in capture.notes


def test_a_batch_with_masks_as_lists_gives_each_sample_its_own(tmp_path: Path) -> None:
    masks = [MASK, [1] * L]
    batch = {"input_ids": torch.stack([made.tokens()] * 2), "hidden_states": torch.stack([made.aux()] * 2),
             "last_hidden_states": torch.stack([made.last_post()] * 2), "loss_mask": masks,
             "attention_mask": [[0] + [1] * (L - 1), [1] * L]}  # fmt: skip
    torch.save({"batch": batch, "step": 1}, tmp_path / "batch.pt")
    for number, mask in enumerate(masks):
        capture = open_capture(str(tmp_path / "batch.pt"), sample=number)
        assert capture.mask is not None and capture.mask.tolist() == mask
        assert any("attention_mask is 0" in note for note in capture.notes) is (number == 0)
