"""The checks by value need three tensors of a target, and only the shards that hold them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.inspecting import inspect_capture

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "pairs/tiny-llama/target"
TRACE = str(ROOT / "traces/tiny-llama/healthy.h5")


def sharded(folder: Path) -> dict[str, str]:
    """The tiny target in a shard for the layers and one for each other tensor; its weight map."""
    shutil.copytree(TARGET, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = load_file(TARGET / "model.safetensors")
    parts: dict[str, dict[str, object]] = {}
    for name, tensor in weights.items():
        part = "layers" if ".layers." in name else name.removesuffix(".weight").rsplit(".", 1)[-1]
        parts.setdefault(f"model-{part}.safetensors", {})[name] = tensor
    for file, tensors in parts.items():
        save_file(tensors, folder / file)
    where = {name: file for file, tensors in parts.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return where


def test_a_target_that_lacks_an_unrelated_shard_is_enough(tmp_path: Path) -> None:
    where = sharded(tmp_path / "target")
    whole = inspect_capture(TRACE, target=TARGET)
    (tmp_path / "target/model-layers.safetensors").unlink()
    found = inspect_capture(TRACE, target=tmp_path / "target")
    assert [check.to_json() for check in found.checks] == [check.to_json() for check in whole.checks]
    assert len(set(where.values())) >= 3
    with pytest.raises(UnreadableFile, match="lacks 1 of"):  # whoever needs all of it is still told
        open_checkpoint(tmp_path / "target")


def test_a_target_that_lacks_a_needed_shard_names_it(tmp_path: Path) -> None:
    where = sharded(tmp_path / "target")
    for file in sorted(set(where.values()) - {"model-layers.safetensors"}):
        path = tmp_path / "target" / file
        held = path.read_bytes()
        path.unlink()
        with pytest.raises(UnreadableFile, match=rf"lacks the shard '{file}', which holds '.*'; fetch that file"):
            inspect_capture(TRACE, target=tmp_path / "target")
        path.write_bytes(held)


def test_a_target_that_lacks_every_shard_is_refused(tmp_path: Path) -> None:
    for file in set(sharded(tmp_path / "target").values()):
        (tmp_path / "target" / file).unlink()
    with pytest.raises(UnreadableFile, match="lacks"):
        inspect_capture(TRACE, target=tmp_path / "target")
