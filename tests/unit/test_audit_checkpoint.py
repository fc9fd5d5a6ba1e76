"""The safetensors reader refuses what is damaged, with one sentence, and reads what is whole bit for bit."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer import checkpoint
from drafttrace.tracer.errors import UnreadableFile


def _write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def _tensor(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({"a": _tensor([2], 0, 8), "b": _tensor([2], 4, 12)}, b"\0" * 12, "overlap"),
        ({"a": _tensor([2], 0, 8), "b": _tensor([2], 12, 20)}, b"\0" * 20, "unused"),
        ({"a": _tensor([2], 0, 8)}, b"\0" * 4, "cut off"),
        ({"a": _tensor([2], 0, 8)}, b"\0" * 9, "longer"),
        ({"a": _tensor([3], 0, 8)}, b"\0" * 8, "needs 12"),
        ({"a": _tensor([-2], 0, 8)}, b"\0" * 8, "impossible"),
        ({"a": _tensor([2], 8, 0)}, b"\0" * 8, "impossible"),
        ({"a": _tensor([2], 0, 8, "Q7")}, b"\0" * 8, "number format"),
        (
            {"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}},
            b"\0" * 8,
            "number format",
        ),  # was a traceback
        ({"a": {"dtype": {}, "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8, "number format"),
        ({"a": {"dtype": None, "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8, "number format"),
        ({"a": {"dtype": "F32", "shape": "22", "data_offsets": [0, 16]}}, b"\0" * 16, "impossible"),
        ({"a": {"dtype": "F32", "shape": {"2": 1}, "data_offsets": [0, 8]}}, b"\0" * 8, "impossible"),
        ({"a": {"dtype": "F32", "shape": [[2]], "data_offsets": [0, 8]}}, b"\0" * 8, "impossible"),
        ({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}, b"\0" * 8, "without dtype"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": {"b": 0, "e": 8}}}, b"\0" * 8, "impossible"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, True]}}, b"\0" * 8, "impossible"),
        ({"a": [1, 2]}, b"", "without dtype"),
        ([1], b"", "no JSON object"),
        (b"{nonsense", b"", "no JSON"),
    ],
)
def test_damaged_headers_are_refused_in_one_sentence(
    tmp_path: Path, header: object, data: bytes, words: str
) -> None:
    path = _write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(UnreadableFile, match=words) as caught:
        checkpoint.open_checkpoint(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("claimed", [100_000_000, 2**63 - 1, 2**64 - 1])
def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path, claimed: int) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", claimed))
        file.truncate(200_000_000)  # sparse: the length itself would be plausible
    with pytest.raises(UnreadableFile, match="limit"):
        checkpoint.read_header(path)


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path) -> None:
    """It was said to claim a header of 2,336,927,755,350,992,246 bytes."""
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n"
    (tmp_path / "model.safetensors").write_text(text)
    with pytest.raises(UnreadableFile, match="git lfs pull"):
        checkpoint.open_checkpoint(tmp_path)


def test_short_files_and_missing_folders(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(UnreadableFile, match="too few"):
        checkpoint.open_checkpoint(tmp_path)
    with pytest.raises(UnreadableFile, match="no folder"):
        checkpoint.open_checkpoint(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnreadableFile, match="holds no"):
        checkpoint.open_checkpoint(tmp_path / "empty")


def test_shards_are_read_through_the_index(tmp_path: Path) -> None:
    first, second = torch.randn(3, 4).bfloat16(), torch.arange(6).reshape(2, 3)
    save_file({"a": first}, tmp_path / "model-1.safetensors")
    save_file({"b": second}, tmp_path / "model-2.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    opened = checkpoint.open_checkpoint(tmp_path)
    assert set(opened) == {"a", "b"} and "a" in opened and "c" not in opened
    assert torch.equal(opened.tensor("a"), first)
    assert np.array_equal(opened.floats("a"), first.float().numpy())
    assert np.array_equal(opened.floats("a", [2, 0]), first.float().numpy()[[2, 0]])
    assert np.array_equal(opened.array("b"), second.numpy())
    assert opened.info("b").shape == (2, 3)
    with pytest.raises(UnreadableFile, match="floating point"):
        opened.floats("b")


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "gone.safetensors"}, "lacks 1 of 1 shard that"),
        ({"a": "../model.safetensors"}, "of its own folder"),
        ({"a": 3}, "of its own folder"),
        ({}, "no weight_map"),
        ({"z": "model.safetensors"}, "does not hold it"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, weight_map: dict[str, object], words: str) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UnreadableFile, match=words):
        opened = checkpoint.open_checkpoint(tmp_path)
        opened.info(next(iter(opened)))


def test_the_same_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path / "two.safetensors")
    with pytest.raises(UnreadableFile, match="stale"):
        checkpoint.open_checkpoint(tmp_path)


def test_torch_files_are_read_and_pickles_are_not_executed(tmp_path: Path) -> None:
    stored = {"x": torch.randn(2, 3).bfloat16(), "d2t": torch.arange(3)}
    torch.save(stored, tmp_path / "pytorch_model.bin")
    opened = checkpoint.open_checkpoint(tmp_path)
    assert np.array_equal(opened.floats("x"), stored["x"].float().numpy())
    assert opened.info("d2t").dtype == "I64"
    torch.save({"x": Path("evil")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UnreadableFile, match="convert it to safetensors"):
        checkpoint.open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["[1]", "{", "", "[" * 100_000])
def test_unreadable_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UnreadableFile, match=r"config\.json"):
        checkpoint.read_json(path)


def test_parts_of_a_target_are_found_in_every_wrapping_and_not_in_towers_or_draft_layers() -> None:
    from drafttrace.tracer.part_names import EMBED, HEAD, NORM, stored_name

    for wrapping in ("", "model.", "language_model.model.", "model.language_model.", "thinker.model."):
        names = [
            f"{wrapping}embed_tokens.weight",
            f"{wrapping}norm.weight",
            f"{wrapping}layers.61.embed_tokens.weight",
            f"{wrapping}layers.3.self_attn.q_norm.weight",
            "vision_tower.norm.weight",
            "model.visual.embed_tokens.weight",
        ]
        assert stored_name(names, EMBED) == names[0] and stored_name(names, NORM) == names[1]
        assert stored_name(names, HEAD) is None
    gpt = ["transformer.wte.weight", "transformer.ln_f.weight", "lm_head.weight"]
    assert [stored_name(gpt, part) for part in (EMBED, NORM, HEAD)] == gpt
