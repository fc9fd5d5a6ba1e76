"""What is printed of a dump is true of it: the reason why it is of a format, what was cut, what was left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import dump_layouts as made
import pytest
import torch

from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.torch_file import reason_of
from drafttrace.tracer.errors import UnknownFormat, UnreadableFile
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]


def saved(path: Path, **fields: Any) -> str:
    value = {"input_ids": made.tokens(), "loss_mask": made.loss_mask()} | fields
    torch.save(value, path)
    return str(path)


def states(width: int) -> torch.Tensor:
    return torch.randn(1, made.LENGTH, width, generator=torch.Generator().manual_seed(width)).to(torch.bfloat16)


LAST_AND_AUX = [("hidden_state", "aux_hidden_state"), ("target", "hidden_state"), ("target_hiddens", "hidden_states"),
                ("target_last_hidden_states", "hidden_states")]  # fmt: skip


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize(("last", "aux"), LAST_AND_AUX)
def test_aux_states_that_are_no_multiple_of_the_last_state_are_refused(
    last: str, aux: str, lenient: bool, tmp_path: Path
) -> None:
    """70 beside 24 was read as shifted logits "wider than a state", and the last state was dropped."""
    path = saved(tmp_path / "data_0.ckpt", **{aux: states(70), last: states(24)})
    with pytest.raises(
        UnreadableFile, match=r"70 wide, no multiple of the hidden size 24; the last state beside it"
    ):
        open_capture(path, request=Request(lenient=lenient))


@pytest.mark.parametrize(
    ("aux", "last", "hidden"), [(24, 70, None), (48, 70, 16), (96, 40, 32), (180_000, 128_256, None)]
)
def test_logits_beside_the_slots_are_told_by_their_width(
    aux: int, last: int, hidden: int | None, tmp_path: Path
) -> None:
    """Also where three slots are wider than the vocabulary."""
    path = saved(tmp_path / "data_0.ckpt", aux_hidden_state=states(aux), hidden_state=states(last))
    capture = open_capture(path, request=Request(hidden_size=hidden))
    assert capture.format == "SF-D5DE56F7"
    assert f"hidden_state is {last} wide, more than one of the three slots" in capture.recognised_by
    assert last > aux / 3
    assert capture.last is None and len(capture.slots) == 3


@pytest.mark.parametrize("name", ["data_0.ckpt", "sample_00000001_rank0.ckpt"])
def test_slots_that_nothing_could_cut_ask_for_the_hidden_size(name: str, tmp_path: Path) -> None:
    """Five slots of DFlash were shown as one of 80, without a word."""
    path = saved(tmp_path / name, hidden_states=states(80))
    found = inspect_capture(path)
    assert [state.shape[1] for state in found.states] == [80]
    assert any("80 wide and may hold several slots side by side" in note for note in found.notes)
    assert any("--hidden-size H" in note for note in found.notes)
    cut = inspect_capture(path, request=Request(hidden_size=16))
    assert len(cut.states) == 5 and not any("side by side" in note for note in cut.notes)


def test_a_sample_of_angelslim_without_attention_mask_is_told_by_its_name_and_says_so(tmp_path: Path) -> None:
    """The reason named an attention_mask that the file does not hold."""
    request = Request(hidden_size=16)
    named = saved(tmp_path / "sample_00000001_rank0.ckpt", hidden_states=states(80))
    found = open_capture(named, request=request)
    assert found.format == "AS-DFLASH"
    assert "attention_mask" not in found.recognised_by
    assert "in a file named sample_{i}_rank{r}" in found.recognised_by
    assert "--format SF-DFLASH" in found.recognised_by
    assert open_capture(named, format="SF-DFLASH", request=request).format == "SF-DFLASH"
    other = saved(tmp_path / "data_0.ckpt", hidden_states=states(80))
    assert open_capture(other, request=request).format == "SF-DFLASH"
    masked = saved(tmp_path / "any.ckpt", hidden_states=states(80), attention_mask=torch.ones(made.LENGTH).long())
    assert "hidden_states and attention_mask" in open_capture(masked, request=request).recognised_by


@pytest.mark.parametrize("write", [made.write_am_eagle3, made.write_am_dspark])
def test_a_manifest_that_counts_other_samples_than_the_shards_hold(write: Any, tmp_path: Path) -> None:
    write(tmp_path)
    assert not any("num_samples" in note for note in inspect_capture(str(tmp_path)).notes)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"num_samples": 5}))
    notes = inspect_capture(str(tmp_path)).notes
    assert any("num_samples 5, and the shards hold 1" in note for note in notes)


def test_layer_ids_that_contradict_data_config_are_said(tmp_path: Path) -> None:
    """They won without a word."""
    made.write_spec_v1(tmp_path)
    config = json.loads((tmp_path / "data_config.json").read_text())
    recorded = config["hidden_states"]["layer_ids"]
    capture = open_capture(str(tmp_path), request=Request(layer_ids=(0, 1, 2)))
    assert capture.wiring == (1, 2, 3)
    both = f"--layer-ids says 0, 1, 2, and data_config.json records {', '.join(map(str, recorded))}"
    assert any(both in note for note in capture.notes)
    same = open_capture(str(tmp_path), request=Request(layer_ids=tuple(recorded)))
    assert not any("--layer-ids" in note for note in same.notes)


def test_layer_ids_that_contradict_a_file_that_is_believed_are_said(tmp_path: Path) -> None:
    """A manifest, a reference and a trace say their layers themselves; other ids were passed over in silence."""
    made.write_am_eagle3(tmp_path)
    for ids, said in (((1, 3, 4), False), ((2, 4, 5), True)):
        notes = open_capture(f"{tmp_path}#0", request=Request(layer_ids=ids)).notes
        assert any("--layer-ids means [B3, B5, B6], and the file records [B2, B4, B5]" in x for x in notes) is said
    for ids, said in (((2, 8, 13), False), ((1, 7, 12), True)):
        notes = open_capture(str(ROOT / "traces/tiny-llama/healthy.h5"), request=Request(layer_ids=ids)).notes
        assert any("--layer-ids means [B1, B7, B12]" in note for note in notes) is said


def test_a_gzip_file_of_something_else_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GiB of zeros was written to the disk before its first bytes were looked at."""
    path = tmp_path / "data_0.ckpt.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))  # whoever inflates fails here
    with pytest.raises(UnknownFormat, match=r"holds something that begins with b'\\x00"):
        open_capture(str(path))
    path.write_bytes(gzip.compress(b""))
    monkeypatch.delenv("TMPDIR")
    with pytest.raises(UnreadableFile, match="is empty"):
        open_capture(str(path))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model-00001-of-00002.bin", "adapter_model.safetensors"]
)
def test_a_folder_of_weights_looks_like_a_model(name: str, tmp_path: Path) -> None:
    """It 'holds no file that could be a dump (..., .safetensors)'."""
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UnknownFormat, match=rf"holds weights \('{name}'\).* looks like a model.*--target"):
        open_capture(str(tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: x.to(torch.complex64), "complex numbers"),
        (lambda x: x.to(torch.complex128), "complex numbers"),
        (lambda x: x.to(torch.complex32), "complex numbers"),
        (lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.qint8), "quantised numbers"),
        (lambda x: x.to_sparse(), "sparse or nested tensors"),
        (lambda x: x.to(torch.float8_e4m3fnuz), "floats of another kind"),
        (lambda x: x.numpy().astype("c8"), "complex numbers"),
    ],
)
def test_numbers_that_are_no_hidden_states_are_not_called_code(make: Any, words: str, tmp_path: Path) -> None:
    """A complex tensor 'wants to run torch.ComplexFloatStorage'."""
    path = saved(tmp_path / "data_0.ckpt", aux_hidden_state=make(states(48).float()), hidden_state=states(16))
    with pytest.raises(UnreadableFile, match=rf"holds {words} \(.*no hidden states; save the states as") as told:
        open_capture(path)
    assert "run" not in str(told.value)


def test_the_words_of_an_error_keep_their_acronyms(tmp_path: Path) -> None:
    """It said 'cRC check failed'."""
    assert reason_of(ValueError("CRC check failed.")) == "CRC check failed"
    assert reason_of(ValueError("Error -3 while decompressing")) == "error -3 while decompressing"
    packed = bytearray(gzip.compress(b"{" + bytes(100)))
    packed[-8] ^= 1
    (tmp_path / "x.gz").write_bytes(packed)
    with pytest.raises(UnreadableFile, match=r"\(CRC check failed"):
        open_capture(str(tmp_path / "x.gz"))
