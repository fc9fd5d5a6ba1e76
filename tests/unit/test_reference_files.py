"""A reference file that is there already: of the same run, of another one, damaged, or no reference at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from drafttrace.tracer.dumps.safetensors_file import read_safetensors
from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter
from drafttrace.tracer.errors import OutputExists
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import make_reference
from drafttrace.tracer.reference_files import CONTENT, content_hash, target_hash

TOKENS = np.arange(3, 20, dtype=np.int64)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=5,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64)  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "a/target")
    return tmp_path / "a/target"


def negate(target: Path) -> None:
    """Another model of the same name, shapes, sizes and times."""
    path = target / "model.safetensors"
    before = path.stat()
    weights = load_file(path)
    weights["model.layers.2.mlp.down_proj.weight"].neg_()
    save_file(weights, path, {"format": "pt"})
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def states(path: Path) -> np.ndarray:
    return read_safetensors(path).tensors["hidden_states"].read()


def test_a_reference_of_another_model_of_the_same_name_is_not_kept(target: Path, tmp_path: Path) -> None:
    """``--force`` with another folder named ``target`` answered 0 and kept the old model's file."""
    out = tmp_path / "o.safetensors"
    make_reference(target, [TOKENS], out)
    old = states(out)
    other = tmp_path / "b/target"
    shutil.copytree(target, other)
    negate(other)
    with pytest.raises(OutputExists, match="other weights of the target; give another name, or --force"):
        make_reference(other, [TOKENS], out)
    assert np.array_equal(states(out), old)
    make_reference(other, [TOKENS], out, force=True)
    assert not np.array_equal(states(out), old)


