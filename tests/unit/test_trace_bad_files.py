"""Files that are no traces, or no longer: one sentence each, never a traceback of h5py, and nothing overwritten."""

from __future__ import annotations

import os
import re
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import LAYOUT, PROMPT, open_writer, target_frame
from trace_samples import write_sample as write

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnknownFormat, UnreadableFile
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema, texts
from drafttrace.tracer.trace.h5open import open_trace
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.reader import is_trace, read_ranks, read_rows, read_trace
from drafttrace.tracer.trace.summary import trace_summary
from drafttrace.tracer.trace.superblock import lookup3, read_superblock

READERS = [read_trace, read_rows, read_ranks, trace_summary]


# What HDF5 and Python say of their own insides, which once stood in errors as it was.
RAW = re.compile(r"Unable to|Can't |NoneType|object (?:is|has) n|synchronously|could not |not supported between")


def one_sentence(error: BaseException, path: Path) -> str:
    text = str(error)
    assert f"'{path}'" in text and "\n" not in text and "Traceback" not in text and "; " in text
    assert not RAW.search(text), text
    return text


def edit(path: Path, change: Callable[[h5py.File], object]) -> Path:
    with h5py.File(path, "r+", libver=schema.LIBVER) as file:
        change(file)
    return path


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_trace_is_said_to_be_none(tmp_path: Path, read: Callable[[Path], object]) -> None:
    missing, folder, text = tmp_path / "missing.h5", tmp_path, tmp_path / "text.h5"
    text.write_text("not HDF5 at all, but long enough to hold a superblock of forty-eight bytes and some more")
    empty = tmp_path / "empty.h5"
    empty.touch()
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.arange(3)
    cases: list[tuple[Path, type[DrafttraceError], str]] = [
        (missing, UnreadableFile, "No such file"),
        (folder, UnreadableFile, "directory"),
        (text, UnknownFormat, "is no HDF5 file"),
        (empty, UnreadableFile, "is empty"),
        (other, UnknownFormat, "no drafttrace trace"),
    ]
    for path, kind, words in cases:
        with pytest.raises(kind) as caught:
            read(path)
        assert words in one_sentence(caught.value, path)
        assert not is_trace(path)


def test_a_file_without_permission_is_a_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads everything (root)")
    with pytest.raises(UnreadableFile, match="Permission denied"):
        read_trace(path)


def test_a_newer_format_asks_for_an_update(tmp_path: Path) -> None:
    path = edit(write(tmp_path / "t.h5"), lambda file: file.attrs.modify(schema.ATTR_VERSION, np.int64(2)))
    assert is_trace(path)
    with pytest.raises(UnknownFormat, match="has format version 2, this drafttrace reads up to 1; update"):
        read_trace(path)
    path = edit(write(tmp_path / "u.h5"), lambda file: file.attrs.modify(schema.ATTR_VERSION, np.int64(-3)))
    with pytest.raises(UnreadableFile, match="its format version is -3"):
        read_trace(path)


@pytest.mark.parametrize(
    "name",
    ["target/rows", "draft/rows", "target/aux/1", "target/embed", "draft/topk/ids", "tokens/ids", "about/layout"],
)
def test_a_missing_dataset_is_named(tmp_path: Path, name: str) -> None:
    path = edit(write(tmp_path / "t.h5"), lambda file: file.__delitem__(name))
    with pytest.raises(UnreadableFile, match=f"/{name} is missing") as caught:
        read_trace(path)
    one_sentence(caught.value, path)


def test_datasets_that_are_not_what_they_should_be_are_named(tmp_path: Path) -> None:
    def replace(name: str, **new: object) -> Callable[[h5py.File], object]:
        def change(file: h5py.File) -> None:
            kept = dict(file[name].attrs)
            del file[name]
            made = file.create_dataset(name, **new)
            for key, value in kept.items():
                made.attrs[key] = value

        return change

    cases: list[tuple[Callable[[h5py.File], object], str]] = [
        (replace("target/aux/0", shape=(100, 3), dtype="<u2"), "has the shape"),
        (replace("target/aux/0", shape=(100, 16), dtype="<u2"), "is not stored as bf16"),
        (lambda file: file["target/last"].resize(4, axis=0), "has 4 rows where the table has"),
        (replace("target/rows", shape=(3, 3), dtype="<i8"), "is no table of rows"),
        # A table that claims more rows than the file holds would take all memory.
        (lambda file: file["draft/rows"].resize(1 << 40, axis=0), "is no table of rows"),
        (replace("about/layout", data=b"{}"), "its layout cannot be understood"),
        (replace("about/layout", data=b'{"target": 3}'), "its layout cannot be understood"),
    ]
    for number, (change, words) in enumerate(cases):
        path = edit(write(tmp_path / f"{number}.h5"), change)
        with pytest.raises(UnreadableFile, match=words) as caught:
            read_trace(path)
        one_sentence(caught.value, path)


