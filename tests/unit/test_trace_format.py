"""What other programs see in a trace: h5dump prints numbers, viewers find the plot, and the names stay."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from h5py import h5t
from trace_samples import LAYOUT, PROMPT, TOKENS, WIDE, H, expected, open_writer
from trace_samples import write_sample as write

from drafttrace.tracer.capture import Accepted, Phase
from drafttrace.tracer.rows import DType, to_float32
from drafttrace.tracer.trace import nexus, schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout


def test_the_tree_is_the_one_of_the_design(tmp_path: Path) -> None:
    """Frozen: renaming any of these breaks the traces that people have."""
    layout = TraceLayout(
        target=(*LAYOUT.target, TensorSpec("boundary/7", H, DType.BF16)),
        draft=(
            *(TensorSpec(n, H, DType.FP16) for n in ("hidden_in", "fc_in", "fc_out", "embed_in", "hidden_out")),
            TensorSpec("topk/ids", 2, "int64"),
            TensorSpec("topk/draft_ids", 2, "int32"),
            TensorSpec("topk/logits", 2, DType.FP32),
        ),
        ranks=(0, 1),
        hashed=("aux/0",),
    )
    with open_writer(tmp_path / "t.h5", layout):
        pass
    names: list[str] = []
    with h5py.File(tmp_path / "t.h5", "r") as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        assert set(file.attrs) == {
            "format",
            "format_version",
            "complete",
            "incomplete_reason",
            "created_utc",
            "tool_version",
            "request_id",
            "NX_class",
            "default",
        }
        assert file.attrs["format"] == b"drafttrace.trace" and file.attrs["format_version"] == 1
        assert file["target/rows"].dtype.names == (
            *("position", "token_id", "phase", "round", "accepted", "frame", "graph", "source"),
            *("live_rows", "padded_rows", "cached_prefix", "rank", "present"),
        )
        assert file["draft/rows"].dtype.names == (*file["target/rows"].dtype.names, "step")
        assert file["target/rows"].attrs["present_bits"] == b'["aux/0", "aux/1", "aux/2", "embed", "last"]'
        assert (
            file["draft/topk/logits"].attrs["dtype"] == b"fp32" and file["target/embed"].attrs["dtype"] == b"bf16"
        )
    assert sorted(names) == sorted(
        ["about/layout", "about/request", "about/server_args", "about/wiring", "probes", "padding"]
        + ["tokens/ids", "tokens/prompt_length", "target/rows", "draft/rows", "target/sums", "draft/sums"]
        + ["target/aux/0", "target/aux/1", "target/aux/2", "target/embed", "target/last", "target/boundary/7"]
        + ["draft/hidden_in", "draft/fc_in", "draft/fc_out", "draft/embed_in", "draft/hidden_out"]
        + ["draft/topk/ids", "draft/topk/draft_ids", "draft/topk/logits"]
        + ["ranks/0/rows", "ranks/0/hashes", "ranks/1/rows", "ranks/1/hashes"]
        + [
            f"summary/row_norms/{name}"
            for name in ("aux_0", "aux_1", "aux_2", "embed", "last", "position", "title")
        ]
    )
    assert [int(phase) for phase in Phase] == list(range(6))  # stored: never renumber
    assert [int(accepted) for accepted in Accepted] == [0, 1, 2]


def test_bf16_is_a_genuine_float_that_hdf5_converts_right(tmp_path: Path) -> None:
    """The slow way, HDF5's own conversion, gives the same numbers as ours."""
    path = write(tmp_path / "t.h5")
    with h5py.File(path, "r") as file:
        kind = file["target/aux/0"].id.get_type()
        assert kind.get_class() == h5t.FLOAT and kind.get_size() == 2
        assert kind.get_fields() == (15, 7, 8, 0, 7) and kind.get_ebias() == 127
        converted = file["target/aux/0"].astype(np.float64)[:]
    ours = to_float32(expected("aux/0"), DType.BF16)
    assert np.array_equal(np.isnan(converted), np.isnan(ours)) and np.isnan(ours).any()
    assert np.array_equal(converted[~np.isnan(ours)], ours[~np.isnan(ours)].astype(np.float64))


