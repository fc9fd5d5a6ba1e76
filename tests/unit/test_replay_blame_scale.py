"""A draft's logits that are all scaled: the final norm is named only where it explains them better than a scale."""

from __future__ import annotations

from pathlib import Path

import torch
from audit_folders import HIDDEN, draft_tensors
from replay_served import pair, served, with_weight
from test_replay_blame import HEAD, NORM, blamed


def nearly_even(mean: float) -> torch.Tensor:
    """A trained gain that is much alike in all channels: one more in it is nearly a scale."""
    return mean + 0.01 * torch.randn(HIDDEN, generator=torch.Generator().manual_seed(7))


def test_a_scaled_head_is_not_blamed_on_the_norm(tmp_path: Path) -> None:
    """1.7 times the logits was "with one more in the final norm's weight": that lies 4 % off, a scale does not."""
    world, replayer = pair(tmp_path, {**draft_tensors(), "norm.weight": nearly_even(1.35)})
    head = replayer.model.weights["lm_head.weight"] * 1.7
    found = blamed(served(world, with_weight(replayer, "lm_head.weight", head)), world)
    assert found.evidence["tensor"] == "logits" and found.evidence["parts"] == [NORM, HEAD]
    assert "every logit is 1.7 times the replay's" in found.summary and "lm_head" in found.remedy


def test_one_more_in_the_norm_is_still_told_from_a_scale(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path, {**draft_tensors(), "norm.weight": nearly_even(1.35)})
    found = blamed(served(world, with_weight(replayer, "norm.weight", nearly_even(1.35) + 1.0)), world)
    assert found.evidence["parts"] == [NORM] and "one more in the final norm's weight" in found.summary


def test_a_skipped_norm_is_named(tmp_path: Path) -> None:
    """Logits at a cosine of 1.0000 and six times as large: "in the final norm or in lm_head"."""
    world, replayer = pair(tmp_path, {**draft_tensors(), "norm.weight": torch.full((HIDDEN,), 1.35)})
    before: dict[int, torch.Tensor] = {}

    def skipping(name: str, step: int, value: torch.Tensor) -> torch.Tensor:
        if name == "hidden_out":
            before[step] = value
        return replayer.model.logits(before[step][None])[0] if name == "logits" else value

    found = blamed(served(world, replayer, skipping), world)
    assert found.evidence["tensor"] == "logits" and found.evidence["parts"] == [NORM]
    assert "without the final norm, the replay makes the server's logits" in found.summary
