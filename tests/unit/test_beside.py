"""What is taken into a comparison because it lies beside the trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import pytest

import drafttrace
from drafttrace.tracer.beside import gather
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.trace.texts import replace_block

HEALTHY = Path(__file__).resolve().parents[2] / "traces/tiny-llama/healthy.h5"


def of_request(path: Path, rid: str) -> None:
    """Make a trace one of another request."""
    with h5py.File(path, "r+") as file:
        request = json.loads(b"".join(file["about/request"][()]))
        replace_block(file, "request", {**request, "rid": rid})


def test_a_rank_s_trace_that_an_earlier_recording_left_is_refused(tmp_path: Path) -> None:
    """NAME_rank1.h5 of another request was compared with NAME.h5, where both had as many rows."""
    mine, other = tmp_path / "t.h5", tmp_path / "t_rank1.h5"
    shutil.copyfile(HEALTHY, mine)
    shutil.copyfile(HEALTHY, other)
    (found,) = gather(drafttrace.open(mine), None).rank_traces
    assert found.path == str(other)
    other.unlink()
    shutil.copyfile(HEALTHY, other)
    of_request(other, "drafttrace-of-yesterday")
    with pytest.raises(DrafttraceError, match=r"of the request 'drafttrace-of-yesterday' and .*t\.h5' of"):
        gather(drafttrace.open(mine), None)
