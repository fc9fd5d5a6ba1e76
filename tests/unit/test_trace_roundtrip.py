"""What is written comes back, bit for bit: tensors of every number format, tables, present bits, blocks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from trace_samples import LAYOUT, PROMPT, ROUNDS, TOKENS, WIDE, H, bits, draft_frame, expected, open_writer
from trace_samples import write_sample as write

from drafttrace.tracer.capture import Accepted, Norm, Phase, Probe
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.h5rows import blocks
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.reader import is_trace, read_ranks, read_rows, read_trace
from drafttrace.tracer.trace.summary import trace_summary
from drafttrace.tracer.trace.writer import TraceWriter

RELAXED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_whole_trace_becomes_the_capture_it_was(tmp_path: Path) -> None:
    capture = read_trace(write(tmp_path / "t.h5"))
    assert capture.format == "drafttrace.trace/1"
    assert capture.complete and capture.notes == ()
    assert capture.tokens.tolist() == TOKENS.tolist()
    assert capture.prompt_length == PROMPT and capture.valid_length == len(TOKENS)
    assert capture.wiring == (2, 30, 58)
    assert [slot.name for slot in capture.slots] == ["aux/0", "aux/1", "aux/2"]
    assert "eagle_aux_hidden_state_layer_ids" in capture.slots[0].source and "rule raw" in capture.slots[0].source
    for slot in capture.slots:
        assert np.array_equal(slot.rows.raw(0, len(slot.rows)), expected(slot.name))
    assert capture.embed is not None and capture.embed.boundary == 0
    assert np.array_equal(capture.embed.rows.raw(0, 99), expected("embed"))
    assert capture.last is not None and capture.last.norm is Norm.POST and capture.last.boundary == 61
    assert capture.table.round.tolist() == [-1] * PROMPT + [r for r in range(ROUNDS) for _ in range(WIDE)]
    assert (capture.table.step == -1).all()
    assert capture.probes == (Probe("target.aux", ROUNDS + 1, ROUNDS + 1, len(capture.table), 0),)
    assert capture.about["request"] == {"text": "the answer", "accept_lengths": [2] * ROUNDS}
    assert capture.present == {} and capture.mask is None and capture.boundaries == {}


def test_the_draft_comes_back_with_what_it_lacks(tmp_path: Path) -> None:
    draft = read_trace(write(tmp_path / "t.h5")).draft
    assert draft is not None
    assert set(draft.tensors) == {"hidden_in", "fc_in", "topk_logits"}
    assert set(draft.ids) == {"topk_ids", "topk_draft_ids"}
    assert not draft.present["hidden_in"].any() and draft.present["fc_in"].all()
    assert not draft.tensors["hidden_in"].raw(0, len(draft.table)).any()
    wanted = np.concatenate([draft_frame(index)[1]["topk/ids"] for index in range(ROUNDS + 1)])
    assert draft.ids["topk_ids"].tolist() == wanted.tolist() and draft.ids["topk_ids"].dtype == np.int64
    assert (draft.table.step == 0).all() and (draft.table.phase >= Phase.DRAFT_EXTEND_PREFILL).all()


@pytest.mark.parametrize("dtype", list(DType))
def test_every_bit_pattern_survives(tmp_path: Path, dtype: DType) -> None:
    """All 65536 patterns of a 16-bit float, all 256 of an 8-bit one: NaN payloads, infinities, subnormals."""
    size = dtype.storage.itemsize
    if size <= 2:
        pattern = np.arange(1 << (8 * size)).astype(f"u{size}").view(dtype.storage).reshape(-1, 256)
    else:
        special = {4: [0x7F800001, 0xFFC12345, 0x7F800000, 1, 0x80000000], 8: [0x7FF0000000000001, 1, 1 << 63]}
        words = np.random.default_rng(0).integers(0, 1 << 32, (64, 256), dtype=np.uint64)
        words.ravel()[: len(special[size])] = special[size]
        pattern = words.astype(f"u{size}").view(dtype.storage)
    layout = TraceLayout(target=(TensorSpec("aux/0", 256, dtype),))
    writer = open_writer(tmp_path / "t.h5", layout)
    writer.append_target(schema.records(schema.TARGET_ROW, len(pattern)), {"aux/0": pattern})
    writer.finish(complete=True)
    slot = read_trace(tmp_path / "t.h5").slots[0]
    assert slot.rows.dtype is dtype
    assert slot.rows.raw(0, len(pattern)).tobytes() == pattern.tobytes()


@RELAXED
@given(data=st.data())
def test_any_table_and_any_split_into_frames_come_back(tmp_path: Path, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 600), label="rows")  # more than one chunk of the table
    fields = {
        "position": hnp.arrays("<i8", count),
        "token_id": hnp.arrays("<i8", count),
        "phase": hnp.arrays("u1", count, elements=st.integers(0, 5)),
        "round": hnp.arrays("<i4", count),
        "accepted": hnp.arrays("u1", count, elements=st.integers(0, 2)),
        "frame": hnp.arrays("<i4", count),
        "live_rows": hnp.arrays("<i4", count),
        "rank": hnp.arrays("<i2", count),
        "step": hnp.arrays("<i4", count),
    }
    rows = schema.records(schema.DRAFT_ROW, count, **{name: data.draw(kind) for name, kind in fields.items()})
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=4), label="cuts"))
    width = data.draw(st.integers(1, 9))
    values = bits((count, width), 3)
    path = tmp_path / "t.h5"
    layout = TraceLayout(draft=(TensorSpec("fc_in", width, DType.BF16),))
    with open_writer(path, layout, overwrite=True) as writer:
        for start, stop in zip([0, *cuts], [*cuts, count], strict=True):
            writer.append_draft(rows[start:stop], {"fc_in": values[start:stop]})
            if data.draw(st.booleans()):
                writer.flush()
    rows["present"] = 1
    assert read_rows(path, "draft").tobytes() == rows.tobytes()
    draft = read_trace(path).draft
    assert draft is not None and draft.tensors["fc_in"].raw(0, count).tobytes() == values.tobytes()


@RELAXED
@given(frames=st.lists(st.tuples(st.integers(0, 300), st.sets(st.sampled_from("abc"))), max_size=6))
def test_present_bits_follow_what_each_frame_brought(tmp_path: Path, frames: list[tuple[int, set[str]]]) -> None:
    names = {"a": "aux/0", "b": "embed", "c": "last"}
    layout = TraceLayout(target=tuple(TensorSpec(name, 5, DType.BF16) for name in names.values()))
    path = tmp_path / "t.h5"
    want: dict[str, list[Any]] = {name: [] for name in names.values()}
    with open_writer(path, layout, overwrite=True) as writer:
        for seed, (count, letters) in enumerate(frames):
            given_names = {names[letter] for letter in letters}
            tensors = {name: bits((count, 5), seed) | 1 for name in given_names}
            writer.append_target(schema.records(schema.TARGET_ROW, count), tensors)
            for name, parts in want.items():
                parts.append(tensors.get(name, np.zeros((count, 5), np.uint16)))
    capture = read_trace(path)
    stored = {"aux/0": capture.slots[0].rows, "embed": capture.embed.rows, "last": capture.last.rows}  # type: ignore[union-attr]
    for name, parts in want.items():
        whole = np.concatenate([np.zeros((0, 5), np.uint16), *parts])
        assert np.array_equal(stored[name].raw(0, len(whole)), whole)
        there = whole.any(axis=1)
        if not there.all():
            assert np.array_equal(capture.present[name], there)
            assert any(f"{int((~there).sum())} of {len(there)} rows" in note for note in capture.notes)
        else:
            assert name not in capture.present


def test_single_rows_can_be_absent(tmp_path: Path) -> None:
    layout = TraceLayout(target=(TensorSpec("aux/0", 4, DType.FP32),))
    with open_writer(tmp_path / "t.h5", layout) as writer:
        writer.append_target(
            schema.records(schema.TARGET_ROW, 3),
            {"aux/0": np.ones((3, 4), np.float32)},
            absent={"aux/0": np.array([False, True, False])},
        )
    assert read_trace(tmp_path / "t.h5").present["aux/0"].tolist() == [True, False, True]


def test_a_layer_sweep_may_be_shorter_than_the_table(tmp_path: Path) -> None:
    layout = TraceLayout(
        target=tuple(TensorSpec(n, H, DType.BF16) for n in ("aux/0", "boundary/0", "boundary/3", "boundary/31"))
    )
    path = tmp_path / "t.h5"
    first, second = bits((6, H), 1), bits((5, H), 2)
    with open_writer(path, layout) as writer:
        rows = schema.records(schema.TARGET_ROW, 6)
        writer.append_target(rows, {"aux/0": first, "boundary/0": first, "boundary/3": first[:4]})
        writer.append_target(rows[:5], {"aux/0": second, "boundary/0": second})
        writer.append_target(rows[:5], {"aux/0": second})
        with pytest.raises(ValueError, match="without a gap"):
            writer.append_target(rows[:5], {"aux/0": second, "boundary/0": second})
    boundaries = read_trace(path).boundaries
    assert {k: len(rows) for k, rows in boundaries.items()} == {0: 11, 3: 4, 31: 0}
    assert np.array_equal(boundaries[0].raw(0, 11), np.concatenate([first, second]))
    assert np.array_equal(boundaries[3].raw(0, 4), first[:4])
    assert np.array_equal(boundaries[3].floats(), boundaries[0].floats(0, 4), equal_nan=True)


def test_ranks_keep_their_hashes(tmp_path: Path) -> None:
    layout = TraceLayout(target=LAYOUT.target, ranks=(0, 3), hashed=("aux/0", "last"))
    rows = schema.records(schema.RANK_ROW, 300, position=np.arange(300), frame=2)
    hashes = np.random.default_rng(1).integers(0, 1 << 64, (300, 2), dtype=np.uint64)
    with open_writer(tmp_path / "t.h5", layout) as writer:
        writer.append_rank(3, rows[:200], hashes[:200])
        writer.flush()
        writer.append_rank(3, rows[200:], hashes[200:])
        with pytest.raises(ValueError, match="rank 1 is not declared"):
            writer.append_rank(1, rows, hashes)
    zero, three = read_ranks(tmp_path / "t.h5")
    assert (zero.rank, three.rank, len(zero.rows), three.names) == (0, 3, 0, ("aux/0", "last"))
    assert three.rows.tobytes() == rows.tobytes() and np.array_equal(three.hashes, hashes)


def test_blocks_of_text_come_back_whole(tmp_path: Path) -> None:
    """Lines longer than a piece, characters of several bytes at the seams, NUL, empty blocks, replaced blocks."""
    about = {
        "environment": {"long": "é€😀" * 400, "nul": "a\0b", "lines": "one\ntwo\u2028three", "empty": ""},
        "wiring": {},
        "weights": ["x" * 127, "x" * 128, "x" * 129, None, 1.5, True],
    }
    path = tmp_path / "t.h5"
    writer = TraceWriter(path, LAYOUT, request_id="r", about=about, late=("request", "never"))
    with pytest.raises(ValueError, match="'surprise' was not declared"):
        writer.finish(complete=True, about={"surprise": 1})
    writer.finish(complete=True, about={"request": {"n": list(range(500))}, "weights": ["short"]})
    read = read_trace(path).about
    assert read == {"environment": about["environment"], "wiring": {}, "weights": ["short"]} | {
        "request": {"n": list(range(500))}
    }


def test_the_summary_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5", complete=False, reason="the client went away")
    summary = trace_summary(path)
    assert (summary.complete, summary.finished, summary.reason) == (False, True, "the client went away")
    assert (summary.target_rows, summary.frames, summary.rounds) == (PROMPT + ROUNDS * WIDE, ROUNDS + 1, ROUNDS)
    assert summary.accept_lengths == (2,) * ROUNDS and summary.accept_length == 2.0
    assert summary.phases["prefill"] == PROMPT and summary.phases["verify"] == ROUNDS * WIDE
    assert summary.graph_rows == ROUNDS * WIDE and summary.request_id == "dt-1"
    by_name = {tensor.name: tensor for tensor in summary.tensors}
    assert by_name["draft/hidden_in"].recorded == 0 and by_name["draft/fc_in"].recorded == summary.draft_rows
    assert by_name["target/aux/0"].dtype == "bf16" and by_name["target/aux/0"].width == H
    assert "the client went away" in read_trace(path).notes[0]


def test_probes_that_did_not_fire_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5", probes=[Probe("draft.fc", 5, 0, 0, 0), Probe("target.embed", 4, 4, 40, 7)])
    notes = read_trace(path).notes
    assert "the probe draft.fc fired 0 times of 5" in notes
    assert "the probe target.embed dropped 7 rows" in notes


def test_wiring_that_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    cases: list[tuple[Any, tuple[int | None, ...], str]] = [
        ({"boundaries": None, "source": "default"}, (None, None, None), "not declared"),
        ({"boundaries": [2, 30], "source": "x"}, (None, None, None), "not declared"),
        ({"boundaries": [2, None, 58], "source": "x", "last_norm": "pre"}, (2, None, 58), "x"),
        ("no object", (None, None, None), "not declared"),
    ]
    for number, (block, wiring, source) in enumerate(cases):
        path = tmp_path / f"{number}.h5"
        with open_writer(path, about={"wiring": block}):
            pass
        capture = read_trace(path)
        assert capture.wiring == wiring
        assert source in capture.slots[0].source
        assert capture.last is not None
        assert capture.last.norm is (Norm.PRE if number == 2 else Norm.POST)
    assert any("2 boundaries for 3 slots" in note for note in read_trace(tmp_path / "1.h5").notes)


def test_rows_of_an_older_and_of_a_newer_version_are_read() -> None:
    old = np.zeros(2, [("position", "<i8"), ("token_id", "<i8"), ("phase", "u1")])
    old["position"] = [4, 5]
    adopted = schema.adopt(old, schema.TARGET_ROW)
    assert adopted["position"].tolist() == [4, 5] and (adopted["accepted"] == Accepted.UNKNOWN).all()
    assert (adopted["round"] == -1).all() and adopted.dtype == schema.TARGET_ROW
    new = np.zeros(1, [*schema.DRAFT_ROW.descr, ("tree_depth", "<i4")])
    assert schema.adopt(new, schema.DRAFT_ROW).dtype == schema.DRAFT_ROW


def test_blocks_cover_the_rows_and_stay_small(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path / "t.h5")).slots[0].rows
    parts = list(blocks(rows, size=5 * H * 2))
    assert parts[0] == (0, 5) and parts[-1][1] == len(rows)
    joined = np.concatenate([rows.raw(start, stop) for start, stop in parts])
    assert np.array_equal(joined, expected("aux/0"))


def test_100_mb_are_read_in_a_blink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: the machine is shared. Reading in blocks holds one block."""
    width, count = 7168, 7168
    layout = TraceLayout(target=(TensorSpec("aux/0", width, DType.BF16),))
    values = bits((count, width), 0)
    writer = open_writer(tmp_path / "t.h5", layout)
    started = time.perf_counter()
    writer.append_target(schema.records(schema.TARGET_ROW, count), {"aux/0": values})
    writer.flush()
    wrote = time.perf_counter() - started
    writer.finish(complete=True)
    rows = read_trace(tmp_path / "t.h5").slots[0].rows
    total, started = 0, time.perf_counter()
    for start, stop in blocks(rows):
        total += rows.raw(start, stop).nbytes
    read = time.perf_counter() - started
    assert total == values.nbytes and is_trace(tmp_path / "t.h5")
    assert np.array_equal(rows.raw(5000, 5003), values[5000:5003])
    with capsys.disabled():
        print(
            f" [{total / 1e6:.0f} MB: written {total / wrote / 1e9:.1f} GB/s, read {total / read / 1e9:.1f} GB/s]"
        )
