"""Sentences about parts of rows: one cause is told once, and the remedy is one for these rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from compare_world import bf16, rms
from edited_captures import dump, faults, trace, with_slot

from drafttrace import plots
from drafttrace.compare.diff import diff
from drafttrace.compare.part_words import part_levels
from drafttrace.compare.result import Result, RowPart

Floats = npt.NDArray[np.float32]
Change = Callable[[Floats], npt.NDArray[np.floating]]


def _with(pair: str, slot: int, change: Change, *, swept: bool = True) -> Result:
    left = replace(trace(pair), draft=None, probes=())
    left = left if swept else replace(left, boundaries={})
    return diff(with_slot(left, slot, change), dump(pair))


def _misread(x: Floats) -> Floats:
    return bf16(x).raw(0, len(x)).view(np.float16).astype(np.float32)


@pytest.mark.parametrize("pair", ["kimi", "llama"])
@pytest.mark.parametrize("swept", [True, False])
@pytest.mark.parametrize("channel", [17, 46])
def test_a_channel_of_zeros_is_told_of_the_slot_alone(pair: str, swept: bool, channel: int) -> None:
    """It was told of "26 of 58 rows ... while the others match" as well, and as "all of 17 to 17"."""

    def change(x: Floats) -> Floats:
        x[:, channel] = 0
        return x

    found = _with(pair, 0, change, swept=swept)
    assert faults(found).count("zero-rows") == 1, [f.summary for f in found.findings]
    assert f"1 of {found.left.hidden_size}, channel {channel}" in found.findings[0].summary


@pytest.mark.parametrize("pair", ["kimi", "llama"])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("change", [_misread, rms])
def test_every_second_row_is_not_told_of_the_whole_slot_too(pair: str, start: int, change: Change) -> None:
    def some(x: Floats) -> Floats:
        x[start::2] = change(x[start::2])
        return x

    for swept in (True, False):
        found = _with(pair, 1, some, swept=swept)
        assert len(faults(found)) == 1 and "very 2nd row" in found.findings[0].summary


def test_the_remedy_of_a_part_is_one_for_these_rows() -> None:
    """ "Look at ... a kernel's tile. The target's weights were rotated on one side only: train the draft again"."""
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((128, 128)))[0].astype(np.float32)

    def some(x: Floats) -> Floats:
        x[10:30] = x[10:30] @ turn
        return x

    [named] = [f for f in _with("llama", 1, some).findings if f.id == "rotation"]
    assert "train the draft" not in named.remedy and "These rows alone are in another basis" in named.remedy


def test_the_numbers_of_several_slots_are_told_as_a_range() -> None:
    part = RowPart("run", "noise", "", 5, 24, 1, 20, 20, 58, 0.5, 0.01, 0.07, 0.85)
    parts = [part, replace(part, rel_l2=0.9, limit=0.1), replace(part, rel_l2=0.7)]
    assert part_levels(parts) == "median relative L2 0.5 to 0.9, limits 0.07 to 0.1; the other rows 0.01"
    assert part_levels(parts[:1]) == "median relative L2 0.5, limit 0.07; the other rows 0.01"


def test_the_picture_says_what_its_lines_are() -> None:
    pytest.importorskip("matplotlib")
    found = diff(trace("llama"), dump("llama"))
    for measure, words in (("norm", ("solid: left", "dashed: reference")), ("rel_l2", ("dotted: limit",))):
        figure = plots.by_position(found, measure)  # type: ignore[arg-type]
        [axes] = figure.axes
        assert all(word in axes.get_legend().get_title().get_text() for word in words)
    limits = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert len(limits) == len(found.slots)


def test_a_slot_s_transformation_stands_beside_its_limit() -> None:
    [found] = [f for f in _with("llama", 1, lambda x: x * 1.3).findings if f.severity == "fault"]
    assert found.id == "scale" and "median relative L2 0.3, limit " in found.summary
