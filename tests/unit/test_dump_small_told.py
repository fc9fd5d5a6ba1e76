"""Small things that a dump's reader got wrong or left unsaid."""

from __future__ import annotations

import collections
import os
from pathlib import Path

import dump_layouts as made
import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.from_mapping import parse_fields
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat, UnreadableFile
from drafttrace.tracer.open import open_capture

SIDE = {
    "set": {1, 2},
    "frozenset": frozenset([1]),
    "complex": 1 + 2j,
    "bytearray": bytearray(b"x"),
    "counter": collections.Counter("aab"),
    "buffer": torch.nn.Buffer(torch.randn(2)),
}


@pytest.mark.parametrize("name", SIDE)
def test_side_fields_that_torch_loads_without_code_are_no_code(name: str, tmp_path: Path) -> None:
    """A set beside the states made the file one that "wants to run '__builtin__.set'"."""
    torch.save({**made.sf_sample(), "x": SIDE[name]}, tmp_path / "data_0.ckpt")
    assert open_capture(str(tmp_path / "data_0.ckpt")).format == "SF-EAGLE3"


def test_a_damaged_length_is_damage_and_no_lack_of_memory(tmp_path: Path) -> None:
    """A pickle of 14 bytes: "There is not enough memory for this; run it on a larger machine"."""
    (tmp_path / "x.pt").write_bytes(b"\x80\x04\x8e" + (1 << 46).to_bytes(8, "little") + b"ab.")
    with pytest.raises(UnreadableFile, match="no whole torch file"):
        open_capture(str(tmp_path / "x.pt"))


