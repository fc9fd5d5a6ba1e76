"""Sides without slots: nothing compared is no match, and what was compared in their place is named."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import dump_layouts as made
import numpy as np
import pytest
import torch
from compare_world import bf16, dumped, make_world, served
from dump_variants import write_trace

import drafttrace
from drafttrace.compare import report_html, report_markdown, report_terminal
from drafttrace.compare.diff import diff, measure_slots
from drafttrace.compare.judge import rejudge
from drafttrace.compare.noise_pair import measure_noise
from drafttrace.compare.result import Result
from drafttrace.compare.saving import save
from drafttrace.tracer.capture import Capture, DraftRows, Probe, RowTable
from drafttrace.tracer.errors import NothingToCompare

WORLD = make_world(layers=8, tokens=24)
WIRING = (2, 4, 5)


def bare(capture: Capture, **more: Any) -> Capture:
    return replace(capture, slots=(), **more)


def everywhere(result: Result) -> list[str]:
    """The result as every report tells it, and judged again."""
    again = rejudge(result, result.thresholds)
    assert (again.verdict, again.exit_code, again.summary) == (result.verdict, result.exit_code, result.summary)
    texts = [report_terminal.as_text(result, 400), report_markdown.render(result), report_html.render(result)]
    return [" ".join(text.split()) for text in texts]


@pytest.mark.parametrize(
    "left", [bare(served(WORLD, WIRING, sweep=())), bare(dumped(WORLD, WIRING), path="other.pt")]
)
def test_a_match_without_slots_says_what_matches(left: Capture) -> None:
    """'Nothing is wrong: all slots match', said of a last state alone."""
    result = diff(left, bare(dumped(WORLD, WIRING)))
    assert (result.verdict, result.slots, [state.slot for state in result.others]) == ("match", (), [-1])
    said = "The last state matches, and no slots were compared: neither side has any."
    assert result.summary.startswith(said)
    for text in everywhere(result):
        assert said in text and "all slots match" not in text.lower()
    [finding] = [finding for finding in result.findings if finding.id == "none"]
    assert finding.evidence["compared"] == ["the last state"] and "--layer-ids" in finding.remedy


@pytest.mark.parametrize(
    ("left", "who"),
    [
        (bare(served(WORLD, WIRING, sweep=())), "The server hands over no slots"),
        (bare(dumped(WORLD, WIRING), path="other.pt"), "The left side holds no slots"),
    ],
)
def test_a_left_side_without_the_slots_of_the_reference_is_no_match(left: Capture, who: str) -> None:
    """'Nothing is wrong: all slots match', and the other way round it was 'slot-count'."""
    for result in (diff(left, dumped(WORLD, WIRING)), diff(left, dumped(WORLD, WIRING, last=None))):
        if result.others:
            assert (result.verdict, result.exit_code, result.findings[0].id) == ("mismatch", 1, "slot-count")
            assert result.summary.startswith(f"{who}, the reference has 3: what fc reads was not compared.")
        else:
            assert (result.verdict, result.exit_code) == ("incomparable", 2)
            assert "no slots and a last state after the final norm" in result.summary
        everywhere(result)


def test_no_fault_downstream_of_fc_is_told_where_no_slots_were_compared() -> None:
    """A low accept length made it 'The hidden states are right', of states that nobody compared."""
    request = {"accept_counts": [1] * 40}
    left = bare(served(WORLD, WIRING, prompt=4, sweep=()))
    left = replace(left, about=left.about | {"request": request})
    with_slots = replace(served(WORLD, WIRING, prompt=4, sweep=()), about=left.about)
    dump = dumped(WORLD, WIRING)
    found = [diff(with_slots, dump), diff(left, bare(dump))]
    assert [any(f.id == "downstream" for f in one.findings) for one in found] == [True, False]
    assert "observed accept length 1.00" in found[1].summary


@pytest.mark.parametrize(("level", "verdict"), [(0.06, "noise"), (0.0, "match")])
def test_an_embedding_alone_makes_the_verdict(level: float, verdict: str) -> None:
    left = bare(served(WORLD, WIRING, sweep=()), last=None)
    assert left.embed is not None
    rng = np.random.default_rng(1)
    rows = left.embed.rows.floats() * (1 + level * rng.standard_normal((len(left.embed.rows), 64)))
    result = diff(left, replace(left, path="other.h5", embed=replace(left.embed, rows=bf16(rows))))
    assert (result.verdict, [state.slot for state in result.others]) == (verdict, [-2])
    does = "matches" if verdict == "match" else "differs by noise alone"
    assert result.summary.startswith(f"The embedding {does}, and no slots were compared: neither side has any")
    everywhere(result)


@pytest.mark.parametrize("state", ["embed", "last"])
def test_a_state_that_differs_is_a_mismatch_without_slots_too(state: str) -> None:
    """An embedding of another model was a MATCH where no side had slots."""
    left = bare(served(WORLD, WIRING, sweep=()))
    held = getattr(left, state)
    other = bf16(np.random.default_rng(2).standard_normal((len(held.rows), 64)))
    result = diff(left, replace(left, path="other.h5", **{state: replace(held, rows=other)}))
    assert (result.verdict, result.exit_code) == ("mismatch", 1)
    assert ("The embedding differs" if state == "embed" else "The last state differs") in result.summary
    everywhere(result)


def test_nothing_in_common_is_no_match() -> None:
    """Two sides without one state that both have: it is said what each holds, and what to give."""
    left = bare(served(WORLD, WIRING, sweep=(1, 3)), embed=None, last=None)
    result = diff(left, bare(dumped(WORLD, WIRING, last="pre")))
    assert (result.verdict, result.exit_code, result.slots, result.others) == ("incomparable", 2, (), ())
    assert "'trace.h5' holds no slots and the boundaries B1, B3, 'dump.pt' no slots and a last state before" in (
        result.summary
    )
    assert "name the slots with --layer-ids or --slots, or give a trace and a dump that have some" in result.summary
    for text in everywhere(result):
        assert "could not compare" in text.lower() or "incomparable" in text.lower()


def test_slots_without_a_common_row_are_told() -> None:
    left = served(WORLD, WIRING, sweep=())
    left = replace(left, present={slot.name: np.zeros(len(left.table), np.bool_) for slot in left.slots})
    result = diff(left, dumped(WORLD, WIRING, last=None))
    assert (result.verdict, result.exit_code) == ("incomparable", 2)
    everywhere(result)


def empty(capture: Capture) -> Capture:
    none = RowTable.of_tokens(np.empty(0, np.int64))
    slots = tuple(replace(slot, rows=bf16(np.empty((0, 64), np.float32))) for slot in capture.slots)
    return replace(capture, table=none, slots=slots, embed=None, last=None, boundaries={}, valid_length=0)


@pytest.mark.parametrize("draft", [True, False])
def test_a_trace_without_rows_is_no_match(draft: bool) -> None:
    """``drafttrace diff trace.h5`` of a trace of no rows was a MATCH: 'the trace agrees with itself'."""
    rows = DraftRows(RowTable.of_tokens(np.empty(0, np.int64)), {}, {}) if draft else None
    trace = replace(empty(served(WORLD, WIRING)), draft=rows, probes=(Probe("aux/0", 0, 0, 0, 0),))
    result = diff(trace, None)
    assert (result.verdict, result.exit_code) == ("incomparable", 2)
    assert result.summary == "'trace.h5' holds no rows, so there is nothing to check; record the request again."
    everywhere(result)
    between = diff(trace, dumped(WORLD, WIRING))
    assert (between.verdict, between.exit_code) == ("incomparable", 2)
    assert [finding.id for finding in between.findings][:1] == ["no-overlap"] and between.findings[0].remedy
    everywhere(between)


def test_a_trace_without_rows_of_a_draft_is_no_match_alone(tmp_path: Path) -> None:
    """Nothing in it was checked against anything, and it 'agreed with itself'."""
    trace = write_trace(tmp_path)
    result = drafttrace.diff(trace)
    assert (result.verdict, result.exit_code) == ("incomparable", 2)
    assert result.summary.endswith(f"give what training stored: drafttrace diff {trace} DUMP.")


def test_a_tap_that_never_fired_is_a_fault_of_a_trace_without_rows_too() -> None:
    trace = replace(empty(served(WORLD, WIRING)), probes=(Probe("aux/0", 9, 0, 0, 0),))
    result = diff(trace, None)
    assert (result.verdict, result.exit_code) == ("mismatch", 1)


def test_recordings_without_slots_are_no_noise_floor() -> None:
    one = bare(served(WORLD, WIRING))
    with pytest.raises(NothingToCompare, match="have no slots to compare; record a server whose draft has fc"):
        measure_noise(one, replace(one, path="two.h5"))
    with pytest.raises(
        NothingToCompare, match=r"'trace\.h5' has no slots to measure; give a trace or dump that has"
    ):
        measure_slots(one, dumped(WORLD, WIRING))


def test_files_without_slots_are_told_by_every_way_in(tmp_path: Path) -> None:
    one = made.write_eagle12(tmp_path)
    two = Path(shutil.copy(one, tmp_path / "again.ckpt"))
    result = drafttrace.diff(one, two)
    assert result.verdict == "match"
    assert result.summary == "The last state matches, and no slots were compared: neither side has any."
    save(result, tmp_path / "r.json")
    assert drafttrace.load(tmp_path / "r.json").summary == result.summary
    value = torch.load(two, weights_only=True)
    torch.save(value | {"hidden_state": value["hidden_state"] + 20}, two)
    assert drafttrace.diff(one, two).verdict == "mismatch"
