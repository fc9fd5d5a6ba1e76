"""``drafttrace reference`` with the target on a GPU, and spread by a device map. Skipped where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import make_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine"),
]

TARGET = Path(__file__).resolve().parents[2] / "pairs/tiny-llama/target"
SAMPLES = [np.arange(3, 60, dtype=np.int64), np.arange(5, 30, dtype=np.int64), np.arange(7, 90, dtype=np.int64)]


@pytest.mark.parametrize("device_map", ["cuda", "cuda:0", "auto"])
def test_a_reference_made_on_the_gpu_is_the_one_made_on_the_cpu(device_map: str, tmp_path: Path) -> None:
    alone = make_reference(TARGET, SAMPLES, tmp_path / "cpu", dtype="fp32")
    there = make_reference(TARGET, SAMPLES, tmp_path / "gpu", dtype="fp32", device_map=device_map, batch_size=2)
    for one, two, tokens in zip(alone, there, SAMPLES, strict=True):
        ours, theirs = open_capture(str(one)), open_capture(str(two))
        assert theirs.tokens.tolist() == tokens.tolist()
        assert sorted(ours.boundaries) == sorted(theirs.boundaries)
        for k, rows in ours.boundaries.items():
            left, right = rows.floats(), theirs.boundaries[k].floats()
            distance = np.linalg.norm(left - right, axis=-1) / np.linalg.norm(left, axis=-1)
            assert np.median(distance) < 1e-3, f"B{k}"


def test_a_target_that_is_split_between_gpu_and_cpu_gives_every_boundary(tmp_path: Path) -> None:
    """With a device map the layers lie on different devices, and each tap fires on its own."""
    from accelerate import infer_auto_device_map, init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(TARGET)))
    half = sum(p.numel() * p.element_size() for p in model.parameters()) // 2
    split = infer_auto_device_map(model, max_memory={0: half, "cpu": 8 << 30})
    assert {"cpu", 0} <= set(split.values())
    made = make_reference(TARGET, SAMPLES[:1], tmp_path / "r.safetensors", dtype="fp32", device_map=split)
    whole = make_reference(TARGET, SAMPLES[:1], tmp_path / "w.safetensors", dtype="fp32")
    ours, theirs = open_capture(str(whole[0])), open_capture(str(made[0]))
    for k, rows in ours.boundaries.items():
        assert np.allclose(rows.floats(), theirs.boundaries[k].floats(), rtol=1e-2, atol=1e-2), f"B{k}"