def h5dump(*arguments: str | Path) -> str:
    if shutil.which("h5dump") is None:
        pytest.skip("h5dump is not installed (Debian: apt-get install hdf5-tools)")
    done = subprocess.run(["h5dump", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_h5dump_prints_numbers(tmp_path: Path) -> None:
    """h5dump of Debian is HDF5 1.10: nothing newer may be needed to read a trace."""
    values = np.array([[1.0, -2.5, 3.140625, 0.0], [np.inf, -np.inf, np.nan, 2.0**-133]], np.float32)
    stored = (values.view(np.uint32) >> 16).astype(np.uint16)
    layout = TraceLayout(target=(TensorSpec("aux/0", 4, DType.BF16),))
    with open_writer(tmp_path / "t.h5", layout) as writer:
        writer.append_target(
            schema.records(schema.TARGET_ROW, 2, position=[0, 1], token_id=[17, 23]), {"aux/0": stored}
        )
    text = h5dump("-y", "-d", "/target/aux/0", tmp_path / "t.h5")
    assert "16-bit little-endian floating-point" in text
    data = re.sub(r"\s", "", text[text.index("DATA {") :])
    assert "1,-2.5,3.14062,0,inf,-inf,nan,9.18355e-41" in data
    rows = h5dump("-y", "-d", "/target/rows", tmp_path / "t.h5")
    assert "17," in rows and "23," in rows
    assert '"source": "draft config' in h5dump("-d", "/about/wiring", tmp_path / "t.h5").replace('\\"', '"')


def test_h5dump_reads_a_whole_trace(tmp_path: Path) -> None:
    text = h5dump(write(tmp_path / "t.h5"))
    assert "drafttrace.trace" in text and text.count("DATASET") > 15


def follow(file: h5py.File) -> h5py.Group:
    """The group that a NeXus viewer plots: the way along ``default`` (NeXus manual, "Find the default plot")."""
    group: h5py.Group = file
    for wanted in ("NXroot", "NXentry"):
        assert group.attrs["NX_class"].decode() == wanted
        group = group[group.attrs["default"].decode()]
    assert group.attrs["NX_class"].decode() == "NXdata"
    return group


def test_viewers_find_the_plot(tmp_path: Path) -> None:
    with h5py.File(write(tmp_path / "t.h5"), "r") as file:
        data = follow(file)
        axis = [name.decode() for name in data.attrs["axes"]]
        signals = [data.attrs["signal"].decode(), *(name.decode() for name in data.attrs["auxiliary_signals"])]
        assert axis == ["position"] and signals == ["aux_0", "aux_1", "aux_2", "embed", "last"]
        assert data["title"][()].decode() == nexus.TITLE and "title" not in data.attrs
        assert [name for name in signals if "long_name" in data[name].attrs] == ["aux_0"]
        position = data["position"][:]
        assert position.tolist() == list(range(len(TOKENS) - 1))  # every token of the output but the last, once
        for name in signals:
            assert data[name].shape == position.shape
        with np.errstate(all="ignore"):
            norms = np.linalg.norm(to_float32(expected("aux/1"), DType.BF16), axis=1)
        rows = [*range(PROMPT), *(PROMPT + WIDE * r + k for r in range(3) for k in range(2))]
        np.testing.assert_allclose(data["aux_1"][:], norms[rows], rtol=1e-5)


def test_the_plot_is_thin_and_says_what_was_not_recorded(tmp_path: Path) -> None:
    layout = TraceLayout(target=(TensorSpec("aux/0", 4, DType.FP32), TensorSpec("last", 4, DType.FP32)))
    rows = schema.records(schema.TARGET_ROW, 5000, position=np.arange(5000)[::-1], accepted=Accepted.ACCEPTED)
    writer = open_writer(tmp_path / "t.h5", layout)
    writer.append_target(rows, {"aux/0": np.tile(np.arange(5000, dtype=np.float32)[:, None], 4)})
    writer.finish(complete=True)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        data = follow(file)
        position = data["position"][:]
        assert len(position) == nexus.MAX_POINTS and position[0] == 0 and position[-1] == 4999
        assert (np.diff(position) > 0).all()
        np.testing.assert_allclose(data["aux_0"][:], 2.0 * (4999 - position), rtol=1e-6)
        assert np.isnan(data["last"][:]).all()


def test_a_trace_without_target_tensors_has_no_plot(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "t.h5", TraceLayout(draft=LAYOUT.draft))
    writer.finish(complete=True)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert "default" not in file["summary"].attrs and len(file["summary"]) == 0


def test_a_short_trace_of_a_small_model_is_a_small_file(tmp_path: Path) -> None:
    """100 rows, a sweep over 62 boundaries of width 64: no megabyte of empty chunks for each."""
    layout = TraceLayout(target=tuple(TensorSpec(f"boundary/{k}", 64, DType.BF16) for k in range(62)))
    writer = open_writer(tmp_path / "t.h5", layout)
    values = np.ones((100, 64), np.uint16)
    writer.append_target(schema.records(schema.TARGET_ROW, 100), {spec.name: values for spec in layout.target})
    writer.finish(complete=True)
    about = (tmp_path / "t.h5").stat()
    assert about.st_size < 1.5 * 62 * values.nbytes
    assert about.st_blocks * 512 < 1.1 * about.st_size  # what was reserved behind the end is given back
