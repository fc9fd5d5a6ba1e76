"""Chunks that are larger than the memory that a look may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dump_layouts as made
import dump_variants as variants
import h5py
import numpy as np
import pytest

from drafttrace.tracer.dumps import hdf5_chunks, hdf5_file
from drafttrace.tracer.dumps.registry import FieldMap
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]
MAP = FieldMap(slots=("a",), tokens="ids")
MEASURED = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def peak(arguments: list[str]) -> tuple[int, int]:
    """Exit code of drafttrace and its largest resident memory in bytes."""
    command = [sys.executable, "-c", MEASURED, "-m", "drafttrace.tracer.cli", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    code, size = done.stdout.split()
    return int(code), int(size)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("form", [{}, {"compression": "gzip", "compression_opts": 1}])
def test_a_single_chunk_of_245_megabytes_takes_less_than_300(form: dict[str, Any], tmp_path: Path) -> None:
    """It took 530: HDF5 held the chunk packed and unpacked. The numbers are random, so that packing gains nothing."""
    path, rows = tmp_path / "mine.h5", 15_000
    with h5py.File(path, "w") as file:
        noise = np.random.default_rng(0).integers(0, 2**15, (rows, 8192), np.uint16).view(np.float16)
        file.create_dataset("a", data=noise, chunks=(rows, 8192), **form)
        file["ids"] = np.arange(rows)
    assert path.stat().st_size > 200 << 20
    code, size = peak(["inspect", str(path), "--slots", "a", "--tokens", "ids"])
    assert code in {0, 1}
    assert size < 300 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_file, "_KEPT_CHUNKS", 100)
    monkeypatch.setattr(hdf5_chunks, "_MOST_KEPT", 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("chunks", [(40, 16), (16, 16), (7, 5), (64, 3)])
@pytest.mark.parametrize("form", [{"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {},
                                  {"compression": "lzf"}, {"compression": "gzip", "fletcher32": True}])  # fmt: skip
def test_large_chunks_hold_what_hdf5_reads(
    form: dict[str, Any], chunks: tuple[int, int], dtype: type, tmp_path: Path
) -> None:
    values = np.random.default_rng(1).standard_normal((64, 16)).astype(dtype)
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=chunks, **form)
        file["ids"] = np.arange(64)
    rows = open_capture(str(tmp_path / "mine.h5"), mapping=MAP).slots[0].rows
    assert np.array_equal(rows.raw(0, 64), values)
    assert np.array_equal(rows.raw(9, 33), values[9:33])
    index = np.array([63, 0, 17, 18, 40])
    assert np.array_equal(rows.take_raw(index)[0], values[index])


@pytest.mark.usefixtures("small")
def test_gzip_chunks_are_streamed_and_the_others_are_not(tmp_path: Path) -> None:
    values = np.ones((64, 16), np.float32)

    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["ids"] = np.arange(64)
        for name, form in (("a", {"compression": "gzip"}), ("b", {"compression": "lzf"})):
            file.create_dataset(name, data=values, chunks=(64, 16), **form)
    capture = open_capture(str(tmp_path / "mine.h5"), mapping=FieldMap(slots=("a", "b"), tokens="ids"))
    kinds = [type(slot.rows._tensor.source).__name__ for slot in capture.slots]  # type: ignore[attr-defined]
    assert kinds == ["DeflatedChunks", "_Chunked"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_damaged_chunk_is_one_sentence(shuffle: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.h5"
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(2).standard_normal((64, 16))
        data = file.create_dataset("a", data=values, chunks=(64, 16), compression="gzip", shuffle=shuffle)
        file["ids"] = np.arange(64)
        about = data.id.get_chunk_info(0)
    whole = path.read_bytes()
    for at in (about.byte_offset, about.byte_offset + about.size // 2, about.byte_offset + about.size - 4):
        path.write_bytes(whole[:at] + b"\xff\xff\xff" + whole[at + 3 :])
        rows = open_capture(str(path), mapping=MAP).slots[0].rows
        with pytest.raises(UnreadableFile, match=r"The chunk at \[0, 0\] of '/a' .*copy or write it again") as told:
            rows.raw(0, 64)
        assert "\n" not in str(told.value)


def test_a_contiguous_dataset_of_bf16_is_no_half_written_one(tmp_path: Path) -> None:
    """h5py shows bf16 as float32: '416 of its 832 bytes were written; whoever wrote it stopped early'."""
    path = variants.write_h5(tmp_path)
    with h5py.File(path, "r") as file:
        assert file["s2"].chunks is None and file["s2"].dtype.itemsize == 4
    capture = open_capture(str(path), mapping=variants.MAP)
    for slot, boundary in zip(capture.slots, made.CANON, strict=True):
        assert np.array_equal(slot.rows.raw(0, made.LENGTH), variants.storage(made.state(boundary)))
