"""Which attention a replay runs: that of the weights, and of the class where the weights are for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audit_folders import draft_tensors, mla, mla_tensors, specforge
from replay_served import TRUTH, honest, pair, served

from drafttrace.compare.replay.run import replay

IDS = [k - 1 for k in TRUTH]
SIZES = {name: value for name, value in mla(IDS).items() if name not in specforge(IDS)}


def test_sizes_of_multi_latent_attention_make_no_plain_draft_a_multi_latent_one(tmp_path: Path) -> None:
    """The target's sizes, left in the config: the replay wanted q_a_proj of a draft that check calls fine."""
    assert "kv_lora_rank" in SIZES
    world, replayer = pair(tmp_path / "plain")
    left, other = pair(tmp_path / "sizes", **SIZES)
    assert other.config.mla is None
    result = replay(served(world, replayer, honest), left.draft, world.target, switches=False)
    assert result.live is not None and result.live.parted is None and result.exit_code == 0


@pytest.mark.parametrize(
    ("name", "latent"), [("LlamaForCausalLMEagle3", False), ("Eagle3DeepseekV2ForCausalLM", True)]
)
def test_of_weights_for_both_the_class_decides(tmp_path: Path, name: str, latent: bool) -> None:
    plain, both = draft_tensors(), {**draft_tensors(), **mla_tensors()}
    if not latent:
        both["midlayer.self_attn.o_proj.weight"] = plain["midlayer.self_attn.o_proj.weight"]
    config: dict[str, Any] = {**SIZES, "architectures": [name]}
    _, replayer = pair(tmp_path, both, **config)
    assert (replayer.config.mla is not None) is latent


def test_multi_latent_weights_are_replayed_as_such(tmp_path: Path) -> None:
    """Also where the config names the plain class: what that does to a server is said as a fault."""
    for name in ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"):
        _, replayer = pair(tmp_path / name, mla_tensors(), **{**SIZES, "architectures": [name]})
        assert replayer.config.mla is not None
