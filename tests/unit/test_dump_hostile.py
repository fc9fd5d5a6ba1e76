"""Files and targets that a verifier broke the readers with: each test is named after what went wrong."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import stat
import struct
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import dump_layouts as made
import h5py
import numpy as np
import pytest
import torch

from drafttrace.tracer import cli, output
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.dumps.folder_files import sample_files
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.open import is_trace_file, open_capture
from drafttrace.tracer.reference import make_reference

TARGET = Path(__file__).resolve().parents[2] / "pairs/tiny-llama/target"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


# t = (t, t), sixty times: a few hundred bytes that mean 2^60 parts, and the same with lists.
TUPLES = b"K\x01\x85q\x00" + b"0h\x00h\x00\x86q\x00" * 60
LISTS = b"]q\x00" + b"0](h\x00h\x00eq\x00" * 60


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02}" + TUPLES + b"K\x01s.",  # as a key, whose hash is taken
        b"\x80\x02}(" + TUPLES + b"K\x01u.",
        b"\x80\x02(" + TUPLES + b"K\x01d.",
        b"\x80\x02ccollections\nOrderedDict\n](" + TUPLES + b"K\x01\x86e\x85R.",
        b"\x80\x04" + TUPLES + b"h\x00\x93.",  # as a name, which is printed
        b"\x80\x02(" + text("storage") + b"ctorch\nFloatStorage\n" + TUPLES + text("cpu") + b"K\x04tQ.",
        b"\x80\x02cnumpy\ndtype\n" + TUPLES + b"\x85R.",
        b"\x80\x02}" + text("input_ids") + LISTS + b"s.",  # as a value, which readers walk
        b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
        b"\x80\x02}q\x00" + text("a") + b"h\x00s.",
    ],
)
def test_a_pickle_that_repeats_its_parts_without_end_is_refused(pickled: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data_0.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    with pytest.raises(UnreadableFile):
        open_capture(str(tmp_path / "data_0.pt"))


def said(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command line says on standard error, with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["drafttrace", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("drafttrace: ")
    assert "\n" not in told
    return told


@pytest.mark.parametrize("option", ["FILE", "--target"])
def test_a_name_that_is_too_long_is_no_traceback(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(made.sf_sample(), tmp_path / "data_0.ckpt")
    arguments = ["a" * 300] if option == "FILE" else [str(tmp_path / "data_0.ckpt"), "--target", "a" * 300]
    assert "cannot be" in said(["inspect", *arguments], monkeypatch, capsys)


@pytest.mark.parametrize("error", [OSError(errno.ESTALE, "Stale file handle", "x.pt"), MemoryError()])
def test_an_error_of_the_machine_is_one_sentence(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr("drafttrace.tracer.inspecting.inspect_capture", fails)
    told = said(["inspect", str(tmp_path)], monkeypatch, capsys)
    assert "Stale file handle" in told or "memory" in told


def test_a_file_that_cannot_be_read_is_no_trace() -> None:
    assert not is_trace_file(Path("a" * 300))
    if Path("/proc/self/mem").exists():
        assert not is_trace_file(Path("/proc/self/mem"))  # opens, and fails to read


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    """Dumps often lie on another disk; a link to a folder above would never end."""
    elsewhere, dump = tmp_path / "disk", tmp_path / "dump"
    elsewhere.mkdir()
    dump.mkdir()
    for number in range(2):
        torch.save(made.sf_sample(), elsewhere / f"data_{number}.ckpt")
    (dump / "hidden").symlink_to(elsewhere)
    (dump / "again").symlink_to(elsewhere)
    (dump / "up").symlink_to(tmp_path)
    (elsewhere / "loop").symlink_to(dump)
    assert [path.name for path in sample_files(dump)] == ["data_0.ckpt", "data_1.ckpt"]


def test_a_user_without_a_home_finds_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for number in range(9):
        ids = made.tokens() + number
        torch.save(made.sf_sample() | {"input_ids": ids}, tmp_path / f"data_{number}.ckpt")
    like = open_capture(str(tmp_path / "data_4.ckpt"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(homeless))
    assert open_capture(str(tmp_path), like=like).sample == 4


def test_a_plain_hdf5_file_says_what_it_holds(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ids"] = np.arange(3)
        file.create_group("states")["s0"] = np.zeros((3, 4), np.float16)
    with pytest.raises(DrafttraceError, match=r"the fields 'ids', 'states/s0', .*--slots"):
        open_capture(str(tmp_path / "a.h5"))


@pytest.mark.parametrize("part", [0.05, 0.4, 0.95])
def test_a_trace_that_was_cut_off_is_told_so_by_every_command(
    part: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was taken for a dump of an unknown layout, with "no fields"."""
    trace = tmp_path / "t.h5"
    shutil.copy(TARGET.parents[2] / "traces/tiny-kimi/fixed.h5", trace)
    os.truncate(trace, int(part * trace.stat().st_size))
    for arguments in (["inspect", str(trace)], ["diff", str(trace), str(TARGET.parent / "dump")]):
        assert "cut off" in said(arguments, monkeypatch, capsys)


def test_another_number_of_layer_ids_is_refused(tmp_path: Path) -> None:
    torch.save(made.sf_sample(), tmp_path / "data_0.ckpt")
    (tmp_path / "v1").mkdir()
    made.write_spec_v1(tmp_path / "v1")
    for path in (tmp_path / "data_0.ckpt", tmp_path / "v1/data_0.pt"):
        with pytest.raises(DrafttraceError, match="6 layer ids are given"):
            open_capture(str(path), request=Request(layer_ids=(1, 2, 3, 4, 5, 6), lenient=True))
    capture = open_capture(str(tmp_path / "data_0.ckpt"), request=Request(layer_ids=(1, 3, 4)))
    assert capture.wiring == (2, 4, 5)