def test_a_damaged_block_is_left_out_and_told(tmp_path: Path) -> None:
    def spoil(file: h5py.File) -> None:
        file["about/request"][0] = b"{"
        file["about/request"][1] = b"{"

    capture = read_trace(edit(write(tmp_path / "t.h5"), spoil))
    assert "request" not in capture.about and "wiring" in capture.about
    assert any("about/request" in note for note in capture.notes)


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("part", [1e-4, 0.001, 0.01, 0.2, 0.5, 0.9, 0.999])
def test_a_finished_file_that_was_cut_off(tmp_path: Path, part: float, finish: bool) -> None:
    path = write(tmp_path / "t.h5", finish=finish)
    os.truncate(path, max(1, int(part * path.stat().st_size)))
    for read in READERS:
        with pytest.raises(UnreadableFile) as caught:
            read(path)
        assert "cut off" in one_sentence(caught.value, path)


def killed(path: Path) -> Path:
    """A trace as a killed writer leaves it: a copy made while the writer is at work."""
    with open_writer(path.with_suffix(".live")) as writer:
        for index in range(4):
            writer.append_target(*target_frame(index))
        writer.flush()
        path.write_bytes(writer.path.read_bytes())
    return path


def test_a_killed_file_that_was_cut_off_never_shows_zeros(tmp_path: Path) -> None:
    """HDF5 reads what lies behind the end of a file as zeros, and in a file that was not closed it does not notice."""
    whole = killed(tmp_path / "whole.h5")
    data = whole.read_bytes()
    good = read_trace(whole)
    rows = [slot.rows.raw(0, 99) for slot in good.slots]
    refused = 0
    for number, size in enumerate(range(64, len(data), max(1, len(data) // 150))):
        path = tmp_path / f"{number}.h5"
        path.write_bytes(data[:size])
        try:
            capture = read_trace(path)
        except UnreadableFile as error:
            one_sentence(error, path)
            refused += 1
            continue
        # Only what no row needs was cut away.
        for slot, wanted in zip(capture.slots, rows, strict=True):
            assert np.array_equal(slot.rows.raw(0, 99), wanted)
    assert refused > 20


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_give_data_or_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever byte is wrong, reading ends in a capture or in one of our errors."""
    source = tmp_path / "source.h5"
    if not source.exists():
        write(source, rounds=1)
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        # Metadata stands at the front of the file and between the chunks: aim there.
        at = data.draw(st.integers(0, min(len(content), 40_000) - 1))
        content[at] = data.draw(st.integers(0, 255))
    number = len(list(tmp_path.iterdir()))
    path = tmp_path / f"{number}.h5"
    path.write_bytes(content)
    try:
        capture = read_trace(path)
        for slot in capture.slots:
            slot.rows.raw(0, len(slot.rows))
    except DrafttraceError as error:
        one_sentence(error, path)
    assert is_trace(path) in (True, False)


def test_an_existing_file_is_never_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    path.write_text("precious")
    with pytest.raises(OutputExists, match="exists already; pass --force") as caught:
        open_writer(path)
    one_sentence(caught.value, path)
    assert path.read_text() == "precious"
    link = tmp_path / "link.h5"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputExists, match="exists already"):
        open_writer(link)
    with open_writer(path, overwrite=True) as writer:
        writer.append_target(*target_frame(0))
    assert len(read_trace(path).table) == PROMPT


def test_overwriting_leaves_earlier_readers_their_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5")
    before = read_trace(path)
    wanted = before.slots[1].rows.raw(0, 5)
    with open_writer(path, overwrite=True):
        pass
    assert np.array_equal(before.slots[1].rows.raw(0, 5), wanted)
    assert len(read_trace(path).table) == 0


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0o500)
    cases = [
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "t.h5", "does not exist"),
        (closed / "t.h5", "not writable"),
    ]
    for path, words in cases:
        if path.parent == closed and os.access(closed, os.W_OK):
            continue  # root writes everywhere
        for overwrite in (False, True):
            with pytest.raises(OutputExists, match=words) as caught:
                open_writer(path, overwrite=overwrite)
            one_sentence(caught.value, path)
    with pytest.raises(OutputExists, match="cannot be written"):
        open_writer(Path("/proc/t.h5"))


def test_a_writer_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    for bad in ({"a/b": 1}, {"layout": 1}, {"": 1}):
        with pytest.raises(ValueError, match="cannot name an about block"):
            open_writer(path, about=bad)
        assert not path.exists()


def test_layouts_refuse_what_no_reader_would_understand() -> None:
    def spec(name: str, width: int = 4, dtype: object = DType.BF16) -> TensorSpec:
        return TensorSpec(name, width, dtype)  # type: ignore[arg-type]

    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: TraceLayout(target=(spec("slot/0"),)), "no target tensor"),
        (lambda: TraceLayout(target=(spec("aux/x"),)), "no target tensor"),
        (lambda: TraceLayout(draft=(spec("embed"),)), "no draft tensor"),
        (lambda: TraceLayout(target=(spec("last"), spec("last"))), "declared twice"),
        (lambda: TraceLayout(target=(spec("last", dtype="int64"),)), "cannot have the dtype int64"),
        (lambda: TraceLayout(draft=(spec("topk/ids"),)), "cannot have the dtype bf16"),
        (lambda: TraceLayout(target=tuple(spec(f"aux/{k}") for k in range(33))), "no more bits"),
        (lambda: TraceLayout(ranks=(0,)), "no tensor is named"),
        (lambda: spec("last", 0), "width 0"),
        (lambda: spec("last", 4, "bf8"), "dtype 'bf8'"),
    ]
    for make, words in bad:
        with pytest.raises(ValueError, match=words):
            make()
    sweep = TraceLayout(target=tuple(spec(f"boundary/{k}") for k in range(200)))
    for layout in (LAYOUT, sweep, TraceLayout(), TraceLayout(ranks=(0, 1), hashed=("aux/0",))):
        assert TraceLayout.from_json(layout.to_json()) == layout


def test_the_checksum_is_the_one_of_hdf5(tmp_path: Path) -> None:
    assert lookup3(b"Four score and seven years ago") == 0x17770551  # from Bob Jenkins's lookup3.c
    assert lookup3(b"") == 0xDEADBEEF
    path = write(tmp_path / "t.h5")
    head = path.read_bytes()[:48]
    assert lookup3(head[:44]) == struct.unpack("<I", head[44:])[0]
    block = read_superblock(path)
    assert block is not None and block.version == 3 and block.flags == 0 and block.end == block.size
    with h5py.File(tmp_path / "old.h5", "w", libver="earliest") as file:
        file["x"] = 1
    old = read_superblock(tmp_path / "old.h5")
    assert old is not None and old.version == 0 and old.end == old.size


def test_texts_cut_to_their_attribute(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5", complete=False, reason="é" * 400)
    reason = trace_summary(path).reason
    assert reason == "é" * 128
    assert texts.get_text(open_trace(path).file.attrs[schema.ATTR_REASON]) == reason


def test_a_trace_that_claims_more_than_was_written_takes_no_memory(tmp_path: Path) -> None:
    """A block of /about that claims 16 million pieces took 5 GB: HDF5 fills up with zeros what nobody wrote."""
    whole = write(tmp_path / "whole.h5")
    names: list[str] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset) and item.maxshape and item.maxshape[0] is None:
            names.append(name)

    with h5py.File(whole, "r") as file:
        file.visititems(visit)
    assert {"about/request", "probes", "tokens/ids", "target/rows", "target/sums", "draft/topk/ids"} <= set(names)
    for number, name in enumerate(names):
        path = tmp_path / f"{number}.h5"
        path.write_bytes(whole.read_bytes())
        with h5py.File(path, "r+") as file:
            file[name].resize(1 << 24, axis=0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for read in READERS:
            try:
                found = read(path)
            except UnreadableFile as error:
                one_sentence(error, path)
            else:
                # Rows that no table lists are of a frame that was never flushed; a block that claims too much is said.
                if name.startswith("about/") and isinstance(found, Capture):
                    assert any(f"{name} cannot be read" in note for note in found.notes)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, name
