"""Torch files of every form: geometry outside the storage, old and compressed containers, arrays of numpy."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import dump_layouts as made
import numpy as np
import pytest
import torch
from dump_reading import read_all

from drafttrace.tracer.errors import UnreadableFile


def torch_zip(pickled: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")


def tensor_pickle(size: tuple[int, ...], stride: tuple[int, ...], offset: int, count: int) -> bytes:
    """A pickled float tensor with any geometry."""

    class Storage:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", count) if isinstance(item, Storage) else None

    class Tensor:
        def __reduce__(self) -> tuple[Any, ...]:
            from torch._utils import _rebuild_tensor_v2

            return _rebuild_tensor_v2, (Storage(), offset, size, stride, False, {})

    stream = io.BytesIO()
    Pickler(stream, 2).dump({"input_ids": Tensor(), "hidden_state": Tensor(), "loss_mask": Tensor()})
    return stream.getvalue()


@pytest.mark.parametrize(
    ("size", "stride", "offset", "count"),
    [
        ((4, 4), (4, 1), 0, 400),  # storage larger than its bytes
        ((4, 4), (400, 1), 0, 16),  # stride past the end
        ((4, 4), (4, 1), 8, 16),  # offset past the end
        ((4, 4), (4, 1), -1, 16),
        ((-4, 4), (4, 1), 0, 16),
        ((4, 4), (-4, 1), 0, 16),
        ((1 << 40, 4), (0, 0), 0, 16),  # a few bytes repeated into more than memory
        ((1 << 62, 1 << 62), (0, 0), 0, 16),
        ((4,), (4, 1), 0, 16),
        (tuple([1] * 65), tuple([1] * 65), 0, 16),
    ],
)
def test_tensor_geometry_outside_its_storage(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "data_0.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", tensor_pickle(size, stride, offset, count))
        archive.writestr("archive/data/0", struct.pack("<16f", *range(16)))
    with pytest.raises(UnreadableFile):
        read_all(path)


def test_a_zip_member_that_points_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "data_0.pt"
    torch.save(made.sf_sample(), path)
    whole = bytearray(path.read_bytes())
    first = whole.find(b"PK\x01\x02")
    while first >= 0:
        whole[first + 42 : first + 46] = struct.pack("<I", 0xFFFFFF)
        first = whole.find(b"PK\x01\x02", first + 4)
    path.write_bytes(whole)
    with pytest.raises(UnreadableFile):
        read_all(path)


def test_a_compressed_torch_zip_is_read(tmp_path: Path) -> None:
    torch.save(made.sf_sample(), tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as source,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    one, two = read_all(tmp_path / "stored.pt"), read_all(tmp_path / "packed.pt")
    assert np.array_equal(one.slots[0].rows.floats(), two.slots[0].rows.floats())


def test_legacy_torch_files_are_read(tmp_path: Path) -> None:
    torch.save(made.sf_sample(), tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    capture = read_all(tmp_path / "old.ckpt")
    for k, slot in zip(made.CANON, capture.slots, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k).float().numpy())


def test_numpy_arrays_inside_a_pickle_are_data(tmp_path: Path) -> None:
    sample = {"input_ids": made.tokens().numpy(), "hidden_state": made.state(1, dtype=torch.float32).numpy(),
              "loss_mask": made.loss_mask().numpy(), "n": np.float32(3)}  # fmt: skip
    torch_zip(
        pickle.dumps({k: sample[k] for k in ("input_ids", "hidden_state", "loss_mask")}, 2), tmp_path / "d.pt"
    )
    capture = read_all(tmp_path / "d.pt")
    assert capture.format == "EAGLE12-CKPT"
    assert capture.last is not None
    assert np.array_equal(capture.last.rows.floats(), made.state(1, dtype=torch.float32).numpy())
