"""The plain-torch targets of the tiny pairs compute what transformers' classes compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pairs.shapes import DeepseekShape, LlamaShape, shape_from_config
from pairs.targets import build_target, load_target

SHAPES = {"llama": LlamaShape(layers=3), "deepseek": DeepseekShape(layers=4)}


@pytest.fixture(params=sorted(SHAPES))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A freshly initialised target on disk, its router biased so that the bias matters."""
    torch.manual_seed(5)
    target = build_target(SHAPES[request.param])
    for name, tensor in [*target.named_parameters(), *target.named_buffers()]:
        if "norm" in name or "bias" in name:
            with torch.no_grad():
                tensor.add_(0.2 * torch.randn_like(tensor))
    target.save(tmp_path)
    return tmp_path


def test_boundaries_equal_those_of_transformers(saved: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
    ours = load_target(saved)
    ids = torch.randint(0, 1024, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(ids, output_hidden_states=True)
        boundaries = ours(ids)
    for k in range(len(boundaries) - 1):
        torch.testing.assert_close(boundaries[k], expected.hidden_states[k], atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(ours.logits(boundaries[-1]), expected.logits, atol=1e-4, rtol=1e-3)


def test_shape_survives_the_config(saved: Path) -> None:
    import json

    shape = shape_from_config(json.loads((saved / "config.json").read_text()))
    assert shape in SHAPES.values()
