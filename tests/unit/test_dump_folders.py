"""Folders and names: empty ones, loops of links, mixed formats, wrong extensions, what could be several layouts."""

from __future__ import annotations

import shutil
from pathlib import Path

import dump_layouts as made
import pytest
import torch
from dump_reading import read_all
from safetensors.torch import save_file

from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat
from drafttrace.tracer.open import open_capture


def test_empty_things(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.pt").write_bytes(b"")
    for path, words in ((tmp_path / "folder", "no file that could be a dump"), (tmp_path / "empty.pt", "is empty"),
                        (tmp_path / "nowhere", "no file or folder")):  # fmt: skip
        with pytest.raises(DrafttraceError, match=words):
            read_all(path)


def test_symlink_loops(tmp_path: Path) -> None:
    (tmp_path / "a.pt").symlink_to(tmp_path / "b.pt")
    (tmp_path / "b.pt").symlink_to(tmp_path / "a.pt")
    with pytest.raises(DrafttraceError):
        read_all(tmp_path / "a.pt")
    made.write_spec_v1(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    capture = read_all(tmp_path)
    assert capture.format == "SPEC-V1"


def test_a_folder_of_mixed_formats_names_them(tmp_path: Path) -> None:
    made.write_spec_v1(tmp_path)
    made.write_sf_eagle3(tmp_path)
    with pytest.raises(UnknownFormat, match=r"mixes formats: SF-EAGLE3 .*data_0\.ckpt.*SPEC-V1 .*data_0\.pt"):
        read_all(tmp_path)


def test_a_stranger_among_many_files_is_found_when_it_is_asked_for(tmp_path: Path) -> None:
    for k in range(40):
        torch.save(made.sf_sample(), tmp_path / f"data_{k}.ckpt")
    torch.save(made.mo_sample(), tmp_path / "data_7.ckpt")
    assert read_all(tmp_path, sample=6).format == "SF-EAGLE3"
    with pytest.raises(UnknownFormat, match=r"'data_7\.ckpt' is MO-PT, the others are SF-EAGLE3"):
        read_all(tmp_path, sample=7)


def test_ambiguity_names_the_candidates(tmp_path: Path) -> None:
    value = {
        "input_ids": made.tokens(),
        "loss_mask": made.loss_mask(),
        "hidden_state": torch.zeros(1, made.LENGTH, 48),
    }
    torch.save(value, tmp_path / "data_0.ckpt")
    with pytest.raises(UnknownFormat, match=r"could be .*BALD-PLAIN.*SF-35504D45.*SF-LAST.*--format") as caught:
        read_all(tmp_path / "data_0.ckpt")
    assert "\n" not in str(caught.value)
    assert read_all(tmp_path / "data_0.ckpt", format="SF-LAST").last is not None
    three = read_all(tmp_path / "data_0.ckpt", Request(hidden_size=16))
    assert three.format == "SF-35504D45"


def test_a_wrong_extension_does_not_matter(tmp_path: Path) -> None:
    torch.save(made.sf_sample(), tmp_path / "data_0.safetensors")
    assert read_all(tmp_path / "data_0.safetensors").format == "SF-EAGLE3"
    path = made.write_vllm(tmp_path)
    path.rename(tmp_path / "x.pt")
    assert read_all(tmp_path / "x.pt").format == "VLLM-HS"


def test_missing_hidden_size_says_what_to_give(tmp_path: Path) -> None:
    path = made.write_sf_dflash(tmp_path)
    with pytest.raises(DrafttraceError, match="give --target DIR or --hidden-size H"):
        read_all(path)
    with pytest.raises(DrafttraceError, match="no multiple of the hidden size 7"):
        read_all(path, Request(hidden_size=7))


def test_unknown_format_name(tmp_path: Path) -> None:
    path = made.write_sf_eagle3(tmp_path)
    with pytest.raises(UnknownFormat, match="no format 'PARQUET'"):
        read_all(path, format="PARQUET")


def test_the_base_folder_of_a_dumper_is_its_run(tmp_path: Path) -> None:
    """Its first file 'holds the fields meta, value, which is no dump format'."""
    run = made.write_sg_dumper(tmp_path)
    for format_id in (None, "SG-DUMPER"):
        capture = open_capture(str(tmp_path), format=format_id)
        assert capture.format == "SG-DUMPER" and capture.path == str(run)
    again = tmp_path / "exp2"
    shutil.copytree(run, again)
    with pytest.raises(DrafttraceError, match=rf"holds 2 runs \('exp', 'exp2'\); give one, such as '{again}'"):
        open_capture(str(tmp_path))


def test_a_single_file_of_a_dumper_names_its_folder(tmp_path: Path) -> None:
    """'There is no format SG-DUMPER for a file', said of a folder too."""
    run = made.write_sg_dumper(tmp_path)
    file = next(run.glob("*input_ids.pt"))
    with pytest.raises(UnknownFormat, match=rf"part of a SGLang dumper folder .*give the folder '{run}'"):
        open_capture(str(file))
    with pytest.raises(UnknownFormat, match=rf"SG-DUMPER is the format of a folder.*give the folder '{run}'"):
        open_capture(str(file), format="SG-DUMPER")
    (tmp_path / "other").mkdir()
    made.write_spec_v1(tmp_path / "other")
    with pytest.raises(UnknownFormat, match=r"is no SGLang dumper folder \(SG-DUMPER\)"):
        open_capture(str(tmp_path / "other"), format="SG-DUMPER")


def test_a_shard_of_a_cache_names_its_folder(tmp_path: Path) -> None:
    """The remedy was --slots and --tokens, which lose what manifest.json says."""
    folder = made.write_am_eagle3(tmp_path)
    shard = next(folder.glob("shard-*.safetensors"))
    with pytest.raises(
        UnknownFormat, match=rf"part of a NeMo Automodel EAGLE-3 cache .*give the folder '{folder}'"
    ):
        open_capture(str(shard))


@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00002.safetensors"])
def test_weights_given_as_a_file_look_like_a_model(name: str, tmp_path: Path) -> None:
    """Its folder was said to be a model, and the file to be 'no dump format that drafttrace knows'."""
    save_file({"model.embed_tokens.weight": made.state(0)}, tmp_path / name)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(
            UnknownFormat, match=r"holds weights .* looks like a model, which is given with --target"
        ):
            open_capture(str(path))
