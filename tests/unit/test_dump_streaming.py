"""Dumps are read in blocks, from files that may become shorter meanwhile; nothing needs a sample's size of memory."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dump_layouts as made
import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from drafttrace.tracer import cli
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.dumps import document, file_tensor, hdf5_file, slabs, torch_file
from drafttrace.tracer.dumps.arrow_masks import mask_for
from drafttrace.tracer.dumps.arrow_stream import batches_of
from drafttrace.tracer.dumps.registry import FieldMap
from drafttrace.tracer.dumps.tensor import STORAGE
from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter
from drafttrace.tracer.dumps.write_torch import Planned, write_torch
from drafttrace.tracer.errors import OutputExists, UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]
MAP = FieldMap(slots=("a", "b", "c"), tokens="ids", last="last", last_norm="pre", boundaries=(2, 4, 5))
ROWS, WIDTH = 12800, 4096
ALLOWED = 300 << 20


# --- memory --------------------------------------------------------------------------------------------------


def large_h5(path: Path) -> Path:
    """Three slots side by side and a last state, 840 MB of float32 once unpacked, in compressed chunks."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["ids"] = np.arange(ROWS) % 1000
        for name, parts in (("fused", 3), ("last", 1)):
            shape = (ROWS, parts * WIDTH)
            dataset = file.create_dataset(name, shape, np.float32, chunks=(128, parts * WIDTH), compression="lzf")
            for start in range(0, ROWS, 128):
                rows = rng.standard_normal((128, 64), np.float32)
                # No two slots are equal: that would be a fault of the dump.
                dataset[start : start + 128] = np.concatenate(
                    [np.tile(rows * (k + 1), (1, WIDTH // 64)) for k in range(parts)], 1
                )
    return path


# The system counts what stood in memory before a process became another program, so a small one must start it.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def peak(arguments: list[str]) -> tuple[int, int]:
    """Exit code of a Python process and its largest resident memory in bytes."""
    command = [sys.executable, "-c", MEASURED, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    code, size = done.stdout.split()
    return int(code), int(size)


def test_the_measure_of_memory_sees_what_a_process_holds() -> None:
    _code, base = peak(["-c", "pass"])
    assert base < 64 << 20
    assert peak(["-c", "held = b'x' * (200 << 20)"])[1] - base > 190 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_a_chunked_file_three_times_the_allowed_memory_goes_through_every_command(tmp_path: Path) -> None:
    source = str(large_h5(tmp_path / "mine.h5"))
    says = ["--slots", "fused", "--tokens", "ids", "--last", "last", "--last-norm", "pre", "--hidden-size", str(WIDTH),
            "--boundaries", "B2,B4,B5"]  # fmt: skip
    stacked = str(tmp_path / "stacked.safetensors")
    target = str(tmp_path / "target")
    write_config(tmp_path / "target")
    _code, base = peak(["-c", "pass"])
    tool = ["-m", "drafttrace.tracer.cli"]
    runs = [
        (["inspect", source, *says], 0),
        (["convert", source, stacked, "--to", "safetensors", "--target", target, *says], 0),
        (["convert", source, str(tmp_path / "v1"), "--to", "speculators-v1", "--mask-ones", *says], 0),
        (["convert", stacked, str(tmp_path / "trace.h5"), "--to", "trace"], 0),
        (["inspect", str(tmp_path / "v1")], 0),
        (["inspect", str(tmp_path / "trace.h5")], 0),
        (["diff", stacked, source, *says], None),
    ]
    grown = {}
    for arguments, wanted in runs:
        code, most = peak([*tool, *arguments])
        assert code in ({0, 1} if wanted is None else {wanted}), arguments
        grown[" ".join(arguments[:1] + arguments[-1:])] = most - base
    assert max(grown.values()) < ALLOWED, {name: f"{value / 1e6:.0f} MB" for name, value in grown.items()}


def write_config(folder: Path) -> None:
    folder.mkdir()
    config = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": WIDTH, "vocab_size": 1000}
    (folder / "config.json").write_text(json.dumps(config))


def test_a_compressed_npz_is_inflated_once_and_not_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    states = {name: made.state(k).float().numpy() for k, name in enumerate(("a", "b", "c", "last"))}
    np.savez_compressed(path, ids=made.tokens().numpy(), **states)
    capture = open_capture(str(path), mapping=MAP)
    for slot, name in zip(capture.slots, "abc", strict=True):
        source = slot.rows._tensor.source  # type: ignore[attr-defined]
        assert source._inner is None  # its header was enough so far
        slot.rows.raw(0, 1)
        assert isinstance(source._inner, file_tensor.FileSource)
        assert np.array_equal(slot.rows.floats(), states[name])


@pytest.mark.parametrize("form", ["pickle", "json", "hdf5"])
def test_what_can_only_be_read_whole_says_its_limit_and_another_way(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = np.zeros((50, 40), np.float32)
    if form == "pickle":
        monkeypatch.setattr(torch_file, "_MOST_HELD", 1000)
        path, remedy = tmp_path / "a.pkl", "torch.save"
        path.write_bytes(pickle.dumps({"a": states}))
    elif form == "json":
        monkeypatch.setattr(document, "_JSON_LIMIT", 1000)
        path, remedy = tmp_path / "a.json", "safetensors"
        path.write_text(json.dumps({"a": states.tolist()}))
    else:
        monkeypatch.setattr(hdf5_file, "MOST_CHUNK", 1000)
        path, remedy = tmp_path / "a.h5", "safetensors"
        with h5py.File(path, "w") as file:
            file.create_dataset("a", data=states, chunks=(50, 40), compression="gzip")
    with pytest.raises(UnreadableFile, match=f"only be read whole, up to 1,000 .*{remedy}") as caught:
        open_capture(str(path), mapping=FieldMap(slots=("a",)))
    assert "\n" not in str(caught.value)


def test_a_hundred_open_samples_need_no_hundred_descriptors(tmp_path: Path) -> None:
    paths = [tmp_path / f"s{k}.safetensors" for k in range(100)]
    for k, path in enumerate(paths):
        states = np.full((3, 2, 8), k, np.float32)
        save_file({"hidden_states": states, "token_ids": np.arange(3)}, path)
    captures = [open_capture(str(path)) for path in paths]
    for _ in range(2):
        for k, capture in enumerate(captures):
            assert (capture.slots[0].rows.floats() == k).all()
    mine = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd.isdigit()
            if os.path.islink(f"/proc/self/fd/{fd}")]  # fmt: skip
    assert sum(str(tmp_path) in name for name in mine) <= 64


def test_a_file_that_was_replaced_is_not_taken_for_the_one_that_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    path.write_bytes(bytes(100))
    file = FileBytes(path)
    file._close()
    (tmp_path / "new.bin").write_bytes(bytes(100))
    os.replace(tmp_path / "new.bin", path)
    with pytest.raises(UnreadableFile, match="replaced"):
        file.read(0, 10)


# --- files that become shorter while they are read -----------------------------------------------------------


def states() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    found: dict[str, np.ndarray] = {
        name: rng.standard_normal((3000, 64), np.float32) for name in ("a", "b", "c", "last")
    }
    return found | {"ids": np.arange(3000)}


def write_npz(path: Path) -> None:
    np.savez(path, **states())  # type: ignore[arg-type]


def write_torch_file(path: Path, **options: Any) -> None:
    torch.save({name: torch.from_numpy(value) for name, value in states().items()}, path, **options)


def write_h5(path: Path, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, value in states().items():
            file.create_dataset(name, data=value, **options)


WRITERS: dict[str, Callable[[Path], None]] = {
    "plain.npz": write_npz,
    "plain.safetensors": lambda path: save_file(states(), path),
    "zip.pt": write_torch_file,
    "legacy.pt": lambda path: write_torch_file(path, _use_new_zipfile_serialization=False),
    "plain.h5": write_h5,
    "chunked.h5": lambda path: write_h5(path, chunks=True),
    "packed.h5": lambda path: write_h5(path, chunks=True, compression="gzip"),
}


def read_states(capture: Capture) -> None:
    for rows in (*(slot.rows for slot in capture.slots), *((capture.last.rows,) if capture.last else ())):
        for start in range(0, len(rows), 500):
            rows.floats(start, min(len(rows), start + 500))


@pytest.mark.parametrize("name", WRITERS)
def test_a_dump_that_is_cut_off_while_it_is_open_is_one_sentence(name: str, tmp_path: Path) -> None:
    """A mapped file would kill the process with a bus error here, and HDF5 would make zeros of what is gone."""
    path = tmp_path / name
    WRITERS[name](path)
    capture = open_capture(str(path), mapping=MAP)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UnreadableFile, match="cut off while it was read") as caught:
        read_states(capture)
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_cut_off_while_it_is_open_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    shutil.copy(ROOT / "traces/tiny-kimi/fixed.h5", path)
    capture = open_capture(str(path))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UnreadableFile, match="cut off while it was read"):
        read_states(capture)


def test_inspect_of_a_dump_that_is_cut_off_meanwhile_ends_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from drafttrace.tracer import inspecting

    path = tmp_path / "mine.safetensors"
    save_file(states(), path)
    statistics = inspecting.statistics_together

    def later(*arguments: Any) -> Any:
        os.truncate(path, 1000)
        return statistics(*arguments)

    monkeypatch.setattr(inspecting, "statistics_together", later)
    monkeypatch.setattr(sys, "argv", ["drafttrace", "inspect", str(path), "--slots", "a,b", "--tokens", "ids"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "cut off while it was read: it has 1,000 bytes" in capsys.readouterr().err


def test_a_target_that_is_cut_off_while_it_is_open_is_one_sentence(tmp_path: Path) -> None:
    """As a download does that begins anew."""
    table = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    save_file({"w": table}, tmp_path / "model.safetensors")
    weights = open_checkpoint(tmp_path)
    for index in (None, slice(5, 900), slice(None, None, 7), np.array([3, 3, 999, 0]), -1):
        assert np.array_equal(weights.floats("w", index), table if index is None else table[index])
    os.truncate(tmp_path / "model.safetensors", 5000)
    for index in (None, slice(500, 900), np.array([3, 999])):
        with pytest.raises(UnreadableFile, match="cut off while it was read"):
            weights.floats("w", index)


def test_an_arrow_table_that_is_cut_off_meanwhile_is_a_note(tmp_path: Path) -> None:
    import pyarrow as pa

    path = tmp_path / "data.arrow"
    table = pa.table({"input_ids": [[1, 2, 3], [4, 5]] * 5000, "loss_mask": [[0, 1, 1], [1, 1]] * 5000})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    batches = batches_of(path)
    assert [batch.rows for batch in batches] == [1000] * 10
    assert batches[7].read().equals(table.to_batches(max_chunksize=1000)[7])
    mask, _folder, note = mask_for(tmp_path / "hs_9001.safetensors", np.array([4, 5]))
    assert mask is not None
    assert (mask.tolist(), note) == ([1, 1], "")
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UnreadableFile, match="cut off"):
        batches[9].read()
    assert "cannot be read" in mask_for(tmp_path / "hs_9001.safetensors", np.array([4, 5]))[2]


# --- any geometry --------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_every_box_of_every_geometry_is_what_numpy_sees(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    step, strides = 2, [0] * len(shape)
    for axis in order:
        strides[axis] = 0 if data.draw(st.integers(0, 9)) == 0 else step
        step *= shape[axis] + data.draw(st.integers(0, 2))
    begin = 2 * data.draw(st.integers(0, 3))
    path = tmp_path_factory.mktemp("box") / "x.bin"
    whole = np.arange((begin + step) // 2 + 1, dtype=np.uint16)
    path.write_bytes(whole.tobytes())
    truth = np.ndarray(shape, np.uint16, whole.tobytes(), begin, strides)
    source = file_tensor.FileSource(FileBytes(path), begin, tuple(shape), STORAGE["bf16"], strides)
    most = data.draw(st.sampled_from([1, 24, 1 << 20]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slabs, "SLAB_BYTES", most)
        for _ in range(4):
            box = []
            for size in shape:
                start = data.draw(st.integers(0, size - 1))
                box.append((start, data.draw(st.integers(0, size - start))))
            got = source.read(tuple(box))
            assert np.array_equal(got, truth[tuple(slice(a, a + n) for a, n in box)])


def test_a_block_that_somebody_holds_is_not_overwritten_by_the_next(tmp_path: Path) -> None:
    path = made.write_vllm(tmp_path)
    slots = open_capture(str(path)).slots
    first = slots[0].rows.raw(0, 6)
    kept = first.copy()
    for start, slot in itertools.product(range(0, made.LENGTH, 2), slots):
        slot.rows.raw(start, start + 2)
    slots[0].rows.raw(6, 12)
    assert np.array_equal(first, kept)
    assert not first.flags.writeable


# --- writing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64,
                                   torch.float8_e4m3fn, torch.float8_e5m2])  # fmt: skip
@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_written_in_blocks_is_one_that_torch_reads(dtype: torch.dtype, mapped: bool, tmp_path: Path) -> None:
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
             torch.int64: "int64", torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}  # fmt: skip
    kind = names[dtype]
    wide = torch.arange(60).reshape(1, 12, 5).to(dtype)
    stored = wide.view(torch.uint8).numpy().view(STORAGE[kind]).reshape(12, 5)
    planned = Planned(kind, (1, 12, 5), lambda: (stored[k : k + 5] for k in range(0, 12, 5)))
    write_torch(tmp_path / "x.pt", {"one": planned, "many": [planned, planned]})
    value = torch.load(tmp_path / "x.pt", weights_only=True, mmap=mapped)
    for tensor in (value["one"], *value["many"]):
        assert tensor.dtype is dtype
        assert torch.equal(tensor.view(torch.uint8), wide.view(torch.uint8))
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.testzip() is None
        file = FileBytes(tmp_path / "x.pt")
        places = [torch_file.member_of(tmp_path, file, archive, info).begin for info in archive.infolist()]
        assert all(place % 64 == 0 for place in places)


def test_a_full_disk_does_not_kill_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file with holes gives a bus error on a full disk: its room is taken first."""

    def full(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    writer = SafetensorsWriter(tmp_path / "x.safetensors", {"a": ("fp32", (4, 4))}, {})
    with pytest.raises(OutputExists, match="No space left"), writer:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_interpreter_closes_on_its_way_out_prints_nothing(tmp_path: Path) -> None:
    """'Exception ignored in FileBytes.__del__: NoneType has no attribute suppress', at the end of scripts."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom drafttrace.tracer import file_bytes\n"
        "file = file_bytes.FileBytes(Path(sys.argv[1]))\n"
        "gone = [name for name in vars(file_bytes) if not name.startswith('__')]\n"
        "vars(file_bytes).update(dict.fromkeys(gone))\n"
    )
    path = made.write_sf_eagle3(tmp_path)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
