"""NeMo Automodel caches: what is stored shifted is told from what is not, by the stored distributions alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture

LENGTH, H, VOCAB = 60, 8, 50


def write(folder: Path, ids_shift: int, top_k: bool) -> None:
    """Two samples; target_probs row t is peaked at x_{t+2}, as Automodel stores it; ids are shifted by ids_shift."""
    ids = torch.from_numpy(np.random.default_rng(3).integers(0, VOCAB, (2, LENGTH)))
    wanted = torch.roll(ids, -2, 1)
    probs = torch.full((2, LENGTH, VOCAB), 0.01).scatter(-1, wanted[..., None], 0.5)
    shard = {
        "input_ids": torch.roll(ids, -ids_shift, 1),
        "attention_mask": torch.ones(2, LENGTH, dtype=torch.int64),
        "loss_mask": torch.ones(2, LENGTH, dtype=torch.int64),
        "aux_hidden_states": torch.randn(2, LENGTH, 3 * H),
    }
    if top_k:
        values, indices = probs.topk(4)
        shard |= {"target_probs_values": values, "target_probs_indices": indices.int()}
    else:
        shard["target_probs"] = probs
    save_file({name: value.contiguous() for name, value in shard.items()}, folder / "shard-000000.safetensors")
    manifest = {"format_version": 2, "aux_layer_ids": [1, 3, 4], "selected_token_ids": list(range(VOCAB))}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("top_k", [True, False])
@pytest.mark.parametrize(("ids_shift", "verdict"), [(1, "confirmed"), (0, "refuted"), (2, "refuted")])
def test_shift_by_the_stored_distributions(ids_shift: int, verdict: str, top_k: bool, tmp_path: Path) -> None:
    write(tmp_path, ids_shift, top_k)
    found = inspect_capture(str(tmp_path), sample=1)
    check = next(check for check in found.checks if check.id == "token-shift")
    assert check.verdict == verdict
    assert found.sample_count == 2
    assert len(found.problems) == (verdict == "refuted")


def test_manifest_that_contradicts_its_shards(tmp_path: Path) -> None:
    from drafttrace.tracer.errors import UnreadableFile

    write(tmp_path, 1, False)
    for broken in ([1, 3, 4, 5, 6], [], "all", [1, 2, "x"]):
        (tmp_path / "manifest.json").write_text(json.dumps({"format_version": 2, "aux_layer_ids": broken}))
        with pytest.raises(UnreadableFile):
            open_capture(f"{tmp_path}#0")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UnreadableFile, match="not valid JSON"):
        open_capture(f"{tmp_path}#0")
