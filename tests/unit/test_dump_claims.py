"""What a file claims is checked against what it holds, and against what one sample can be, before memory is taken."""

from __future__ import annotations

import json
import math
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import dump_layouts as made
import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.open import open_capture, open_numbered

MAP = FieldMap(slots=("a",), tokens="ids")
BARE = FieldMap(slots=("a",))


@pytest.fixture(autouse=True)
def no_memory_is_taken() -> Any:
    """A file of a few kilobytes, or some megabytes, must not make the process grow by more than 300 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    if sys.platform == "linux":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.parametrize("packed", [None, "gzip"])
@pytest.mark.parametrize("shape", [(10**9, 10**6), (10**8, 16), (5, 10**9)])
def test_an_hdf5_file_of_two_kilobytes_claims_terabytes(
    shape: tuple[int, int], packed: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "mine.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", shape, np.float32, chunks=(1, 1024 if shape[1] > 16 else 16), compression=packed)
        file["ids"] = np.arange(5)
    assert path.stat().st_size < 10_000
    for fields in (MAP, BARE):
        with pytest.raises(UnreadableFile, match=r"claims the shape .* 0 of its .* chunks were written"):
            open_capture(str(path), mapping=fields)


def test_an_hdf5_file_that_was_half_written_is_refused(tmp_path: Path) -> None:
    """HDF5 reads as zeros what nobody wrote."""
    path = tmp_path / "mine.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (40, 16), np.float32, chunks=(8, 16))[:16] = 1
        file["ids"] = np.arange(40)
    with pytest.raises(UnreadableFile, match="2 of its 5 chunks were written"):
        open_capture(str(path), mapping=MAP)
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file.create_dataset("a", (40, 16), np.float32)
        file["ids"] = np.arange(40)
    with pytest.raises(UnreadableFile, match="0 of its 2,560 bytes were written"):
        open_capture(str(tmp_path / "plain.h5"), mapping=MAP)


@pytest.mark.parametrize("form", [{"chunks": (7, 5)}, {"chunks": (7, 5), "compression": "gzip"}, {}, {"chunks": True},
                                  {"chunks": (7, 16), "maxshape": (None, 16)}])  # fmt: skip
def test_an_hdf5_file_that_is_whole_is_read(form: dict[str, Any], tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file.create_dataset("a", data=values, **form)
        file["ids"] = np.arange(40)
    capture = open_capture(str(tmp_path / "mine.h5"), mapping=MAP)
    assert np.array_equal(capture.slots[0].rows.floats(), values)


@pytest.mark.parametrize("how", ["external", "virtual"])
def test_an_hdf5_file_that_names_another_file_is_refused(how: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(256)) * 2)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["b"] = np.ones((5, 16), np.float32)
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["ids"] = np.arange(5)
        if how == "external":
            file.create_dataset("a", (5, 16), np.float32, external=[(str(secret), 0, 320)])
        else:
            layout = h5py.VirtualLayout((5, 16), np.float32)
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "b", (5, 16))
            file.create_virtual_dataset("a", layout)
    with pytest.raises(UnreadableFile, match="names another file for its content"):
        open_capture(str(tmp_path / "mine.h5"), mapping=MAP)


def test_more_rows_than_a_sample_has_are_refused(tmp_path: Path) -> None:
    """Tokens and positions are held for every row: a row of one byte must not cost forty."""
    rows = build.MOST_ROWS + 1
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file.create_dataset("a", data=np.zeros((rows, 1), np.float16), chunks=(1 << 16, 1), compression="gzip")
        file["ids"] = np.arange(5)
    for fields in (MAP, BARE):
        with pytest.raises(UnreadableFile, match=r"claims 4,194,305 rows of 1 number,"):
            open_capture(str(tmp_path / "mine.h5"), mapping=fields)


def test_rows_far_beyond_the_tokens_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file.create_dataset("a", data=np.zeros((1_000_000, 1), np.float16), chunks=(1 << 16, 1), compression="gzip")
        file["ids"] = np.arange(5)
    with pytest.raises(UnreadableFile, match="have 1,000,000 rows for 5 tokens"):
        open_capture(str(tmp_path / "mine.h5"), mapping=MAP)


@pytest.mark.parametrize("name", ["input_ids", "loss_mask", "attention_mask"])
def test_more_tokens_than_a_sample_has_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "MOST_ROWS", 100)
    torch.save(made.sf_sample() | {name: torch.zeros(101, dtype=torch.int64)}, tmp_path / "data_0.ckpt")
    with pytest.raises(UnreadableFile, match=f"'{name}' .* claims 101 entries"):
        open_capture(str(tmp_path / "data_0.ckpt"))


def test_more_slots_than_a_draft_reads_are_refused(tmp_path: Path) -> None:
    value = {"input_ids": made.tokens(), "loss_mask": made.loss_mask(), "hidden_states": torch.zeros(1, 13, 8192)}
    torch.save(value, tmp_path / "data_0.ckpt")
    with pytest.raises(UnreadableFile, match=r"holds 8,192 slots"):
        open_capture(str(tmp_path / "data_0.ckpt"), request=Request(hidden_size=1))
    save_file(
        {"hidden_states": np.zeros((2, 5000, 1), np.float32), "token_ids": np.arange(2)}, tmp_path / "x.safetensors"
    )
    with pytest.raises(UnreadableFile, match=r"holds 4,999 slots|holds 5,000 slots"):
        open_capture(str(tmp_path / "x.safetensors"))


@pytest.mark.parametrize(
    ("runs", "zeros"), [([5, 2**40], 5), (f"5,{2**40}", 5), ([0, 0, 0, 2**62], 0), ([2**62], 13)]
)
def test_runs_of_a_packed_mask_longer_than_memory(runs: Any, zeros: int, tmp_path: Path) -> None:
    value = [{"input_ids": made.tokens()[None], "hidden_states": made.aux()[None],
              "last_hidden_states": made.last_post()[None], "packed_loss_mask": runs}]  # fmt: skip
    torch.save(value, tmp_path / "eval_rank_0.pt")
    capture = open_capture(str(tmp_path / "eval_rank_0.pt"))
    assert capture.mask is not None
    assert capture.mask.tolist() == [0] * zeros + [1] * (made.LENGTH - zeros)


def test_a_pass_that_begins_at_the_two_billionth_position(tmp_path: Path) -> None:
    path = made.write_sg_pass(tmp_path)
    value = torch.load(path, weights_only=True)
    value["model.forward_batch_info.positions"] += 2_000_000_000
    torch.save(value, path)
    with pytest.raises(UnreadableFile, match="has a row at position 2,000,000,000"):
        open_capture(str(path))


def test_more_samples_than_anybody_has(tmp_path: Path) -> None:
    """An empty tensor costs nothing and can claim any number of samples."""
    batch = {"input_ids": torch.zeros(10**12, 0, dtype=torch.int64)}
    torch.save({"batch": batch, "step": 1}, tmp_path / "batch.pt")
    for path in (tmp_path / "batch.pt", tmp_path):
        with pytest.raises(UnreadableFile, match="claims 1,000,000,000,000 samples"):
            open_numbered(str(path))
    cache = tmp_path / "cache"
    cache.mkdir()
    made.write_am_eagle3(cache)
    header = {"input_ids": {"dtype": "I64", "shape": [10**12, 0], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (cache / "shard-000000.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DrafttraceError, match="claims 1,000,000,000,000 samples"):
        open_numbered(str(cache))


def test_scales_that_are_not_one_a_row_are_not_read(tmp_path: Path) -> None:
    states = np.zeros((4, 3, 16), np.float32)
    save_file(
        {
            "hidden_states": states,
            "hidden_states_scales": np.zeros(5_000_000, np.float32),
            "token_ids": np.arange(4),
        },
        tmp_path / "hs_0.safetensors",
    )
    with pytest.raises(UnreadableFile, match="has 5,000,000 scales for 4 rows"):
        open_capture(str(tmp_path / "hs_0.safetensors"))


@pytest.mark.parametrize("how", ["external", "link"])
def test_a_trace_that_names_another_file_is_refused(how: str, tmp_path: Path) -> None:
    trace = Path(__file__).resolve().parents[2] / "traces/tiny-llama/healthy.h5"
    path = tmp_path / "trace.h5"
    shutil.copy(trace, path)
    with h5py.File(path, "a") as file:
        shape, kind = file["target/last"].shape, file["target/last"].id.get_type()
        size = math.prod(shape) * kind.get_size()
        about = dict(file["target/last"].attrs)
        del file["target/last"]
        if how == "link":
            file["target/last"] = h5py.ExternalLink(str(trace), "target/last")
        else:
            (tmp_path / "secret").write_bytes(bytes(size))
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_external(str(tmp_path / "secret").encode(), 0, size)
            h5py.h5d.create(file.id, b"target/last", kind, h5py.h5s.create_simple(shape), plan)
            file["target/last"].attrs.update(about)
    with pytest.raises(UnreadableFile, match="keeps /target/last in another file"):
        open_capture(str(path))
