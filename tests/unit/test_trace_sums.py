"""A byte that changed after it was written is found when it is read, in every tensor and row table of a trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from trace_samples import LAYOUT, bits, write_sample

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import redact
from drafttrace.tracer.trace.reader import read_rows, read_trace
from drafttrace.tracer.trace.sums import row_sums

TENSORS = [f"target/{spec.name}" for spec in LAYOUT.target] + [
    f"draft/{spec.name}"
    for spec in LAYOUT.draft
    if spec.name != "hidden_in"  # never written: no bytes to flip
]


def read_whole(path: Path) -> Capture:
    """Every byte that a comparison may look at."""
    capture = read_trace(path)
    for slot in (
        *capture.slots,
        *([capture.embed] if capture.embed else []),
        *([capture.last] if capture.last else []),
    ):
        slot.rows.floats()
    for rows in capture.boundaries.values():
        rows.floats()
    if capture.draft is not None:
        for rows in capture.draft.tensors.values():
            rows.floats()
    return capture


def flip(path: Path, name: str, row: int, bit: int) -> None:
    """Turn one bit of one row round, on the disk."""
    with h5py.File(path, "r") as file:
        dataset = file[name]
        size = dataset.id.get_type().get_size() * int(np.prod(dataset.shape[1:], dtype=int))
        info = dataset.id.get_chunk_info_by_coord((row - row % dataset.chunks[0], *([0] * (dataset.ndim - 1))))
        at = info.byte_offset + (row % dataset.chunks[0]) * size + bit // 8 % size
    with path.open("r+b") as raw:
        raw.seek(at)
        byte = raw.read(1)[0]
        raw.seek(at)
        raw.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize("name", [*TENSORS, "target/rows", "draft/rows", "target/sums", "draft/sums"])
def test_a_flipped_bit_in_any_tensor_is_found(name: str, tmp_path: Path) -> None:
    """3 of 12 traces with flipped bytes gave a confident mismatch."""
    whole = write_sample(tmp_path / "whole.h5")
    read_whole(whole)
    rng = np.random.default_rng(len(name))
    with h5py.File(whole, "r") as file:
        count = len(file[name])
    for _ in range(12):
        row, bit = int(rng.integers(count)), int(rng.integers(1 << 12))
        path = Path(shutil.copy(whole, tmp_path / "t.h5"))
        flip(path, name, row, bit)
        with pytest.raises(
            UnreadableFile, match=r"is damaged: row .* of /(target|draft)/.* checksum differs"
        ) as caught:
            read_whole(path)
        text = str(caught.value)
        assert "\n" not in text
        if not name.endswith("sums"):
            assert f"row {row} of /{name} " in text


def test_every_row_that_is_whole_is_still_read(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "t.h5")
    flip(path, "target/aux/1", 9, 5)
    rows = read_trace(path).slots[1].rows
    assert rows.raw(0, 9).shape == (9, rows.width)
    assert rows.raw(10, len(rows)).shape == (len(rows) - 10, rows.width)
    with pytest.raises(UnreadableFile, match="row 9 of /target/aux/1 "):
        rows.raw(8, 11)


def test_traces_of_older_writers_are_read_without(tmp_path: Path) -> None:
    """They have no sums: nothing is checked, and nothing is refused."""
    path = write_sample(tmp_path / "t.h5")
    with h5py.File(path, "r+") as file:
        del file["target/sums"], file["draft/sums"]
    flip(path, "target/aux/1", 9, 5)
    read_whole(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file["target/sums"].attrs.modify("summed", b"[1"),
        lambda file: file["target/sums"].attrs.modify("summed", b'"rows"'),
        lambda file: file["target/sums"].resize(3, axis=0),
        lambda file: file["target/sums"].attrs.__delitem__("summed"),
    ],
)
def test_sums_that_make_no_sense_are_one_sentence(spoil: Any, tmp_path: Path) -> None:
    path = write_sample(tmp_path / "t.h5")
    with h5py.File(path, "r+") as file:
        spoil(file)
    with pytest.raises(UnreadableFile) as caught:
        read_whole(path)
    assert "\n" not in str(caught.value)


def test_a_redacted_copy_has_its_own_sums_and_keeps_known_damage_known(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "t.h5")
    redact.redact(path, tmp_path / "hidden.h5")
    read_whole(tmp_path / "hidden.h5")
    flip(tmp_path / "hidden.h5", "draft/topk/ids", 2, 9)
    with pytest.raises(UnreadableFile, match="row 2 of /draft/topk/ids"):
        read_whole(tmp_path / "hidden.h5")
    flip(path, "target/last", 4, 77)
    redact.redact(path, tmp_path / "again.h5")
    with pytest.raises(UnreadableFile, match="row 4 of /target/last"):
        read_whole(tmp_path / "again.h5")
    redact.redact(path, tmp_path / "less.h5", drop_embeddings=True)
    with h5py.File(tmp_path / "less.h5", "r") as file:
        assert "embed" not in json.loads(file["target/sums"].attrs["summed"])


def test_the_rows_of_an_unfinished_trace_are_checked(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "t.h5", finish=False)
    assert len(read_whole(path).table) == len(read_rows(path))
    flip(path, "target/aux/0", 3, 8)
    with pytest.raises(UnreadableFile, match="row 3 of /target/aux/0 "):
        read_whole(path)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 64])
@pytest.mark.parametrize("dtype", list(DType))
def test_one_flipped_bit_changes_the_sum_of_its_row_alone(dtype: DType, width: int) -> None:
    rows = bits((7, width), width, dtype)
    before = row_sums(rows)
    stored = rows.view(np.uint8).reshape(7, -1)
    for byte in range(stored.shape[1]):
        for bit in range(8):
            stored[4, byte] ^= 1 << bit
            assert (row_sums(rows) != before).tolist() == [k == 4 for k in range(7)]
            stored[4, byte] ^= 1 << bit


def test_a_token_that_changed_is_told_by_the_rows(tmp_path: Path) -> None:
    """The list of tokens has no checksum: 'the token ids differ', said of a damaged copy."""
    path = Path(shutil.copy(Path(__file__).parents[2] / "traces/tiny-kimi/fixed.h5", tmp_path))
    assert not read_trace(path).notes
    with h5py.File(path, "r+") as file:
        right = int(file["tokens/ids"][3])
        file["tokens/ids"][3] = right ^ 1
    (note,) = read_trace(path).notes
    assert note.startswith(f"token 3 is {right} in the row that the server computed and {right ^ 1} in the list")
    with h5py.File(path, "r+") as file:  # a picture: other ids in the forward pass than in the request
        file["tokens/ids"][3:20] = 5
    assert not read_trace(path).notes
