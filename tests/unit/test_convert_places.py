"""Where a conversion may write: folders are folders, and nobody's file or dump is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from convert_dumps import KNOWN, files, specforge, v1, write_v1

from drafttrace.tracer.convert import convert
from drafttrace.tracer.convert_layouts import OUT_LAYOUTS
from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.errors import DrafttraceError, OutputExists
from drafttrace.tracer.open import open_capture


@pytest.mark.parametrize("to", OUT_LAYOUTS)
def test_many_samples_are_no_file(to: str, tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    with pytest.raises(OutputExists, match=r"(5 samples|the layout) .*give a folder such as '.*/out'"):
        convert(str(source), tmp_path / "out.safetensors", to, force=True)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(OutputExists, match=r"'.*mine' is a file, and .*give the name of a folder"):
        convert(str(source), tmp_path / "mine", to, force=True)
    assert sorted(os.listdir(tmp_path)) == ["dump", "mine"]
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("out/data_0.pt", "out"),
        ("out/hidden_states/hs_0.safetensors", "out"),
        ("x.safetensors", "x"),
        ("x.H5", "x"),
        ("x.ckpt.gz", "x"),
        ("x.json", "x"),
        ("x.arrow", "x"),
    ],
)
@pytest.mark.parametrize("to", ["speculators", "speculators-v1"])
def test_a_folder_is_not_named_like_a_file(to: str, name: str, better: str, tmp_path: Path) -> None:
    """``convert X out/data_0.pt --to speculators-v1`` made a folder ``data_0.pt``."""
    source = v1(tmp_path / "dump", [0])
    with pytest.raises(OutputExists) as refused:
        convert(str(source), tmp_path / name, to, request=KNOWN)
    assert f"the layout {to} is a folder (" in str(refused.value)
    assert str(refused.value).endswith(f"give a folder such as '{tmp_path / better}'.")
    assert os.listdir(tmp_path) == ["dump"]


def test_a_name_with_a_dot_is_a_folder_all_the_same(tmp_path: Path) -> None:
    convert(str(v1(tmp_path / "dump", [0])), tmp_path / "llama-3.1", "speculators-v1")
    (tmp_path / "old.pt").mkdir()
    convert(str(tmp_path / "dump"), tmp_path / "old.pt", "speculators-v1", force=True)
    assert open_capture(str(tmp_path / "llama-3.1")).wiring == open_capture(str(tmp_path / "old.pt")).wiring


@pytest.mark.parametrize("force", [False, True])
def test_a_users_file_is_not_where_a_folder_goes(force: bool, tmp_path: Path) -> None:
    """It said that the file exists already, and to give --force, which could not help."""
    source = v1(tmp_path / "dump", [0])
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(OutputExists) as refused:
        convert(str(source), tmp_path / "notes", "speculators-v1", force=force)
    assert "is a file, and the layout speculators-v1 is a folder (data_0.pt with data_config.json)" in str(
        refused.value
    )
    assert "--force" not in str(refused.value)
    assert (tmp_path / "notes").read_text() == "mine"


def test_force_replaces_what_a_conversion_wrote(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    convert(str(source), tmp_path / "out", "safetensors")
    with pytest.raises(OutputExists, match="--force to replace it where a conversion of several samples wrote it"):
        convert(str(source), tmp_path / "out", "safetensors")
    write_v1(source, 1).replace(source / "data_7.pt")
    convert(str(source), tmp_path / "out", "safetensors", force=True)
    assert [ref.number for ref in open_collection(tmp_path / "out").refs] == [0, 2, 3, 4, 7]
    assert sorted(os.listdir(tmp_path)) == ["dump", "out"]


@pytest.mark.parametrize("to", OUT_LAYOUTS)
def test_force_replaces_no_dump_and_no_users_file(to: str, tmp_path: Path) -> None:
    other = specforge(tmp_path / "theirs")
    before = {name: (other / name).read_bytes() for name in files(other)}
    source = specforge(tmp_path / "dump") if to == "specforge" else v1(tmp_path / "dump")
    options: dict[str, Any] = {"request": KNOWN, "lose": ["loss-mask"] if to == "trace" else []}
    with pytest.raises(OutputExists, match="was not written by a conversion of several samples"):
        convert(str(source), other, to, force=True, **options)
    assert {name: (other / name).read_bytes() for name in files(other)} == before
    convert(str(source), tmp_path / "out", to, **options)
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(OutputExists, match=r"holds 'notes.txt', which is nothing of the layout"):
        convert(str(source), tmp_path / "out", to, force=True, **options)
    (tmp_path / "out/notes.txt").unlink()
    convert(str(source), tmp_path / "out", to, force=True, **options)


def test_an_unfinished_conversion_of_another_kind_is_not_mixed_in(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    broken = (source / "data_4.pt").read_bytes()
    (source / "data_4.pt").write_bytes(b"broken")
    with pytest.raises(DrafttraceError, match="Sample #4"):
        convert(str(source), tmp_path / "out", "safetensors")
    (source / "data_4.pt").write_bytes(broken)
    with pytest.raises(OutputExists, match=r"its lose is .*, not .*begin anew with --force"):
        convert(str(source), tmp_path / "out", "safetensors", lose=["loss-mask"])
    convert(str(source), tmp_path / "out", "safetensors", lose=["loss-mask"], force=True)
    assert {open_capture(f"{tmp_path / 'out'}#{i}").mask for i in range(5)} == {None}


@pytest.mark.parametrize("killed", [False, True])
def test_a_refusal_of_the_first_sample_is_in_nobodys_way(killed: bool, tmp_path: Path) -> None:
    """The same command with the option that the refusal asked for met the folder of the refused one."""
    source = v1(tmp_path / "dump")
    with pytest.raises(DrafttraceError, match=r"Sample #0 .*give it up with --lose layer-ids"):
        convert(str(source), tmp_path / "out", "speculators")
    assert os.listdir(tmp_path) == ["dump"]
    if killed:  # before anything was done
        (tmp_path / ".out.unfinished").mkdir()
        (tmp_path / ".out.unfinished/.drafttrace-unfinished.jsonl").write_text('{"source": "x"}\n')
    convert(str(source), tmp_path / "out", "speculators", lose=["layer-ids"])
    assert len(open_collection(tmp_path / "out").refs) == 5


def test_a_folder_of_another_is_not_written_into(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    (tmp_path / ".out.unfinished").mkdir()
    (tmp_path / ".out.unfinished/mine").write_text("mine")
    with pytest.raises(OutputExists, match="holds something else"):
        convert(str(source), tmp_path / "out", "safetensors", force=True)
    assert (tmp_path / ".out.unfinished/mine").read_text() == "mine"


def test_a_conversion_into_a_linked_folder_fills_that(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    convert(str(source), tmp_path / "out", "safetensors")
    assert (tmp_path / "out").is_symlink()
    assert len(open_collection(tmp_path / "disk").refs) == 5


def test_the_folder_that_one_is_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell would have been left in a folder that is no more."""
    source = v1(tmp_path / "dump")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    with pytest.raises(OutputExists, match="is the folder that you are in"):
        convert(str(source), Path("."), "safetensors")
    assert sorted(os.listdir(tmp_path)) == ["dump", "out"]


def test_a_dump_is_not_converted_into_itself(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    before = files(source)
    for out in (source, source / "out"):
        with pytest.raises(OutputExists, match="must not replace what it reads"):
            convert(str(source), out, "speculators-v1", force=True)
    assert files(source) == before


def test_a_full_disk_leaves_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = v1(tmp_path / "dump")
    from drafttrace.tracer import convert_layouts

    real = convert_layouts.write_torch

    def full(path: Path, value: Any) -> None:
        if path.name == "data_2.pt":
            raise OSError(28, "No space left on device")
        real(path, value)

    monkeypatch.setattr(convert_layouts, "write_torch", full)
    with pytest.raises(OutputExists, match="No space left"):
        convert(str(source), tmp_path / "out", "speculators-v1")
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    convert(str(source), tmp_path / "out", "speculators-v1")
    assert len(open_collection(tmp_path / "out").refs) == 5
