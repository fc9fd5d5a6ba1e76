"""What a user says of a file and the file contradicts: refused by every reader, in one place."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import pytest
from dump_layouts import CASES, Case

from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture, open_numbered

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-kimi/fixed.h5"
IDS = [f"{index}-{case.id}" for index, case in enumerate(CASES)]


def request_of(case: Case, **more: object) -> Request:
    return Request(**{**case.request, **more})  # type: ignore[arg-type]


def sample_of(case: Case) -> int | None:
    return 0 if case.id.startswith("TS-") else None


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("size", [7, 12, 1000])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_hidden_size_that_the_file_contradicts_is_refused(
    case: Case, size: int, lenient: bool, tmp_path: Path
) -> None:
    """``--hidden-size 48`` for a dump of 96 was ignored, and the comparison was a MATCH."""
    path = case.write(tmp_path)
    with pytest.raises(DrafttraceError, match=rf"--hidden-size.*\b{size}\b|\b{size}\b.*--hidden-size") as refused:
        asked = request_of(case, hidden_size=size, lenient=lenient)
        open_capture(str(path), sample=sample_of(case), request=asked)
    assert "\n" not in str(refused.value) and str(refused.value).endswith(".")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_number_of_layer_ids_that_the_file_contradicts_is_refused(case: Case, tmp_path: Path) -> None:
    """Layouts that know their own boundaries did not look at the option at all."""
    path = case.write(tmp_path)
    ids = tuple(range(len(case.slots) + 2))
    if case.id in {"SG-PASS", "SG-DUMPER"}:  # these hold every boundary: any number of them can be named
        asked = request_of(case, layer_ids=ids)
        assert len(open_capture(str(path), sample=sample_of(case), request=asked).slots) == len(ids)
        return
    with pytest.raises(DrafttraceError, match=f"{len(ids)} layer ids are given .*--layer-ids"):
        open_capture(str(path), sample=sample_of(case), request=request_of(case, layer_ids=ids))


def test_a_trace_is_held_against_what_is_said_of_it_as_a_dump_is() -> None:
    assert open_capture(str(TRACE), request=Request(hidden_size=96, layer_ids=(2, 30, 58))).hidden_size == 96
    with pytest.raises(DrafttraceError, match=r"--hidden-size is 48, and 'aux/0' of .* is 96 wide; .*give 96"):
        open_capture(str(TRACE), request=Request(hidden_size=48))
    with pytest.raises(DrafttraceError, match=r"2 layer ids are given .2, 30. where .* has 3 slots"):
        open_numbered(str(TRACE), request=Request(layer_ids=(2, 30)))


def test_a_hidden_size_of_the_other_side_is_no_contradiction(tmp_path: Path) -> None:
    """Two targets of different widths are for the comparison to tell: the dump itself is read."""
    path = made.write_sf_eagle3(tmp_path)
    assert open_capture(str(path), like=open_capture(str(TRACE))).hidden_size == made.H
    assert open_capture(str(path), request=Request().told(made.H * 2, None)).hidden_size == made.H