def test_a_machine_form_goes_into_a_pipe_and_through_a_link(tmp_path: Path) -> None:
    """``--json /dev/stdout`` must not replace the device by a file, nor a link by its content."""
    (tmp_path / "real.json").write_text("# drafttrace: an older report")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    output.write_text(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    output.write_text(fifo, "{}")
    assert os.read(reader, 10) == b"{}"
    os.close(reader)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_full_disk_is_said() -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(DrafttraceError, match="No space left"):
        output.write_text(Path("/dev/full"), "{}")
    assert Path("/dev/full").is_char_device()


def test_a_reference_of_a_target_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """transformers fills them with random numbers, and the reference would be noise."""
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    config = json.loads((target / "config.json").read_text())
    for name, value, what in (
        ("num_hidden_layers", config["num_hidden_layers"] + 1, r"lacks \d+ weights.*layers\.16\."),
        ("intermediate_size", config["intermediate_size"] + 8, "(wrong shape|cannot load)"),
    ):
        (target / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(UnreadableFile, match=what):
            make_reference(target, [np.arange(5)], tmp_path / "r.safetensors")
        assert not (tmp_path / "r.safetensors").exists()


def test_a_target_that_cannot_be_run_on_its_device_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DrafttraceError, match=r"cannot be run on 1 x 5 tokens on meta .*--device-map") as told:
        make_reference(TARGET, [np.arange(5)], tmp_path / "r.safetensors", device_map="meta")
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_asked_for_without_cuda_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reference", "--target", str(TARGET), "--prompt", "Bob", "-o", str(tmp_path / "r.safetensors")]
    assert "--device-map cuda" in said([*arguments, "--device-map", "cuda"], monkeypatch, capsys)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 7",)


def test_a_target_with_code_in_its_weights_says_what_it_wants(tmp_path: Path) -> None:
    """torch's own message advises to load the file with weights_only=False."""
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    (target / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Bomb()}, target / "pytorch_model.bin")
    for read in (lambda: open_checkpoint(target), lambda: make_reference(target, [np.arange(5)], tmp_path / "r")):
        with pytest.raises(
            UnreadableFile, match=r"wants to run 'posix\.system', and drafttrace runs no code"
        ) as told:
            read()
        assert "weights_only" not in str(told.value)


def test_no_room_to_inflate_is_not_called_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made.write_sf_gz(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(UnreadableFile, match=r"cannot be inflated into .*No such file"):
        open_capture(str(path))


def test_a_gzip_bomb_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "data_0.ckpt.gz"
    block = gzip.compress(bytes(64 << 20))
    path.write_bytes(gzip.compress(b"PK\x03\x04") + block * 17)  # members follow each other: 1.1 GiB
    with pytest.raises(UnreadableFile, match="500 times its size"):
        open_capture(str(path))


@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_that_is_a_tensor_is_read_by_its_value(flag: bool, tmp_path: Path) -> None:
    torch.save(made.mo_sample(hidden_states_prenorm=torch.tensor(flag)), tmp_path / "c.pt")
    last = open_capture(str(tmp_path / "c.pt")).last
    assert last is not None
    assert last.norm == ("pre" if flag else "post")


def test_a_zip_entry_without_a_name_is_no_traceback(tmp_path: Path) -> None:
    """Python 3.11's zipfile stumbles over one when it is asked whether it is a folder (found by the fuzz)."""
    path = tmp_path / "mine.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ab", b"nothing")
    path.write_bytes(path.read_bytes().replace(b"ab", b"\0b"))  # a name ends at its first null byte
    with pytest.raises(DrafttraceError) as caught:
        open_capture(str(path))
    assert "\n" not in str(caught.value)


def test_an_hdf5_file_of_a_version_that_there_is_none_of_is_refused(tmp_path: Path) -> None:
    """Byte 8 of the file is the version of its superblock (found by the fuzz)."""
    path = tmp_path / "mine.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes([200]) + bytes(200))
    with pytest.raises(DrafttraceError) as caught:
        open_capture(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="this system has no /dev/shm")
def test_a_trace_in_shared_memory_is_not_replaced_by_a_report() -> None:
    """What lies below /dev was taken for a device, and written over."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        trace = Path(folder, "t.h5")
        shutil.copy(TARGET.parents[2] / "traces/tiny-kimi/fixed.h5", trace)
        before = trace.read_bytes()
        with pytest.raises(DrafttraceError):
            output.write_text(trace, "report")
        assert trace.read_bytes() == before


def test_a_header_of_an_array_that_python_cannot_tokenize_is_one_sentence(tmp_path: Path) -> None:
    """numpy hands it to Python's tokenizer, which has errors of its own (found by the fuzz)."""
    path = tmp_path / "mine.npz"
    np.savez(path, a=np.zeros((3, 4), np.float32), ids=np.arange(3))
    whole = path.read_bytes()
    for broken in (b"{(descr'", b"{\0descr'", b"'''escr'", b"[" * 8):
        path.write_bytes(whole.replace(b"{'descr'", broken, 1))
        with pytest.raises(UnreadableFile, match="no readable header") as caught:
            open_capture(str(path), mapping=FieldMap(slots=("a",), tokens="ids"))
        assert "\n" not in str(caught.value)
