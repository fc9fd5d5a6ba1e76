"""Two recordings of a miswired server agree: that was told as a fault downstream of fc, and blamed on the draft."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from edited_captures import TRACES, dump, faults, trace

import drafttrace
from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import NOTE, Result, load_result
from drafttrace.compare.thresholds import DEFAULT
from drafttrace.tracer.capture import Capture


def accepting(left: Capture, counts: list[int], **arguments: Any) -> Capture:
    """The trace with other accept lengths, and other server arguments."""
    request = {**left.about["request"], "accept_counts": counts}
    served = {**left.about["server_args"], **arguments}
    return replace(left, about={**left.about, "request": request, "server_args": served})


def notes(result: Result) -> list[str]:
    return [f.summary for f in result.findings if f.id == "downstream" and f.severity == NOTE]


@pytest.mark.parametrize("name", ["as-trained", "shifted"])
def test_two_recordings_of_a_miswired_server_prove_no_wiring(name: str) -> None:
    one = drafttrace.open(TRACES / f"tiny-kimi/{name}.h5")
    found = diff(one, replace(one, path="again.h5"))
    first = found.findings[0]
    assert found.summary.startswith("Both sides agree") and "do not prove their wiring" in found.summary
    assert "the hidden states are right" not in found.summary.lower()
    assert first.confidence <= 0.5 and first.remedy.startswith("Only what training stored can tell")
    assert "drafttrace diff TRACE DUMP" in first.remedy
    # A saved result still knows that no training dump was compared.
    saved = load_result(json.dumps(found.to_json()))
    assert rejudge(saved, replace(DEFAULT, accept=1.5)).summary.replace("1.50", "1.15") == found.summary


def test_two_recordings_that_agree_say_so_and_no_more() -> None:
    found = diff(trace("kimi"), replace(trace("kimi"), path="again.h5"))
    assert found.summary.startswith("Both sides agree: all slots match") and not faults(found)
    assert "Only what training stored can tell" in found.findings[0].remedy
    assert diff(trace("kimi"), dump("kimi")).summary.startswith("Nothing is wrong: all slots match")


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "dump"])
def test_a_curve_that_breaks_down_at_one_step_is_told_without_an_expected_length(beside: bool) -> None:
    reference = dump("llama") if beside else None
    [told] = notes(diff(accepting(trace("llama"), [2] * 30), reference))
    assert told.startswith(
        "Draft token 1 is accepted in 100% of the rounds that reach it, token 2 in 0% (30 rounds)"
    )
    [told] = notes(diff(accepting(trace("llama"), [4] * 18 + [1, 2] * 3), reference))
    assert told.startswith(
        "Draft token 3 is accepted in 100% of the rounds that reach it, token 4 in 0% (18 rounds)"
    )
    # A server that drafts one token has no second one to lose, and two rounds are none.
    assert not notes(diff(accepting(trace("llama"), [2] * 30, speculative_num_steps=1), reference))
    assert not notes(diff(accepting(trace("llama"), [2] * 30, speculative_num_steps=None), reference))
    assert not notes(diff(accepting(trace("llama"), [2] * 5), reference))


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "dump"])
def test_an_accept_length_of_1_6_is_told_without_an_expected_one(beside: bool) -> None:
    """README's own story: 1.59, and 'Nothing is wrong'."""
    reference = dump("llama") if beside else None
    counts = [1, 2, 1, 2, 3, 1, 2, 1, 1, 2] * 4
    found = diff(accepting(trace("llama"), counts), reference)
    [told] = notes(found)
    assert told.startswith("The accept length of 1.60 is low for 5 drafted tokens a round (at most 6.00)")
    assert found.exit_code == 0 and "Nothing is wrong" not in found.summary
    assert not notes(diff(accepting(trace("llama"), [3, 4, 2, 6] * 4), reference))


@pytest.mark.parametrize("pair", ["tiny-kimi/fixed.h5", "tiny-llama/healthy.h5", "smol/as-trained.h5"])
def test_the_committed_traces_have_no_such_note(pair: str) -> None:
    assert not notes(drafttrace.diff(TRACES / pair))
