"""A large trace is on its way to the disk before it is finished."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema, writeback
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.reader import read_trace
from drafttrace.tracer.trace.writer import TraceWriter

WIDTH = 4096
ROWS = 256  # 2 MiB


def write(path: Path, batches: int) -> None:
    block = np.ones((ROWS, WIDTH), np.uint16)
    writer = TraceWriter(path, TraceLayout((TensorSpec("aux/0", WIDTH, DType.BF16),)), request_id="r")
    for number in range(batches):
        rows = schema.records(schema.TARGET_ROW, ROWS, position=np.arange(ROWS) + ROWS * number)
        writer.append_target(rows, {"aux/0": block})
        writer.flush()
    writer.finish(complete=True)


def test_the_disk_is_asked_once_in_eight_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(writeback, "_sync_file_range", lambda: lambda *arguments: asked.append(arguments) or 0)
    write(tmp_path / "small.h5", 3)
    assert not asked
    write(tmp_path / "large.h5", 12)
    assert len(asked) == 3 and all(arguments[1:] == (0, 0, 2) for arguments in asked)


def test_a_system_that_does_not_know_it_writes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "_sync_file_range", lambda: None)
    write(tmp_path / "t.h5", 5)
    assert len(read_trace(tmp_path / "t.h5").table) == 5 * ROWS


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sync_file_range(2) is Linux's")
def test_the_kernel_takes_the_call(tmp_path: Path) -> None:
    begin = writeback._sync_file_range()
    assert begin is not None
    with open(tmp_path / "file", "wb") as file:
        file.write(b"x" * 100)
        file.flush()
        assert begin(file.fileno(), 0, 0, 2) == 0
    assert begin(-1, 0, 0, 2) == -1  # and a refusal is an answer, not an exception
