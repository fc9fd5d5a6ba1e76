"""What an inspection says without a target, its machine form, and its rendering."""

from __future__ import annotations

import io
import json
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from dump_layouts import CASES, Case

from drafttrace.tracer.dumps.from_mapping import parse_fields
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.inspecting import inspect_capture, render
from drafttrace.tracer.printable import printable
from drafttrace.tracer.row_statistics import row_statistics
from drafttrace.tracer.rows import ArrayRows, DType

IDS = [f"{index}-{case.id}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_layout_can_be_looked_at(case: Case, tmp_path: Path) -> None:
    from rich.console import Console

    path = case.write(tmp_path)
    found = inspect_capture(str(path), request=Request(**case.request))
    assert found.format == case.id
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["schema"] == "drafttrace.inspection/1"
    stream = io.StringIO()
    render(found, Console(file=stream, width=120, no_color=True))
    shown = stream.getvalue()
    assert case.id in shown
    assert len([state for state in found.states if state.role == "slot"]) == len(case.slots)
    if case.id != "SPEC-FP8":  # eight bits make neighbouring rows of the tiny sample equal
        assert found.problems == ()


def test_a_missing_hidden_size_does_not_stop_a_look(tmp_path: Path) -> None:
    found = inspect_capture(str(made.write_sf_dflash(tmp_path)))
    assert [state.shape for state in found.states] == [(made.LENGTH, 4 * made.H)]


def test_many_samples(tmp_path: Path) -> None:
    for k in range(3):
        torch.save(made.sf_sample(), tmp_path / f"data_{k + 5}.ckpt")
    found = inspect_capture(str(tmp_path))
    assert (found.sample_count, found.sample) == (3, 5)
    assert inspect_capture(f"{tmp_path}#7").sample == 7


def test_statistics_keep_row_zero_apart() -> None:
    values = np.ones((40, 4), np.float32)
    values[0] = 1000
    values[5:] *= np.arange(1, 36, dtype=np.float32)[:, None]
    found = row_statistics(ArrayRows(values, DType.FP32))
    assert found.norm_row0 == 2000
    assert found.norm_max == 70
    assert found.rows_read == 40
    assert found.repeated_rows == 4  # rows 2 to 5 repeat row 1
    single = row_statistics(ArrayRows(values[:1], DType.FP32))
    assert single.norm_mean == 2000


def test_statistics_sample_a_large_matrix() -> None:
    class Large(ArrayRows):
        """Repeats a small array as if it were a hundred million elements."""

        def __init__(self) -> None:
            super().__init__(np.ones((1, 4096), np.float32), DType.FP32)
            self.shape = (100_000, 4096)
            self.read = 0

        def raw(self, start: int, stop: int) -> np.ndarray:
            self.read += stop - start
            return np.ones((stop - start, 4096), np.float32)

    rows = Large()
    found = row_statistics(rows)
    assert found.rows_read == rows.read < 20_000
    assert found.norm_mean == 64


def test_infinities_and_huge_values() -> None:
    values = np.ones((4, 4), np.float32)
    values[1, 2] = np.inf
    values[2] = 3e38
    found = row_statistics(ArrayRows(values, DType.FP32))
    assert found.nan_rows == 1
    assert found.norm_max is not None
    assert found.norm_max > 5e38


def test_text_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[31mb\n\u202ec\u2028") == "a\\x1b[31mb\\n\\u202ec\\u2028"


def test_an_undeclared_embedding_that_repeats_with_its_tokens_is_no_problem(tmp_path: Path) -> None:
    """Equal neighbours were a problem unless the file, or a target, said that the slot is the embedding."""
    tokens = np.array([3, 5, 5, 7, 7, 7, 1, 2])
    table = np.random.default_rng(1).normal(size=(10, 4)).astype(np.float32)
    deep = np.random.default_rng(2).normal(size=(8, 4)).astype(np.float32)
    mapping = parse_fields("a,b", "ids", None, last_norm="unknown", mask=None, boundaries=None)
    np.savez(tmp_path / "good.npz", a=table[tokens], b=deep, ids=tokens)
    assert inspect_capture(str(tmp_path / "good.npz"), mapping=mapping).problems == ()
    deep[7] = deep[6]
    np.savez(tmp_path / "bad.npz", a=table[tokens], b=deep, ids=tokens)
    (problem,) = inspect_capture(str(tmp_path / "bad.npz"), mapping=mapping).problems
    assert problem.startswith("b has 1 row (row 7) equal to the row before")
