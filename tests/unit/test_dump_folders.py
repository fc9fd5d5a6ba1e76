"""Folders and names: empty ones, loops of links, mixed formats, wrong extensions, what could be several layouts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import dump_layouts as made
import pytest
import torch
from dump_reading import read_all
from safetensors.torch import save_file

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import names_several, open_capture
from drafttrace.tracer.open_two import open_alone, open_two

ROOT = Path(__file__).resolve().parents[2]


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


def test_a_stranger_among_many_files_stops_no_conversion_in_the_middle(tmp_path: Path) -> None:
    """Only 13 files were looked at, also where --format asks for one format: #17 of 40 stopped convert after 17 samples."""
    folder = tmp_path / "dump"
    folder.mkdir()
    for k in range(40):
        torch.save(made.sf_sample(), folder / f"data_{k}.ckpt")
    torch.save(made.mo_sample(), folder / "data_17.ckpt")
    with pytest.raises(
        UnknownFormat,
        match=r"1 of its 40 files are not SF-EAGLE3 .*\('data_17\.ckpt'\); leave them out with --format SF",
    ):
        convert(str(folder), tmp_path / "out", to="trace", lose=["loss-mask"])
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]
    collection = open_collection(folder, "SF-EAGLE3")
    assert len(collection.refs) == 39 and collection.left_out == ("data_17.ckpt",)
    assert any("'data_17.ckpt'" in note for note in inspect_capture(str(folder), format="SF-EAGLE3").notes)
    done = convert(str(folder), tmp_path / "out", to="trace", format="SF-EAGLE3", lose=["loss-mask"])
    assert done.samples == 39


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


def test_an_ambiguous_left_side_names_the_option_of_the_left_side(tmp_path: Path) -> None:
    """It was --format, which is of REFERENCE."""
    state = torch.zeros(1, made.LENGTH, 48)
    value = {"input_ids": made.tokens(), "loss_mask": made.loss_mask(), "hidden_state": state}
    torch.save(value, tmp_path / "data_0.ckpt")
    odd, other = str(tmp_path / "data_0.ckpt"), str(made.write_sf_eagle3(tmp_path / "other"))
    for opened in (lambda: open_two(odd, other), lambda: open_alone(odd)):
        with pytest.raises(UnknownFormat, match=r"say which with --left-format\.$"):
            opened()
    assert open_two(other, odd)[1].format == "SF-35504D45"  # LEFT tells how wide a slot is


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


@pytest.mark.parametrize("write", [made.write_ts_eval, made.write_ts_debug])
def test_every_sample_of_every_file_of_a_folder_has_a_number(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Of each file only the first sample had one: half of an evaluation cache of two ranks was there."""
    path = write(tmp_path)
    alone = len(open_collection(path).refs)
    assert alone == 2
    shutil.copy(path, path.with_name(f"more_{path.name}"))
    refs = open_collection(tmp_path).refs
    assert [ref.number for ref in refs] == list(range(2 * alone))
    assert [ref.inner for ref in refs] == [0, 1, 0, 1]
    path.write_bytes(path.read_bytes()[:100])  # one that cannot be read is a sample that says why
    assert len(open_collection(tmp_path).refs) == 1 + alone


def test_a_folder_of_answers_is_read(tmp_path: Path) -> None:
    """It 'holds no file that could be a dump', while each answer was read by itself."""
    answer = json.loads(made.write_sg_json(tmp_path).read_text())
    (tmp_path / "answer.json").unlink()
    (tmp_path / "answer_0.json").write_text(json.dumps(answer))
    (tmp_path / "answer_1.json").write_text(json.dumps([answer, answer]))
    (tmp_path / "config.json").write_text("{}")
    assert [ref.file.name for ref in open_collection(tmp_path).refs] == ["answer_0.json", *["answer_1.json"] * 2]
    made.write_spec_v1(tmp_path)  # beside tensors, JSON says something of them
    assert read_all(tmp_path).format == "SPEC-V1"


def test_a_folder_of_recorded_traces_is_said_to_be_that(tmp_path: Path) -> None:
    """'holds the fields about/, draft/, ..., name them with --slots', said of this tool's own traces."""
    for name in ("fixed.h5", "shifted.h5"):
        shutil.copy(ROOT / "traces/tiny-kimi" / name, tmp_path)
    with pytest.raises(
        UnknownFormat, match=r"fixed\.h5' is a trace that drafttrace recorded, .*; give the trace itself\.$"
    ):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("draft/model.safetensors", "holds weights and no samples"),
        ("draft/config.json", "looks like a part of a model"),
        ("dump/data_config.json", "files of its name stand beside them; give the folder of the dump, such as"),
    ],
)
def test_files_that_hold_no_samples_are_said_to_be_that(name: str, words: str, tmp_path: Path) -> None:
    """'name its fields with --slots and --tokens', said of a model's config.json."""
    with pytest.raises(UnknownFormat, match=words):
        open_capture(str(ROOT / "pairs/tiny-kimi" / name))
    if name.endswith(".safetensors"):  # by its content, whatever it is called
        shutil.copy(ROOT / "pairs/tiny-kimi" / name, tmp_path / "mine.safetensors")
        with pytest.raises(UnknownFormat, match=words):
            open_capture(str(tmp_path / "mine.safetensors"))


