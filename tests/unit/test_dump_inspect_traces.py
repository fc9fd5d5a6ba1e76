"""What inspect says of recorded traces, whose rows are no positions, and of tokens that no target can guess."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from rich.console import Console

from drafttrace.tracer import inspecting
from drafttrace.tracer.inspecting import Inspection, inspect_capture, render
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.position_rows import TakenRows, position_rows
from drafttrace.tracer.reference import make_reference
from drafttrace.tracer.rows import ArrayRows, DType
from drafttrace.tracer.target_weights import TargetWeights
from drafttrace.tracer.value_checks import check_values

ROOT = Path(__file__).resolve().parents[2]
TRACES = ["tiny-kimi/as-trained", "tiny-kimi/shifted", "tiny-kimi/fixed", "tiny-llama/healthy"]


def target_of(trace: str) -> Path:
    return ROOT / "pairs" / trace.split("/")[0] / "target"


def looked_at(trace: str) -> Inspection:
    return inspect_capture(str(ROOT / f"traces/{trace}.h5"), target=target_of(trace))


def verdict(found: Inspection, check: str) -> str:
    return next(item.verdict for item in found.checks if item.id == check)


@pytest.mark.parametrize("trace", TRACES)
def test_a_good_trace_is_not_refuted(trace: str) -> None:
    """Verify rows repeat positions; they were read as positions, and the last state called an inner layer."""
    found = looked_at(trace)
    assert found.problems == ()
    assert verdict(found, "last-is-last") == "consistent"
    assert verdict(found, "last-norm") == "confirmed"
    assert verdict(found, "token-shift") == "confirmed"
    last = next(check for check in found.checks if check.id == "last-is-last")
    assert last.evidence["next_token_loss"] < 1
    assert {state.statistics.repeated_rows for state in found.states} == {0}


@pytest.mark.parametrize("trace", TRACES[:2])
def test_a_position_has_one_row_and_that_of_the_accepted_token(trace: str) -> None:
    capture = open_capture(str(ROOT / f"traces/{trace}.h5"))
    chosen = position_rows(capture, "last")
    assert len(capture.table) > 2 * len(chosen)
    rows = chosen[chosen >= 0]
    assert len(rows) >= len(chosen) - 1
    assert (capture.table.accepted[rows] == 1).all()
    assert capture.table.position[rows].tolist() == np.flatnonzero(chosen >= 0).tolist()
    assert capture.table.token_id[rows].tolist() == capture.tokens[chosen >= 0].tolist()


def test_a_row_that_was_not_recorded_stands_for_no_position() -> None:
    capture = open_capture(str(ROOT / "traces/tiny-llama/healthy.h5"))
    mask = np.ones(len(capture.table), np.bool_)
    gone = int(position_rows(capture, "last")[20])
    mask[gone] = False
    partly = dataclasses.replace(capture, present={"last": mask})
    assert position_rows(partly, "last")[20] == -1
    assert position_rows(partly, "aux/0")[20] == gone


def test_a_trace_whose_last_state_is_an_inner_layer_is_still_refuted() -> None:
    trace = "tiny-llama/healthy"
    capture = open_capture(str(ROOT / f"traces/{trace}.h5"))
    assert capture.last is not None
    inner = dataclasses.replace(capture.last, rows=capture.boundaries[2])
    checks = check_values(dataclasses.replace(capture, last=inner), TargetWeights(target_of(trace)))
    assert {check.id: check.verdict for check in checks}["last-is-last"] == "refuted"


def test_a_trace_with_shifted_ids_is_still_refuted() -> None:
    trace = "tiny-kimi/as-trained"
    capture = open_capture(str(ROOT / f"traces/{trace}.h5"))
    shifted = np.roll(capture.tokens, 1)
    table = dataclasses.replace(capture.table, token_id=np.full(len(capture.table), -1, np.int64))
    found = check_values(dataclasses.replace(capture, tokens=shifted, table=table), TargetWeights(target_of(trace)))
    assert {check.id: check.verdict for check in found}["token-shift"] == "refuted"


def test_rows_that_stand_still_are_counted_along_the_positions_of_a_trace() -> None:
    capture = open_capture(str(ROOT / "traces/tiny-kimi/as-trained.h5"))
    assert capture.last is not None
    values = capture.last.rows.floats()
    chosen = position_rows(capture, "last")
    values[chosen[60]] = values[chosen[59]]
    stuck = dataclasses.replace(capture.last, rows=ArrayRows(values, DType.FP32))
    whole = inspecting._whole_statistics(dataclasses.replace(capture, last=stuck))
    statistics = inspecting._statistics(capture, "last", stuck.rows, False, whole)
    assert statistics.repeated_rows == 1
    assert statistics.rows_read == len(capture.table)


def test_taken_rows_are_those_of_the_index() -> None:
    scales = np.arange(1, 7, dtype=np.float32)
    rows = ArrayRows(np.arange(12, dtype=np.float32).reshape(6, 2), DType.FP32, scales)
    index = np.array([5, 0, 3, 3])
    assert np.array_equal(TakenRows(rows, index).floats(), rows.floats()[index])
    assert np.array_equal(TakenRows(rows, index).floats(1, 3), rows.floats()[index[1:3]])


def test_of_random_tokens_nothing_is_claimed(tmp_path: Path) -> None:
    """Losses of 9.47 against 11.52 where guessing makes 6.93: 'no last state, hidden_states[2] stands deeper'."""
    target = ROOT / "pairs/tiny-llama/target"
    tokens = np.random.default_rng(3).integers(10, 1000, 120)
    path = tmp_path / "random.safetensors"
    make_reference(target, [tokens], path)
    found = inspect_capture(str(path), target=target)
    assert verdict(found, "last-is-last") == "undecided"
    assert verdict(found, "token-shift") == "undecided"
    assert verdict(found, "last-norm") == "confirmed"
    assert found.problems == ()
    assert any("better than guessing" in check.summary for check in found.checks)


def test_infinite_rows_are_not_called_nan(tmp_path: Path) -> None:
    sample = made.sf_sample(torch.float32)
    sample["hidden_state"][0, 3, 2] = float("inf")
    sample["hidden_state"][0, 5, 2] = float("nan")
    torch.save(sample, tmp_path / "data_0.ckpt")
    found = inspect_capture(str(tmp_path / "data_0.ckpt"))
    stream = io.StringIO()
    render(found, Console(file=stream, width=160, no_color=True))
    assert "2 non-finite" in stream.getvalue()
    assert "NaN" not in stream.getvalue()
    assert found.problems == (
        "hidden_state has 2 rows (the first is row 3) that are not finite (NaN or infinity), of 13 read.",
    )