def test_a_target_that_was_trained_on_is_another_one(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    make_reference(target, [TOKENS], out)
    negate(target)
    with pytest.raises(OutputExists, match="other weights"):
        make_reference(target, [TOKENS], out)


def test_force_makes_every_file_again(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    make_reference(target, [TOKENS], out)
    first = out.stat().st_ino
    make_reference(target, [TOKENS], out)
    assert out.stat().st_ino == first
    make_reference(target, [TOKENS], out, force=True)
    assert out.stat().st_ino != first


def zero_states(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    ids = TOKENS.tobytes()
    place = data.index(ids, start)
    for begin, end in ((start, place), (place + len(ids), len(data))):
        data[begin:end] = bytes(end - begin)
    path.write_bytes(data)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [zero_states, flip_a_bit, cut_off])
def test_a_damaged_file_is_not_done(damage: Callable[[Path], None], target: Path, tmp_path: Path) -> None:
    """A file whose states were zeros counted as done, with --force too."""
    out = tmp_path / "o.safetensors"
    make_reference(target, [TOKENS], out)
    good = out.read_bytes()
    damage(out)
    with pytest.raises(OutputExists, match=r"damaged.*delete that one file, and it alone is made again"):
        make_reference(target, [TOKENS], out)
    make_reference(target, [TOKENS], out, force=True)
    assert out.read_bytes() == good
    damage(out)
    out.unlink()
    make_reference(target, [TOKENS], out)
    assert out.read_bytes() == good


def test_nobody_is_told_to_delete_a_file_that_may_be_no_reference(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    out.write_text("my notes")
    with pytest.raises(OutputExists, match="give another name") as told:
        make_reference(target, [TOKENS], out)
    assert "delete that" not in str(told.value)


@pytest.mark.parametrize(
    "change", [{"dtype": "fp32"}, {"boundaries": "canonical"}, {"slots": [0, 1]}, {"device_map": "cpu"}]
)
def test_what_changes_the_file_makes_another_run(change: dict[str, object], target: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    make_reference(target, [TOKENS], out)
    with pytest.raises(OutputExists, match=r"of another run: it has (another|other) "):
        make_reference(target, [TOKENS], out, **change)  # type: ignore[arg-type]


def test_samples_of_two_models_are_never_one_dump(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_reference(target, [TOKENS, TOKENS[:9], TOKENS[:5]], out)
    negate(target)
    with pytest.raises(OutputExists, match=r"holds 'hs_2.safetensors', which has other weights of the target"):
        make_reference(target, [TOKENS, TOKENS[:9]], out, force=True)
    assert len(list(out.iterdir())) == 3


def test_files_are_numbered_as_their_samples(target: Path, tmp_path: Path) -> None:
    paths = make_reference(target, [TOKENS, TOKENS[:9]], tmp_path / "out", numbers=[4, 17])
    assert [path.name for path in paths] == ["hs_4.safetensors", "hs_17.safetensors"]
    assert len(open_capture(f"{tmp_path / 'out'}#17").tokens) == 9


def test_force_replaces_no_trace_no_weights_and_no_source(target: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.h5"
    trace.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64))
    weights = tmp_path / "model.safetensors"
    shutil.copy(target / "model.safetensors", weights)
    for path in (trace, weights):
        before = path.read_bytes()
        with pytest.raises(OutputExists, match="--force does not replace it"):
            make_reference(target, [TOKENS], path, force=True)
        assert path.read_bytes() == before
    with pytest.raises(OutputExists, match="among the weights"):
        make_reference(target, [TOKENS], target / "r.safetensors")
    out = make_reference(target, [TOKENS], tmp_path / "r.safetensors")[0]
    with pytest.raises(OutputExists, match="must not replace what is read"):
        make_reference(target, [TOKENS], out, keep=[out], force=True)


def test_the_hash_of_a_target_sees_every_shard_and_the_place(tmp_path: Path) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        for shard in range(2):
            (folder / f"model-{shard}.safetensors").write_bytes(bytes(40_000_000))
            os.utime(folder / f"model-{shard}.safetensors", ns=(0, 0))
        os.utime(folder / "config.json", ns=(0, 0))
    first = target_hash(tmp_path / "a")
    assert first == target_hash(tmp_path / "a") != target_hash(tmp_path / "b")
    with (tmp_path / "a/model-1.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\1")
    os.utime(tmp_path / "a/model-1.safetensors", ns=(0, 0))
    second = target_hash(tmp_path / "a")
    assert second != first
    os.utime(tmp_path / "a/model-0.safetensors", ns=(0, 1))
    assert target_hash(tmp_path / "a") != second


def test_a_text_of_another_length_is_not_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    writer = SafetensorsWriter(path, {"a": ("int64", (3,))}, {CONTENT: "0" * 32, "b": "é"})
    with writer as tensors:
        tensors["a"][:] = (1, 2, 3)
        writer.fill_in(CONTENT, writer.content_hash())
        with pytest.raises(ValueError, match="cannot become"):
            writer.fill_in(CONTENT, "short")
    assert read_safetensors(path).metadata == {CONTENT: content_hash(path), "b": "é"}


def test_a_reference_is_never_made_inside_the_dump_it_reads(target: Path, tmp_path: Path) -> None:
    """Exit code 0, and the dump, now of two formats, could not be opened any more."""
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "data_0.pt").write_bytes(b"the dump")
    for out in (dump, dump / "ref.safetensors", dump / "below/ref.safetensors"):
        with pytest.raises(OutputExists, match=r"is the source .* or lies in one folder with it"):
            make_reference(target, [TOKENS], out, keep=[dump])
        with pytest.raises(OutputExists, match=r"is the source .* or lies in one folder with it"):
            make_reference(target, [TOKENS, TOKENS[:9]], out, keep=[dump / "data_0.pt", dump], force=True)
    with pytest.raises(OutputExists, match="or lies in one folder with it"):
        make_reference(target, [TOKENS], dump, keep=[dump / "data_0.pt"])
    assert sorted(path.name for path in dump.rglob("*")) == ["data_0.pt"]
    assert make_reference(target, [TOKENS], tmp_path / "beside.safetensors", keep=[dump])


def test_force_replaces_no_text_of_the_user(target: Path, tmp_path: Path) -> None:
    """A file that is neither safetensors nor HDF5 nor zip was overwritten."""
    notes = tmp_path / "notes.txt"
    for content in ("what I want to keep", '{"format": "json"}'):
        notes.write_text(content)
        with pytest.raises(OutputExists, match="no reference, so --force does not replace it"):
            make_reference(target, [TOKENS], notes, force=True)
        assert notes.read_text() == content
    notes.write_text("")
    assert make_reference(target, [TOKENS], notes, force=True) == [notes]
