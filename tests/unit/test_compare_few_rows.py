"""Few rows beyond the noise limit: five of a hundred are five of a hundred, and fewer are said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from compare_world import rms
from edited_captures import dump, faults, trace, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.findings.few_rows import cautious
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import NOTE, Result
from drafttrace.compare.thresholds import parse_thresholds

Change = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.floating]]


def _with(pair: str, rows: Sequence[int], change: Change) -> Result:
    def some(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        x[list(rows)] = change(x[list(rows)])
        return x

    return diff(with_slot(replace(trace(pair), draft=None, probes=()), 1, some), dump(pair))


@pytest.mark.parametrize("pair", ["kimi", "llama"])
@pytest.mark.parametrize(("change", "cause"), [(lambda x: x * 0.5, "scale"), (rms, "norm-extra")])
def test_four_rows_of_a_hundred_are_more_than_five_of_a_hundred(pair: str, change: Change, cause: str) -> None:
    """4 of 58 rows, half as large, were "Nothing is wrong: all slots match": six rows were asked for besides the share."""
    found = _with(pair, [5, 16, 30, 41], change)
    assert found.exit_code == 1 and cause in faults(found)
    named = next(f for f in found.findings if f.id == cause and "part" in f.evidence)
    assert named.evidence["part"]["positions"] == [5, 16, 30, 41]


@pytest.mark.parametrize("pair", ["kimi", "llama"])
@pytest.mark.parametrize("rows", [[16], [16, 41]])
def test_fewer_rows_than_that_are_noted_with_their_positions(pair: str, rows: list[int]) -> None:
    alone = replace(
        trace(pair), draft=None, probes=(), boundaries={}, embed=None
    )  # its own sweep would prove them wrong

    def some(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        x[rows] *= np.linspace(0.6, 1.4, x.shape[1], dtype=np.float32)
        return x

    found = diff(with_slot(alone, 1, some), dump(pair))
    notes = [f for f in found.findings if "few_rows" in f.evidence]
    assert [f.severity for f in notes] == [NOTE] and notes[0].evidence["few_rows"] == rows
    assert f"position{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))})" in found.summary
    again = rejudge(found, parse_thresholds(["noise=0.9", "neighbour_noise=9", "blind_noise=0.9"]))
    assert not [f for f in again.findings if f.evidence.get("few_rows")] or again.slots[1].judged.noise_limit < 0.5


def test_a_healthy_pair_has_no_such_note() -> None:
    for pair in ("kimi", "llama"):
        assert not [f for f in diff(trace(pair), dump(pair)).findings if "few_rows" in f.evidence]


@pytest.mark.parametrize(("rows", "words"), [(1, "only 1 row of"), (3, "only 3 rows of")])
def test_that_nothing_is_wrong_is_not_said_of_a_few_rows(rows: int, words: str) -> None:
    """One compared row was "Nothing is wrong: all slots match", with a confidence of 0.95."""
    found = diff(trace("llama"), dump("llama"))
    slots = [replace(slot, rows=rows) for slot in found.slots]
    [told] = [f for f in cautious(found.findings, slots) if f.id == "none"]
    assert told.confidence == 0.3 and words in told.summary
    assert cautious(found.findings, found.slots) == found.findings
