"""Expectations that no server can meet, and probes that fired in some passes only: neither was questioned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from edited_captures import dump, trace

from drafttrace.compare.acceptance import Expected, parse_expected, reachable
from drafttrace.compare.diff import diff
from drafttrace.compare.result import NOTE
from drafttrace.tracer.errors import DrafttraceError


@pytest.mark.parametrize("text", ["0", "0.0", "0,0.5", "6.5", "900"])
def test_an_expectation_that_nothing_can_fall_short_of_or_reach_is_refused(text: str) -> None:
    with pytest.raises(DrafttraceError, match=r"expected accept length of .*0\.75,0\.71,0\.68"):
        parse_expected(text, 5)


def test_what_a_server_can_reach_is_taken() -> None:
    assert parse_expected("6", 5).length == 6 and parse_expected("1", 5).length == 6
    assert parse_expected("6.5", None).length == 6.5  # a trace that does not say how many tokens are drafted
    with pytest.raises(DrafttraceError, match="no round gives more than 6"):
        reachable(Expected(6.01, (), "given"), 5)


def test_accuracies_of_steps_that_the_server_does_not_take_do_not_count() -> None:
    """Seven steps of training-time test, and a server that drafts three."""
    assert parse_expected("0.8,0.7,0.6,0.5,0.5", 3) == parse_expected("0.8,0.7,0.6", 3)
    assert len(parse_expected("0.8,0.7", 3).accuracies) == 2


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "dump"])
def test_a_probe_that_fired_in_some_passes_only_is_told(beside: bool) -> None:
    left = trace("llama")
    reference = dump("llama") if beside else None
    assert not [f for f in diff(left, reference).findings if f.id == "probe-silent"]
    half = [replace(p, fired=p.fired // 2) if p.name == "aux/1" else p for p in left.probes]
    result = diff(replace(left, probes=tuple(half)), reference)
    [note] = [f for f in result.findings if f.id == "probe-silent"]
    assert note.severity == NOTE and result.exit_code == 0
    assert "aux/1 (aux/1: 4 of 8)" in note.summary and note.evidence["aux/1"]["fired"] == 4
