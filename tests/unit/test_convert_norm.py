"""A last state is normed with --target only where it stands before the final norm by its values."""

from __future__ import annotations

import json
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.from_mapping import parse_fields
from drafttrace.tracer.errors import DrafttraceError

N, VOCAB = made.LAYERS, 300
GAIN = torch.linspace(0.5, 2, made.H).to(torch.bfloat16)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    config = {"num_hidden_layers": N, "hidden_size": made.H, "vocab_size": VOCAB, "rms_norm_eps": 1e-6}
    (folder / "config.json").write_text(json.dumps(config))
    weights = torch.randn(VOCAB, made.H, generator=torch.Generator().manual_seed(1))
    save_file({"model.embed_tokens.weight": weights, "model.norm.weight": GAIN}, folder / "model.safetensors")
    return folder


def post() -> torch.Tensor:
    before = made.state(N).float()
    return (before / (before.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * GAIN.float()).to(torch.bfloat16)


def modelopt(root: Path, last: torch.Tensor) -> str:
    value = {"input_ids": made.tokens(), "loss_mask": made.loss_mask(), "aux_hidden_states": made.aux(),
             "hidden_states": last, "hidden_states_prenorm": True, "conversation_id": "a"}  # fmt: skip
    torch.save(value, root / "a.pt")
    return str(root / "a.pt")


def v1(root: Path, last: torch.Tensor) -> str:
    states = [*(made.state(k) for k in made.CANON), last]
    torch.save(
        {"input_ids": made.tokens(), "loss_mask": made.loss_mask(), "hidden_states": states}, root / "data_0.pt"
    )
    (root / "data_config.json").write_text(
        json.dumps({"hidden_states": {"layer_ids": [*(k - 1 for k in made.CANON), N - 1]}})
    )
    return str(root / "data_0.pt")


@pytest.mark.parametrize("write", [modelopt, v1])
def test_a_state_that_is_normed_already_is_not_normed_again(write: object, target: Path, tmp_path: Path) -> None:
    """It was, by what the file declares: 8.8 % off, and inspect of the result confirmed it."""
    source, out = write(tmp_path, post()), tmp_path / "out.ckpt"  # type: ignore[operator]
    with pytest.raises(
        DrafttraceError, match=r"would be normed twice with --target: hidden_states.* stands after"
    ) as e:
        convert(source, out, "specforge", target=target)
    assert "RMS 1 without the norm's gain" in str(e.value)
    assert "--last 'hidden_states" in str(e.value) and "--last-norm post" in str(e.value)
    assert not out.exists()


@pytest.mark.parametrize("write", [modelopt, v1])
def test_a_state_before_the_norm_is_normed(write: object, target: Path, tmp_path: Path) -> None:
    convert(write(tmp_path, made.state(N)), tmp_path / "out.ckpt", "specforge", target=target)  # type: ignore[operator]
    stored = torch.load(tmp_path / "out.ckpt", weights_only=True)["hidden_state"][0]
    assert torch.equal(stored, post())


def test_the_remedy_stores_it_as_it_is(target: Path, tmp_path: Path) -> None:
    source = modelopt(tmp_path, post())
    named = {"tokens": "input_ids", "last": "hidden_states", "mask": "loss_mask"}
    wrong = parse_fields("aux_hidden_states", **named, last_norm="pre")
    lose = ["layer-ids", "other-fields"]
    with pytest.raises(DrafttraceError, match="say --last-norm post, which stores it as it is"):
        convert(source, tmp_path / "out.ckpt", "specforge", target=target, mapping=wrong, lose=lose)
    right = parse_fields("aux_hidden_states", **named, last_norm="post")
    convert(source, tmp_path / "out.ckpt", "specforge", target=target, mapping=right, lose=lose)
    stored = torch.load(tmp_path / "out.ckpt", weights_only=True)["hidden_state"][0]
    assert np.array_equal(stored.float().numpy(), post().float().numpy())
