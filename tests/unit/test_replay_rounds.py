"""Accept counts of a trace against the proposals and the text, round by round."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from drafttrace.compare.replay.result import ReplayResult
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]


def counted(pair: str, trace: str, counts: list[int] | None = None, **sampling: Any) -> ReplayResult:
    """A replay of a recorded trace, with other accept counts or another sampling than it had."""
    capture = open_capture(str(ROOT / "traces" / pair / f"{trace}.h5"))
    request = {**capture.about["request"]}
    request["sampling"] = {**request["sampling"], **sampling}
    if counts is not None:
        request["accept_counts"] = counts
    capture = dataclasses.replace(capture, about={**capture.about, "request": request})
    pairs = ROOT / "pairs" / pair
    return replay(capture, pairs / "draft", pairs / "target", switches=False, sglang_version="0.5.23")


def test_counts_that_the_proposals_contradict_are_a_fault_by_rounds() -> None:
    """Six rounds of 3 where every round accepts all that it drafts (5.17 over the text): less than a factor of two."""
    result = counted("tiny-kimi", "fixed", [3] * 6)
    (found,) = result.faults
    assert found.id == "unexplained" and "Accept length 3.00 was observed over 6 rounds" in found.summary
    assert "5 of 6 rounds have another length: 3 for 6 in round 0" in found.summary
    live = json.loads(json.dumps(result.to_json()))["live"]
    assert live["accept_lengths"] == [3] * 6 and live["expected_lengths"] == [6] * 5 + [None]


def test_a_single_round_that_is_one_off_is_a_fault() -> None:
    (found,) = counted("tiny-llama", "healthy", [6, 6, 3, 3, 3, 4, 6]).faults
    assert "1 of 7 rounds have another length: 3 for 4 in round 4" in found.summary


@pytest.mark.parametrize(
    ("pair", "trace"),
    [("tiny-kimi", "fixed"), ("tiny-kimi", "as-trained"), ("tiny-kimi", "shifted"), ("tiny-llama", "healthy")],
)
def test_what_servers_counted_is_what_follows(pair: str, trace: str) -> None:
    live = counted(pair, trace).live
    assert live is not None and live.expected_lengths and live.contradicted == ()
    assert len([k for k in live.expected_lengths if k is not None]) >= len(live.accept_lengths) - 1


def test_of_sampling_that_is_not_greedy_no_rounds_are_expected() -> None:
    result = counted("tiny-kimi", "fixed", [3] * 6, top_k=-1, temperature=0.7)
    assert result.live is not None and result.live.expected_lengths == () and not result.faults


def test_other_rounds_than_counted_are_not_compared() -> None:
    live = counted("tiny-kimi", "fixed", [6] * 5).live
    assert live is not None and live.expected_lengths == () and live.contradicted == ()
