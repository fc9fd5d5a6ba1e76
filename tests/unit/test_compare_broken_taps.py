"""NaN throughout the draft was MATCH, and fc's output of zeros: only the target's slots were looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16
from edited_captures import (
    Floats,
    columns_of,
    dump,
    faults,
    in_phase,
    trace,
    with_boundaries,
    with_draft,
    with_slot,
)

from drafttrace.compare.diff import diff
from drafttrace.compare.result import Finding, Result
from drafttrace.tracer.capture import Capture, Phase

PAIRS = pytest.mark.parametrize("pair", ["kimi", "llama"])
BESIDE = pytest.mark.parametrize("beside", [False, True], ids=["alone", "dump"])


def looked_at(left: Capture, pair: str, beside: bool) -> Result:
    return diff(left, dump(pair) if beside else None)


def only(result: Result) -> Finding:
    assert len(faults(result)) == 1, [(f.id, f.summary) for f in result.findings]
    assert (result.verdict, result.exit_code) == ("mismatch", 1)
    return result.findings[0]


def nan(values: Floats) -> Floats:
    return np.full_like(values, np.nan)


def zero(values: Floats) -> Floats:
    return np.zeros_like(values)


def one_row(values: Floats) -> Floats:
    return np.repeat(values[9:10], len(values), 0)


@PAIRS
@BESIDE
def test_healthy_traces_have_no_broken_tap(pair: str, beside: bool) -> None:
    assert faults(looked_at(trace(pair), pair, beside)) == []


@PAIRS
@BESIDE
def test_nan_throughout_the_draft_is_one_finding_and_says_where_it_begins(pair: str, beside: bool) -> None:
    left = trace(pair)
    decode = in_phase(left, Phase.DRAFT_DECODE)
    left = with_draft(with_draft(left, "hidden_out", nan), "topk_logits", nan)
    left = with_draft(left, "hidden_in", nan, decode, columns_of(left, 0))
    found = only(looked_at(left, pair, beside))
    assert found.id == "nan-inf"
    [begins] = found.evidence["begins"]
    assert (begins["tap"], begins["position"], begins["phase"]) == ("hidden_out", 0, "draft_extend_prefill")
    follows = [name.removeprefix("left: ") for name in found.evidence["follows"]]
    assert set(follows) == {"topk_logits", "hidden_in (recycled)"}


@PAIRS
@BESIDE
@pytest.mark.parametrize("tap", ["embed_in", "fc_out", "hidden_out", "topk_logits"])
def test_a_broken_tensor_of_the_draft_is_named(tap: str, pair: str, beside: bool) -> None:
    for change, name in ((nan, "nan-inf"), (zero, "zero-rows"), (one_row, "constant-rows")):
        if (tap, name) == ("topk_logits", "constant-rows"):
            continue  # four logits can be alike by chance
        found = only(looked_at(with_draft(trace(pair), tap, change), pair, beside))
        assert (found.id, found.evidence["begins"][0]["tap"]) == (name, tap), found.summary
        assert tap in found.summary and ("left side" in found.summary) == beside


@PAIRS
@BESIDE
def test_one_number_that_is_not_finite_in_the_drafts_state_is_no_stale_row(pair: str, beside: bool) -> None:
    """It was told as stale-rows alone: the state that the next step took up was another one."""

    def broken(values: Floats) -> Floats:
        values[3, 4] = np.inf
        return values

    found = only(looked_at(with_draft(trace(pair), "hidden_out", broken), pair, beside))
    assert found.id == "nan-inf" and "1 of" in found.summary


@PAIRS
@BESIDE
def test_a_recycled_state_of_zeros_is_told_with_its_step(pair: str, beside: bool) -> None:
    left = with_draft(trace(pair), "hidden_in", zero, in_phase(trace(pair), Phase.DRAFT_DECODE))
    found = only(looked_at(left, pair, beside))
    assert found.id == "zero-rows" and "draft step 1 of round 0" in found.summary
    assert found.evidence["begins"][0]["step"] == 0


@PAIRS
@BESIDE
def test_nan_that_begins_in_the_sweep_is_told_of_the_layer_and_not_of_all_that_follow(
    pair: str, beside: bool
) -> None:
    def late(values: Floats) -> Floats:
        values[4:] = np.nan
        return values

    left = with_boundaries(trace(pair), late, 5, 1000)
    for number, slot in enumerate(left.slots):
        if (slot.boundary or 0) >= 5:
            left = with_slot(left, number, late)
    assert left.last is not None
    left = replace(left, last=replace(left.last, rows=bf16(nan(left.last.rows.floats()))))
    found = only(looked_at(left, pair, beside))
    assert found.id == "nan-inf"
    # The last state is NaN from its first row on, which no inner layer explains.
    begins = [(one["tap"], one["position"]) for one in found.evidence["begins"]]
    assert ("boundary/5", 4) in begins and not any(tap.startswith("aux") for tap, _ in begins), begins


@PAIRS
def test_a_slot_of_zeros_on_both_sides_is_named(pair: str) -> None:
    """'unexplained: median relative L2 nan'."""
    found = only(diff(with_slot(trace(pair), 1, zero), with_slot(dump(pair), 1, zero)))
    assert (found.id, found.slots) == ("zero-rows", (1,))
    assert {one["side"] for one in found.evidence["begins"]} == {"left", "reference"}


@PAIRS
def test_a_slot_that_holds_one_row_is_named_on_either_side_whatever_its_boundary(pair: str) -> None:
    """An embedding slot was 'unexplained': equal rows were looked for in states of the whole text only."""
    for slot in (0, 1):
        for left, reference in (
            (with_slot(trace(pair), slot, one_row), None),
            (with_slot(trace(pair), slot, one_row), dump(pair)),
            (trace(pair), with_slot(dump(pair), slot, one_row)),
        ):
            found = only(diff(left, reference))
            assert (found.id, found.slots) == ("constant-rows", (slot,)), found.summary


@PAIRS
def test_the_finding_about_compared_slots_and_the_one_about_taps_are_one(pair: str) -> None:
    def broken(values: Floats) -> Floats:
        values[10, 3] = np.nan
        return values

    found = only(diff(trace(pair), with_slot(dump(pair), 1, broken)))
    assert found.summary.startswith("1 row in slot 1 is not finite (reference).")
    assert "First: slot 1 of the reference side at position 10, prefill." in found.summary


def test_a_token_whose_vector_is_zero_is_no_fault() -> None:
    """Padding's vector is often zero, and so is every state that holds it, on both sides."""
    left = trace("kimi")
    assert left.embed is not None and left.slots[0].boundary == 0
    token = int(left.table.token_id[9])

    def blank(capture: Capture) -> Callable[[Floats], Floats]:
        def change(values: Floats) -> Floats:
            values[capture.table.token_id[: len(values)] == token] = 0
            return values

        return change

    padded = with_boundaries(with_slot(left, 0, blank(left)), blank(left), 0, 0)
    padded = replace(
        padded, embed=replace(left.embed, rows=bf16(blank(left)(left.embed.rows.floats()))), draft=None
    )
    assert faults(diff(padded, with_slot(dump("kimi"), 0, blank(dump("kimi"))))) == []
    # In the slot alone it is one: the embedding says what the token's vector is.
    assert only(diff(with_slot(replace(left, draft=None), 0, blank(left)), None)).id == "zero-rows"


@PAIRS
@BESIDE
@pytest.mark.parametrize("one", [False, True], ids=["all slots", "one slot"])
def test_fc_input_that_is_nan_in_all_rows_is_named(pair: str, beside: bool, one: bool) -> None:
    """It was a match: with hardly a finite row left, any reading of the bytes was taken to explain them."""
    slots = (1,) if one else (0, 1, 2)
    left = with_draft(trace(pair), "fc_in", nan, columns=columns_of(trace(pair), 1) if one else slice(None))
    assert only(looked_at(left, pair, beside)).slots == slots
    for name in ("fc_out", "hidden_out", "topk_logits"):
        left = with_draft(left, name, nan)
    found = only(looked_at(left, pair, beside))
    assert (found.id, found.slots) == ("nan-inf", slots) and "rows in fc_in (" in found.summary


@PAIRS
@pytest.mark.parametrize("sound", [1, 3])
def test_a_few_finite_rows_of_fc_input_do_not_hide_the_others(pair: str, sound: int) -> None:
    def most(values: Floats) -> Floats:
        values[:-sound] = np.nan
        return values

    assert only(diff(with_draft(trace(pair), "fc_in", most), None)).id == "nan-inf"
