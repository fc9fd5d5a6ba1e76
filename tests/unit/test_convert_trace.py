"""From trace to trace: everything that a recording holds is kept bit for bit, or named before it is gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import trace_samples as made

from drafttrace.tracer.capture import Accepted, Phase, Probe
from drafttrace.tracer.convert import convert
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema, texts
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.reader import read_rows

PROMPT, DECODED, SWEPT = 9, 4, 5
ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-kimi/fixed.h5"


def hashes(writer: Any, rank: int) -> None:
    rows = schema.records(schema.RANK_ROW, 6, position=np.arange(6), token_id=np.arange(6), frame=rank, step=-1)
    writer.append_rank(rank, rows, np.arange(12, dtype=np.uint64).reshape(6, 2) + np.uint64(2**63))


def recorded(path: Path, *, gaps: bool = True, **ending: Any) -> Path:
    """A request without speculation: one row per token, and everything else that a recorder writes."""
    sweep = tuple(TensorSpec(f"boundary/{k}", made.H, DType.BF16) for k in (0, 1, 61))
    layout = TraceLayout((*made.LAYOUT.target, *sweep), (), (0, 3), ("aux/0", "last"))
    writer = made.open_writer(path, layout)
    tokens = made.TOKENS[: PROMPT + DECODED + 1]
    for frame in range(DECODED + 1):
        count = PROMPT if frame == 0 else 1
        start = 0 if frame == 0 else PROMPT + frame - 1
        rows = schema.records(
            schema.TARGET_ROW,
            count,
            position=np.arange(start, start + count),
            token_id=tokens[start : start + count],
            phase=Phase.PREFILL if frame == 0 else Phase.DECODE,
            round=frame - 1,
            accepted=Accepted.ACCEPTED if frame == 0 else Accepted.UNKNOWN,
            frame=frame,
            graph=schema.GRAPH_REPLAY if frame else schema.EAGER,
            source=schema.SOURCE_GRAPH_BUFFER if frame else schema.SOURCE_HOOK,
            live_rows=count,
            padded_rows=8 if frame else count,
            cached_prefix=3,
            rank=1,
        )
        tensors = {
            spec.name: made.bits((count, made.H), 10 * frame + place) for place, spec in enumerate(layout.target)
        }
        for name in (spec.name for spec in sweep):
            tensors[name] = tensors[name][:SWEPT]
        if frame:
            tensors = {name: value for name, value in tensors.items() if not name.startswith("boundary/")}
        gap = np.arange(count) == 3 if frame == 0 else np.ones(count, bool)
        writer.append_target(rows, tensors, absent={"aux/1": gap} if gaps else {})
    for rank in (0, 3):
        hashes(writer, rank)
    writer.append_padding(
        schema.records(schema.PADDED, 2, frame=[1, 2], tap=[b"aux/0", b"last"], hash=[2**63 + 5, 7])
    )
    about = {"request": {"text": "the answer", "accept_lengths": [2, 1]}}
    options: dict[str, Any] = {"complete": True, "tokens": tokens, "prompt_length": PROMPT, "about": about}
    writer.finish(**(options | {"probes": [Probe("target.aux", 5, 4, 13, 1)]} | ending))
    with h5py.File(path, "r+") as file:
        texts.set_attribute(file, schema.ATTR_CREATED, "2026-01-02T03:04:05+00:00")
        texts.set_attribute(file, schema.ATTR_TOOL, "0.0.1")
    return path


def everything(path: Path) -> dict[str, bytes]:
    """Every dataset and every attribute of a file, as bytes."""
    found: dict[str, bytes] = {}

    def add(name: str, item: Any) -> None:
        found.update({f"{name}@{key}": np.asarray(value).tobytes() for key, value in item.attrs.items()})
        if isinstance(item, h5py.Dataset):
            found[name] = str(item.shape).encode() + np.asarray(item[()]).tobytes()

    with h5py.File(path) as file:
        add("", file)
        file.visititems(add)
    return found


def test_a_recording_without_drafts_is_kept_whole(tmp_path: Path) -> None:
    """The row hashes of the ranks went unasked, and so did the last token, where rows were read, padding, gaps, the
    request's id, the time of the recording and the source of its wiring."""
    source = recorded(tmp_path / "t.h5")
    done = convert(str(source), tmp_path / "out.h5", "trace")
    assert done.left_out == ()
    one, two = everything(source), everything(tmp_path / "out.h5")
    assert len(one) > 60
    assert sorted(one) == sorted(two)
    assert [name for name in one if one[name] != two[name]] == []


@pytest.mark.parametrize("reason", ["the request was aborted", ""])
def test_an_incomplete_recording_says_why(reason: str, tmp_path: Path) -> None:
    source = recorded(tmp_path / "t.h5", complete=False, reason=reason)
    convert(str(source), tmp_path / "out.h5", "trace")
    one, two = open_capture(str(source)), open_capture(str(tmp_path / "out.h5"))
    assert not two.complete
    assert one.notes == two.notes
    assert one.tokens.tolist() == two.tokens.tolist()


