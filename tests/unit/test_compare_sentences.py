"""Sentences that said more than was looked at, less than was known, or sent the reader to the wrong place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from edited_captures import Floats, columns_of, draft_of, in_phase, trace, with_draft, with_slot

from drafttrace.compare.diff import diff
from drafttrace.tracer.capture import Phase

PAIRS = pytest.mark.parametrize("pair", ["kimi", "llama"])


@PAIRS
def test_a_trace_without_slots_does_not_agree_with_itself(pair: str) -> None:
    """'what fc received was not recorded', though it was."""
    [note] = [f for f in diff(replace(trace(pair), slots=()), None).findings if f.id == "none"]
    assert note.summary.startswith("Nothing in the trace contradicts it") and note.confidence == 0.5
    assert "held against nothing" in note.summary


@PAIRS
def test_two_traces_that_agree_say_what_was_not_compared(pair: str) -> None:
    other = with_draft(replace(trace(pair), path="again.h5"), "fc_out", lambda values: values * 2)
    assert "what the two drafts made of that was not compared" in diff(trace(pair), other).summary


@PAIRS
def test_findings_of_fc_s_input_and_of_zeros_give_numbers_beside_limits(pair: str) -> None:
    left = trace(pair)
    found = diff(with_draft(left, "fc_in", lambda values: values * 4, columns=columns_of(left, 2)), None).findings[
        0
    ]
    assert "median relative L2 of 0.75" in found.summary and "limit 0.1" in found.summary
    rng = np.random.default_rng(0)
    garbage = with_draft(
        left, "fc_in", lambda values: rng.standard_normal(values.shape), columns=columns_of(left, 2)
    )
    found = diff(garbage, None).findings[0]
    assert found.id == "unexplained" and "rows differ by a median relative L2" in found.summary
    assert "none may be" in diff(with_draft(left, "fc_out", np.zeros_like), None).summary


@PAIRS
def test_stale_rows_of_the_prompt_are_not_sent_to_graphs(pair: str) -> None:
    left = trace(pair)

    def late(values: Floats) -> Floats:
        values[[20, 24, 31]] = values[[17, 17, 17]]
        return values

    found = next(f for f in diff(with_slot(left, 1, late), None).findings if f.id == "stale-rows")
    assert "--chunked-prefill-size" in found.remedy and "graph" not in found.remedy.lower()
    rows = np.flatnonzero(in_phase(left, Phase.DRAFT_EXTEND_PREFILL) & draft_of(left).present["fc_in"])

    def copied(values: Floats) -> Floats:
        values[rows[[20, 24, 31, 33]]] = values[rows[[3, 17, 5, 9]]]
        return values

    found = next(f for f in diff(with_draft(left, "fc_in", copied), None).findings if f.id == "stale-rows")
    assert "--chunked-prefill-size" in found.remedy and "graph" not in found.remedy.lower()
