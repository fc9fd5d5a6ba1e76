"""Where a conversion may write: folders are folders, and nobody's file or dump is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from convert_dumps import KNOWN, files, specforge, v1, write_v1
from safetensors.torch import save_file

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
    with pytest.raises(OutputExists, match=r"it was begun without --lose loss-mask; .*--force"):
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
        with pytest.raises(OutputExists, match="must not replace what is read"):
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


# --- one file ------------------------------------------------------------------------------------------------

ONE = {"trace": ["loss-mask"], "safetensors": [], "specforge": ["layer-ids", "boundaries"]}


def specforge_source(folder: Path, to: str) -> str:
    """A sample that the layout can hold: SpecForge stores its last state after the norm."""
    if to == "specforge":
        return str(specforge(folder, [0]))
    return str(v1(folder, [0]))


@pytest.mark.parametrize(
    ("to", "name", "better"),
    [
        ("safetensors", "y.pt", "y.safetensors"),
        ("safetensors", "y.h5", "y.safetensors"),
        ("safetensors", "llama-3.1.JSON", "llama-3.1.safetensors"),
        ("specforge", "y2.safetensors", "y2.ckpt"),
        ("specforge", "y2.ckpt.gz", "y2.ckpt"),
        ("trace", "t.pt", "t.h5"),
    ],
)
def test_a_file_is_not_named_like_another_layout(to: str, name: str, better: str, tmp_path: Path) -> None:
    """A torch pickle named ``.safetensors`` was written without a word, and no other tool could load it."""
    source = specforge_source(tmp_path / "dump", to)
    for force in (False, True):
        with pytest.raises(OutputExists) as refused:
            convert(source, tmp_path / name, to, request=KNOWN, lose=ONE[to], force=force)
        assert str(refused.value).endswith(f"give a name such as '{tmp_path / better}'.")
    assert os.listdir(tmp_path) == ["dump"]
    convert(source, tmp_path / better, to, request=KNOWN, lose=ONE[to])
    assert open_capture(str(tmp_path / better)).tokens.tolist() == open_capture(source).tokens.tolist()


@pytest.mark.parametrize("name", ["states", "llama-3.1", "mine.state"])
@pytest.mark.parametrize("to", ONE)
def test_a_name_that_says_nothing_is_a_file_all_the_same(to: str, name: str, tmp_path: Path) -> None:
    source = specforge_source(tmp_path / "dump", to)
    convert(source, tmp_path / name, to, request=KNOWN, lose=ONE[to])
    assert open_capture(str(tmp_path / name)).tokens.tolist() == open_capture(source).tokens.tolist()


def test_every_layout_of_one_file_takes_the_ending_that_it_uses_itself() -> None:
    for layout in OUT_LAYOUTS.values():
        assert layout.folder or Path(layout.name(0)).suffix == layout.endings[0]


def weights(path: Path) -> None:
    save_file({"model.norm.weight": torch.ones(4)}, path)


@pytest.mark.parametrize("to", ONE)
@pytest.mark.parametrize("what", ["note", "json", "weights", "pickle", "link"])
def test_force_replaces_no_users_file(what: str, to: str, tmp_path: Path) -> None:
    """``--force`` replaced whatever stood there."""
    source, out = specforge_source(tmp_path / "dump", to), tmp_path / "mine"
    {
        "note": lambda: out.write_text("what I saw\n"),
        "json": lambda: out.write_text('{"a": 1}'),
        "weights": lambda: weights(out),
        "pickle": lambda: torch.save({"optimizer": torch.ones(3)}, out),
        "link": lambda: out.symlink_to(tmp_path / "nowhere"),
    }[what]()
    before = None if what == "link" else out.read_bytes()
    for force in (False, True):
        with pytest.raises(OutputExists, match="is no trace and no dump that can be read, so nothing replaces it"):
            convert(source, out, to, request=KNOWN, lose=ONE[to], force=force)
    assert out.is_symlink() if what == "link" else out.read_bytes() == before


@pytest.mark.parametrize("to", ONE)
def test_force_replaces_what_a_conversion_to_one_file_could_have_written(to: str, tmp_path: Path) -> None:
    source, out = specforge_source(tmp_path / "dump", to), tmp_path / "out"
    out.write_bytes(b"")
    convert(source, out, to, request=KNOWN, lose=ONE[to], force=True)
    for other in ONE:
        old = tmp_path / f"old-{other}"
        convert(specforge_source(tmp_path / f"dump-{other}", other), old, other, request=KNOWN, lose=ONE[other])
        with pytest.raises(OutputExists, match="or --force to replace it"):
            convert(source, old, to, request=KNOWN, lose=ONE[to])
        convert(source, old, to, request=KNOWN, lose=ONE[to], force=True)
        assert open_capture(str(old)).tokens.tolist() == open_capture(source).tokens.tolist()


def test_a_folder_of_one_sample_may_be_empty_and_holds_no_users_file(tmp_path: Path) -> None:
    """'give an empty folder', it said, and refused that, too."""
    source, out = str(v1(tmp_path / "dump", [0])), tmp_path / "out"
    out.mkdir()
    convert(source, out, "speculators-v1")
    with pytest.raises(OutputExists, match="or --force to replace it"):
        convert(source, out, "speculators-v1")
    convert(source, out, "speculators-v1", force=True)
    (out / "data_0.pt").write_text("what I saw")
    with pytest.raises(OutputExists, match="nothing replaces it"):
        convert(source, out, "speculators-v1", force=True)
    assert (out / "data_0.pt").read_text() == "what I saw"
