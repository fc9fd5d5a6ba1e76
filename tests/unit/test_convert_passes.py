"""A folder of SGLang's passes: prefills and decode steps beside each other."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import pytest
import torch

from drafttrace.tracer.convert import convert
from drafttrace.tracer.errors import DrafttraceError


def passes(root: Path) -> Path:
    """A prefill as pass 0, and two decode steps after it."""
    prefill = made.write_sg_pass(root)
    held = torch.load(prefill, weights_only=True)
    for step in (1, 2):
        rows = {
            name: [part[:1] for part in value] if isinstance(value, list) else value[:1]
            for name, value in held.items()
        }
        rows["model.forward_batch_info.positions"] = torch.tensor([made.LENGTH + step - 1])
        torch.save(rows, prefill.with_name(f"Pass{step:05}.pt"))
    return root


def test_a_decode_step_is_no_lost_row_and_names_its_prefill(tmp_path: Path) -> None:
    """'14 of 15 are missing, as after a prefix-cache hit; record it again with a cold cache', said of a decode step."""
    folder = passes(tmp_path / "pass")
    with pytest.raises(DrafttraceError, match=rf"Sample #1 .* a decode step has.*as '{folder}#0'\.$") as told:
        convert(str(folder), tmp_path / "out", to="safetensors", lose=["last-state"])
    assert "cold cache" not in str(told.value)
    with pytest.raises(DrafttraceError, match=rf"one row, of token {made.LENGTH + 1}, .*as '{folder}#0'\.$"):
        convert(f"{folder}#2", tmp_path / "x.safetensors", to="safetensors", lose=["last-state"])
    convert(f"{folder}#0", tmp_path / "x.safetensors", to="safetensors", lose=["last-state"])
    assert (tmp_path / "x.safetensors").is_file()


def test_a_decode_step_without_its_prefill_names_no_sample(tmp_path: Path) -> None:
    folder = passes(tmp_path / "pass")
    next(folder.rglob("Pass00000.pt")).unlink()
    with pytest.raises(DrafttraceError, match=r"a decode step has.*; record it again with a cold cache") as told:
        convert(str(folder), tmp_path / "out", to="safetensors", lose=["last-state"])
    assert "#0" not in str(told.value)