def test_a_link_to_itself_or_to_nothing_is_told_as_a_link(tmp_path: Path) -> None:
    for name, behind in (("loop.pt", "loop.pt"), ("gone.pt", "nope")):
        (tmp_path / name).symlink_to(behind)
        with pytest.raises(UnreadableFile, match=f"is a link to '{behind}'|cannot be followed .*check the link"):
            open_capture(str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_read_is_named_itself(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    folder.mkdir(mode=0)
    with pytest.raises(UnreadableFile, match=r"dump' cannot be read \(Permission denied\)"):
        open_capture(str(folder))


def test_fields_in_groups_are_named_as_they_are_given(tmp_path: Path) -> None:
    """The error listed ``g/``, and the name to give is ``g/a``."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/a"] = np.zeros((9, 4), np.float32)
        file["g/inner/b"] = np.zeros((9, 4), np.float32)
        file["ids"] = np.arange(9)
    with pytest.raises(UnknownFormat, match="'g/a', 'g/inner/b', 'ids'"):
        open_capture(str(tmp_path / "x.h5"))
    with pytest.raises(UnreadableFile, match="'g/a', 'g/inner/b', 'ids'"):
        open_capture(str(tmp_path / "x.h5"), mapping=FieldMap(slots=("h",), tokens="ids"))
    assert open_capture(str(tmp_path / "x.h5"), mapping=FieldMap(slots=("g/a",), tokens="ids")).slots


def test_rows_and_slots_in_one_field_are_named_in_the_remedy(tmp_path: Path) -> None:
    """ "dump one sample per file" does not help a file of one sample."""
    states = torch.stack([made.state(k) for k in (2, 3, 4, 5)], 1)
    torch.save({"input_ids": made.tokens(), "hidden_states": states}, tmp_path / "x.ckpt")
    with pytest.raises(DrafttraceError, match="--slots hidden_states"):
        open_capture(str(tmp_path / "x.ckpt"))
    fields = FieldMap(slots=("hidden_states",), tokens="input_ids")
    assert len(open_capture(str(tmp_path / "x.ckpt"), mapping=fields).slots) == 4


def test_a_stack_of_three_entries_is_told_to_be_one_short(tmp_path: Path) -> None:
    for count, short in ((3, True), (4, False)):
        states = torch.stack([made.state(k) for k in (2, 4, 5, 8)[:count]], 1)
        save_file({"hidden_states": states, "token_ids": made.tokens()}, tmp_path / "x.safetensors")
        notes = open_capture(str(tmp_path / "x.safetensors")).notes
        assert any("--no-include-last-layer" in note for note in notes) is short


def test_fp8_that_becomes_fp32_is_said(tmp_path: Path) -> None:
    path = made.write_spec_fp8(tmp_path)
    done = convert(
        str(path), tmp_path / "x.safetensors", "safetensors", request=Request(layer_ids=(2, 4, 5), layers=8)
    )
    assert any("stored as fp32, in four times the space" in left for left in done.left_out)


@pytest.mark.parametrize(
    ("slots", "last", "names"),
    [
        ("low,mid,high", None, ["low", "mid", "high"]),
        ("high,low", "final", ["high", "low"]),
        ("stack", None, ["stack[0]", "stack[1]", "stack[2]"]),
        ("stack[1],low", None, ["stack[1]", "low"]),
        ("wide", None, ["wide[0]", "wide[1]"]),
        ("low,low", None, ["low (slot 0)", "low (slot 1)"]),
        ("low,final,last", "final", ["low", "final (slot 1)", "last (slot 2)"]),
    ],
)
def test_named_fields_keep_their_names(slots: str, last: str | None, names: list[str], tmp_path: Path) -> None:
    """They were slot[0], slot[1] and slot[2]."""
    state = np.ones((5, 4), np.float32)
    fields = dict.fromkeys(("low", "mid", "high", "final", "last"), state)
    np.savez(tmp_path / "x.npz", ids=np.arange(5), stack=np.ones((5, 3, 4)), wide=np.ones((5, 8)), **fields)
    mapping = parse_fields(slots, "ids", last)
    capture = open_capture(str(tmp_path / "x.npz"), mapping=mapping, request=Request(hidden_size=4))
    assert [slot.name for slot in capture.slots] == names


@pytest.mark.parametrize("links", [1, 3, 300])
def test_groups_that_are_linked_into_themselves_are_read_once(links: int, tmp_path: Path) -> None:
    """Three links made 3 ** 32 groups: the command never ended."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file.create_group("g")
        file["ids"] = np.arange(5)
        group["low"] = np.ones((5, 4), np.float32)
        file["other"] = group
        for k in range(links):
            group[f"s{k}"] = group
        group["root"] = file["/"]
    for low in ("g/low", "other/low", "g/root/g/s0/low"):
        mapping = parse_fields(low, "ids")
        assert open_capture(str(tmp_path / "x.h5"), mapping=mapping).slots[0].rows.floats().all()
    with pytest.raises(UnreadableFile, match="There is no field 'g/high' in"):
        open_capture(str(tmp_path / "x.h5"), mapping=parse_fields("g/high", "ids"))
    with pytest.raises(UnknownFormat, match="holds the fields"):
        open_capture(str(tmp_path / "x.h5"))


FIELDS = {
    "low": np.ones((5, 4), np.float32),
    "first": np.ones((3, 5, 4), np.float32),
    "stack": np.arange(60, dtype=np.float32).reshape(5, 3, 4),
    "ids": np.arange(5),
    "far": np.array([1, 2, 3, 4, 1 << 63], np.uint64),
    "text": np.array(["a prompt"]),
    "complex": np.ones((5, 4), np.complex64),
}


def npz(root: Path) -> Path:
    np.savez(root / "x.npz", batch=FIELDS["stack"][None], row=FIELDS["low"][None], **FIELDS)
    return root / "x.npz"


@pytest.mark.parametrize(
    ("slots", "tokens", "words"),
    [
        ("first", "ids", r"'first' .* has the shape \[3, 5, 4\], and there are 5 tokens: .* as rows, slots, width"),
        ("first[1]", "ids", r"'first\[1\]' .* has the shape \[3, 5, 4\], and there are 5 tokens"),
        ("row[1]", "ids", r"'row\[1\]' .* has the shape \[1, 5, 4\], and there are 5 tokens"),
        ("low", "far", "'far' .* holds uint64 values that are no token ids"),
        ("low", "text", "'text.npy' .* has the number format <U8"),
        ("complex", "ids", "'complex.npy' .* has the number format complex64"),
    ],
)
def test_fields_that_are_something_else_are_said_to_be(slots: str, tokens: str, words: str, tmp_path: Path) -> None:
    """Slots on the first axis were read as rows; 2 ** 63 was -9223372036854775808."""
    with pytest.raises(UnreadableFile, match=words):
        open_capture(str(npz(tmp_path)), mapping=parse_fields(slots, tokens))


@pytest.mark.parametrize("slots", ["stack", "batch", "stack[0],stack[1],stack[2]", "batch[0],batch[-2],batch[2]"])
def test_a_batch_of_one_sample_is_that_sample(slots: str, tmp_path: Path) -> None:
    """And a text beside the states is no reason not to read them."""
    capture = open_capture(str(npz(tmp_path)), mapping=parse_fields(slots, "ids"))
    read = np.stack([slot.rows.floats() for slot in capture.slots], 1)
    assert np.array_equal(read, FIELDS["stack"])


@pytest.mark.parametrize("slots", ["", " , "])
def test_no_slots_are_no_names(slots: str) -> None:
    with pytest.raises(DrafttraceError, match="names no field"):
        parse_fields(slots, "ids")
