"""Folders with files of several kinds: every reader names what it left out of its samples."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import dump_layouts as made
import pytest
import torch

import drafttrace
from drafttrace.compare import report_html, report_markdown, report_terminal
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture


def dumper(root: Path) -> Path:
    """A dumper folder with a sample of SpecForge in it."""
    folder = made.write_sg_dumper(root)
    torch.save(made.sf_sample(), folder / "data_0.ckpt")
    return folder


def base_of_dumper(root: Path) -> Path:
    """The base folder of a dumper's run, with an answer of the server beside the run."""
    made.write_sg_dumper(root)
    made.write_sg_json(root)
    return root


def cache(root: Path) -> Path:
    made.write_am_dspark(root)
    return made.write_spec_v1(root).parent


def eagle(root: Path) -> Path:
    made.write_eagle12(root)
    made.write_sg_json(root)
    return root


def passes(root: Path) -> Path:
    made.write_sg_pass(root)
    made.write_sg_dumper(root)
    return root


CASES = [
    (dumper, "SG-DUMPER", ("data_0.ckpt",)),
    (base_of_dumper, "SG-DUMPER", ("answer.json",)),
    (cache, "AM-DSPARK", ("data_0.pt",)),
    (eagle, "EAGLE12-CKPT", ("answer.json",)),
]


@pytest.mark.parametrize(("write", "layout", "names"), CASES, ids=[case[1] for case in CASES])
def test_what_is_left_out_of_a_folder_is_named_by_every_reader(
    write: Callable[[Path], Path], layout: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    """A checkpoint in a dumper folder, and an answer beside a sample of EAGLE, went without a word."""
    (tmp_path / "dump").mkdir()
    folder = write(tmp_path / "dump")
    found = open_collection(folder)
    assert (found.layout.id, found.left_out) == (layout, names)
    note = f"1 file of the folder left out, of another format than {layout}: '{names[0]}'"
    number = found.refs[0].number
    spec = f"{folder}#{number}" if len(found.refs) > 1 else str(folder)
    assert note in open_capture(spec).notes
    inspected = inspect_capture(str(folder))
    assert note in inspected.notes and note in inspected.to_json()["notes"]
    lose = ["last-state", "loss-mask", "first-token"]
    done = convert(spec, tmp_path / "one", "trace", lose=[*lose, "layer-ids"])
    assert note in done.notes and note in done.to_json()["notes"]
    result = drafttrace.diff(tmp_path / "one", spec)
    assert result.reference is not None and note in result.reference.notes
    for text in (report_terminal.as_text(result, 400), report_markdown.render(result), report_html.render(result)):
        assert names[0] in text


@pytest.mark.parametrize("place", ["a.pt", "z.pt"])
def test_a_file_that_is_no_dump_is_no_sample(place: str, tmp_path: Path) -> None:
    """'a.pt holds the fields x, which is no dump format', said of a folder with a dump in it."""
    made.write_sf_eagle3(tmp_path)
    torch.save({"x": torch.zeros(3)}, tmp_path / place)
    found = inspect_capture(str(tmp_path))
    assert (found.format, found.sample_count) == ("SF-EAGLE3", 1)
    assert f"1 file of the folder left out, of another format than SF-EAGLE3: '{place}'" in found.notes
    (tmp_path / "broken.pt").write_bytes((tmp_path / place).read_bytes()[:-40])  # it may have been a sample
    assert open_collection(tmp_path).left_out == (place,) and len(open_collection(tmp_path).refs) == 2


@pytest.mark.parametrize("name", ["answers.json.gz", "more.pkl", "tokens.npy", "a-sample-without-its-ending.gz"])
def test_data_that_no_folder_is_searched_for_is_named(name: str, tmp_path: Path) -> None:
    for number, write in enumerate((made.write_sf_eagle3, made.write_sg_dumper)):
        root = tmp_path / str(number)
        root.mkdir()
        write(root)
        (root / name).write_bytes(b"x")
        (root / "train.log").write_text("of the trainer")
        assert open_collection(root).left_out == (name,)


def test_of_many_files_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    folder = made.write_sg_dumper(tmp_path)
    for number in range(20):
        torch.save(made.sf_sample(), folder / f"data_{number}.ckpt")
    [note] = open_collection(folder).notes
    assert note.startswith("20 files of the folder left out, of another format than SG-DUMPER: 'data_0.ckpt', ")
    assert note.endswith(", 'data_5.ckpt' and 14 more")


def test_a_folder_of_one_kind_leaves_nothing_out(tmp_path: Path) -> None:
    """What stands beside samples by its name (layer ids, vocabulary maps, a model) is no sample that is missing."""
    for number, case in enumerate(made.CASES):
        root = tmp_path / str(number)
        root.mkdir()
        path = case.write(root)
        folder = path if path.is_dir() else path.parent
        request = Request(**case.request)
        assert open_collection(folder, None, request).left_out == (), case.id
        notes = inspect_capture(str(folder), request=request).notes
        assert not any("left out, of another format" in note for note in notes)


def test_several_samples_converted_tell_of_the_folder_once(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    path = made.write_spec_v1(folder)
    shutil.copy(path, folder / "data_1.pt")
    made.write_sg_json(folder)
    done = convert(str(folder), tmp_path / "out", "speculators-v1")
    assert done.samples == 2
    assert done.notes == ("1 file of the folder left out, of another format than SPEC-V1: 'answer.json'",)