def test_gaps_stay_gaps(tmp_path: Path) -> None:
    """They would have been rows of zeros."""
    source = recorded(tmp_path / "t.h5")
    convert(str(source), tmp_path / "out.h5", "trace")
    again = open_capture(str(tmp_path / "out.h5"))
    assert np.flatnonzero(~again.present["aux/1"]).tolist() == [3, *range(PROMPT, PROMPT + DECODED)]
    with pytest.raises(DrafttraceError, match="lacks aux/1 for some tokens"):
        convert(str(source), tmp_path / "v1", "speculators-v1", lose=["recording", "boundaries"], mask="ones")


def test_what_goes_with_draft_rows_is_named(tmp_path: Path) -> None:
    """Row hashes of ranks and of padding speak of every row, also of those that go."""
    layout = TraceLayout(made.LAYOUT.target, made.LAYOUT.draft, (0, 1), ("aux/0", "last"))
    writer = made.open_writer(tmp_path / "t.h5", layout)
    for index in range(made.ROUNDS + 1):
        writer.append_target(*made.target_frame(index))
        writer.append_draft(*made.draft_frame(index))
    for rank in (0, 1):
        hashes(writer, rank)
    writer.append_padding(schema.records(schema.PADDED, 1, frame=1, tap=b"aux/0", hash=5))
    writer.finish(complete=True, tokens=made.TOKENS, prompt_length=made.PROMPT)
    source = str(tmp_path / "t.h5")
    with pytest.raises(
        DrafttraceError,
        match=r"23 draft rows, 6 rows .*, the row hashes of 2 ranks, hashes of padding rows; give it up with --lose rec",
    ):
        convert(source, tmp_path / "out.h5", "trace")
    assert not (tmp_path / "out.h5").exists()
    done = convert(source, tmp_path / "out.h5", "trace", lose=["recording"])
    assert done.left_out[2:] == ("the row hashes of 2 ranks", "hashes of padding rows")
    again = open_capture(str(tmp_path / "out.h5"))
    assert again.tokens.tolist() == made.TOKENS.tolist()  # the last one too, which no row has
    kept = read_rows(source)
    kept = kept[kept["accepted"] == Accepted.ACCEPTED]
    assert read_rows(tmp_path / "out.h5").tolist() == kept.tolist()
    assert again.about["wiring"] == made.WIRING
    assert again.slots[0].source == open_capture(source).slots[0].source


def test_what_a_dump_cannot_hold_of_a_recording_is_named(tmp_path: Path) -> None:
    source = recorded(tmp_path / "t.h5", gaps=False)
    with pytest.raises(DrafttraceError) as refused:
        convert(str(source), tmp_path / "v1", "speculators-v1", mask="ones", lose=["boundaries"])
    for words in (
        "the row hashes of 2 ranks",
        "hashes of padding rows",
        "1 token at the end without a row",
        "how its rows were computed",
        "1 probes",
        "the prompt length",
        "the block request",
        "the block server_args",
    ):
        assert words in str(refused.value), words


def test_a_block_that_cannot_be_read_is_not_dropped_unasked(tmp_path: Path) -> None:
    source = recorded(tmp_path / "t.h5")
    with h5py.File(source, "r+") as file:
        block = file["about/server_args"]
        block[0] = b"{{"
    with pytest.raises(DrafttraceError, match="the block server_args, which cannot be read; give it up"):
        convert(str(source), tmp_path / "out.h5", "trace")
    convert(str(source), tmp_path / "out.h5", "trace", lose=["recording"])
    assert "server_args" not in open_capture(str(tmp_path / "out.h5")).about


def test_a_slot_that_is_not_its_boundary_is_not_taken_for_it(tmp_path: Path) -> None:
    """A trace that sweeps B2 beside a slot declared B2 kept one of the two, whatever the other was: the fault itself."""
    names = ("aux/0", "boundary/2")
    layout = TraceLayout(tuple(TensorSpec(name, made.H, DType.BF16) for name in names))
    rows = schema.records(schema.TARGET_ROW, 4, position=np.arange(4), accepted=Accepted.ACCEPTED, token_id=7)
    for case, seed in (("same", 1), ("other", 2)):
        wiring = {"boundaries": [2], "n": 61, "source": "a test"}
        writer = made.open_writer(tmp_path / f"{case}.h5", layout, about={"wiring": wiring}, request_id="converted")
        tensors = dict(zip(names, (made.bits((4, made.H), 1), made.bits((4, made.H), seed)), strict=True))
        writer.append_target(rows, tensors)
        writer.finish(complete=True, tokens=[7] * 4)
    convert(str(tmp_path / "same.h5"), tmp_path / "same.safetensors", "safetensors")
    with pytest.raises(
        DrafttraceError, match="B2 is there twice, with different numbers; give it up with --lose bou"
    ):
        convert(str(tmp_path / "other.h5"), tmp_path / "other.safetensors", "safetensors")
    assert not (tmp_path / "other.safetensors").exists()


def test_a_real_recording_keeps_what_its_rows_say(tmp_path: Path) -> None:
    convert(str(TRACE), tmp_path / "out.h5", "trace", lose=["recording"])
    one, two = open_capture(str(TRACE)), open_capture(str(tmp_path / "out.h5"))
    old, new = read_rows(TRACE), read_rows(tmp_path / "out.h5")
    place = {(row["frame"], row["position"]): row for row in old}
    assert len(new) == 80
    for row in new:
        assert row.tolist() == place[row["frame"], row["position"]].tolist()
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.about == two.about
    assert one.probes == two.probes
    assert os.path.getsize(tmp_path / "out.h5") < os.path.getsize(TRACE)