def test_the_passes_of_a_tensor_parallel_server_are_those_of_one_rank(tmp_path: Path) -> None:
    """Every sample was there once for each rank, so none was found by its tokens."""
    first = made.write_sg_pass(tmp_path).parent
    second = tmp_path / "TP1_PP0_Rank1_pid78"
    shutil.copytree(first, second)
    found = open_collection(tmp_path)
    assert [ref.file.parent for ref in found.refs] == [first]
    assert "rank 0 of 2 ranks" in found.read(found.refs[0], Request()).notes
    assert len(open_collection(second).refs) == 1
    shutil.copytree(first, tmp_path / "TP0_PP0_Rank0_pid99")
    with pytest.raises(
        DrafttraceError, match=r"holds 2 runs \('TP0_PP0_Rank0_pid77', 'TP0_PP0_Rank0_pid99'\); give one"
    ):
        open_collection(tmp_path)


def test_traces_beside_a_dump_are_none_of_its_samples(tmp_path: Path) -> None:
    """diff counted three traces as samples of SPEC-V1, inspect said that the folder is no dump, and '#1' was read."""
    folder = ROOT / "traces/tiny-kimi"
    found = open_collection(folder)
    assert [ref.file.name for ref in found.refs] == ["data_0.pt"]
    assert found.left_out == ("as-trained.h5", "fixed.h5", "shifted.h5")
    assert inspect_capture(str(folder)).sample_count == 1 and not names_several(str(folder))
    said = (
        "3 files of the folder left out, of another format than SPEC-V1: 'as-trained.h5', 'fixed.h5', 'shifted.h5'"
    )
    assert said in open_capture(str(folder), format="spec-v1").notes
    with pytest.raises(DrafttraceError, match="has no sample 1"):
        open_capture(f"{folder}#1")
    shutil.copy(folder / "fixed.h5", tmp_path / "one.h5")
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UnknownFormat, match="is a trace that drafttrace recorded"):
        open_collection(tmp_path)


def test_parts_of_a_dumper_folder_beside_passes_are_no_samples(tmp_path: Path) -> None:
    """'SG-PASS, 26 samples', of which 20 were single tensors of another dump."""
    made.write_sg_pass(tmp_path)
    dumper = made.write_sg_dumper(tmp_path)
    found = open_collection(tmp_path)
    assert (found.layout.id, [ref.file.name for ref in found.refs]) == ("SG-PASS", ["Pass00000.pt"])
    assert len(found.left_out) == len(list(dumper.iterdir()))
    assert open_collection(dumper).layout.id == "SG-DUMPER"
