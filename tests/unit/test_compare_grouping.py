"""One cause is told once, with every slot's own number, of the side and of the row that has it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compare_faults import over_slots, scaled
from compare_world import bf16, dumped, make_world, served

from drafttrace import plots
from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture, RowTable

WORLD = make_world(layers=14, tokens=64)
WIRING = (2, 6, 11)
CLOSE = WORLD.noisy(0.01)


def faults(found: Result) -> list[str]:
    return [f.id for f in found.findings if f.severity == FAULT]


def plain(slots: list[Any]) -> Capture:
    """A dump of tensors without names that say anything: both sides call their slots alike."""
    made = dumped(WORLD, WIRING, last=None)
    count = len(slots[0])
    tokens = np.random.default_rng(1).integers(0, 30_000, count)
    return replace(
        made,
        tokens=tokens,
        table=RowTable.of_tokens(tokens),
        valid_length=count,
        slots=tuple(
            replace(made.slots[i], name=f"slot[{i}]", rows=bf16(rows), boundary=None)
            for i, rows in enumerate(slots)
        ),
    )


def unlike(massive: bool) -> list[Any]:
    """Slots of different sizes; massive: two channels hold one value in every row."""
    rng = np.random.default_rng(1)
    slots = [rng.standard_normal((400, 64)) * size for size in (1, 4, 12)]
    if massive:
        for rows, size in zip(slots, (1, 4, 12), strict=True):
            rows[:, 5], rows[:, 20] = 80 * size, -60 * size
    return slots


def nearly(slots: list[Any]) -> list[Any]:
    rng = np.random.default_rng(2)
    return [rows * (1 + 0.004 * rng.standard_normal(rows.shape)) for rows in slots]


@pytest.mark.parametrize("massive", [False, True])
def test_two_dumps_that_call_their_slots_alike_show_a_swap_and_no_scale(massive: bool) -> None:
    """Slot 1 "times -0.0016": the reference's rows were read in place of the left side's of the same name."""
    slots = unlike(massive)
    assert faults(diff(plain(nearly(slots)), plain([slots[1], slots[0], slots[2]]))) == ["slot-permutation"]


@pytest.mark.parametrize("massive", [False, True])
def test_a_scale_where_all_rows_have_one_size_is_no_norm(massive: bool) -> None:
    """Dividing by the root mean square of rows of one size is a factor; norm-missing was told."""
    slots = unlike(massive)
    found = diff(plain(nearly(slots)), plain([rows * 1.04 for rows in slots]))
    assert faults(found) == ["scale"], [f.summary for f in found.findings]
    # One cause, one side: "times 0.9614 (slot 0)" of the server and "1.04 (slot 1)" of the reference were one sentence.
    assert len(set(re.findall(r"times (0\.96|1\.04|1\.03)", found.summary))) == 1


def test_three_factors_are_three_numbers() -> None:
    dump = dumped(CLOSE, WIRING)
    for slot, factor in enumerate((1.2, 0.5, 3.0)):
        dump = scaled(factor, (slot,))(dump)
    found = diff(served(WORLD, WIRING), dump)
    assert faults(found) == ["scale"]
    assert re.search(
        r"times 1\.\d+ \(slot 0\), 0\.\d+ \(slot 1\) and (3|3\.0\d*|2\.99\d*) \(slot 2\)", found.summary
    )


@pytest.mark.parametrize("first", [0, 32])
def test_channels_of_zeros_are_named(first: int) -> None:
    """They were told as a gain per channel, "which is not w, w - 1, w + 1"."""

    def half(rows: Any) -> Any:
        rows = rows.copy()
        rows[:, first : first + 32] = 0
        return rows

    found = diff(served(WORLD, WIRING), over_slots(half, (0, 2))(dumped(CLOSE, WIRING)))
    assert faults(found) == ["zero-rows"] and found.findings[0].slots == (0, 2)
    assert f"32 of 64, all of {first} to {first + 31}" in found.summary


def test_a_few_channels_of_zeros_are_named_though_the_boundary_is_found() -> None:
    def some(rows: Any) -> Any:
        rows = rows.copy()
        rows[:, [7, 9, 30]] = 0
        return rows

    found = diff(served(WORLD, WIRING), over_slots(some, (1,))(dumped(CLOSE, WIRING)))
    assert faults(found) == ["zero-rows"] and "3 of 64, in 7 to 30" in found.summary


@pytest.mark.parametrize(("copy", "source"), [(10, 30), (30, 10)])
def test_of_two_equal_rows_the_reference_tells_which_one_is_the_copy(copy: int, source: int) -> None:
    """Row 10 that holds row 30 was told as "row 30 is a copy of row 10"."""

    def put(rows: Any) -> Any:
        rows = rows.copy()
        rows[copy] = rows[source]
        return rows

    found = diff(served(WORLD, WIRING), over_slots(put)(dumped(WORLD, WIRING)))
    assert faults(found) == ["stale-rows"] and found.findings[0].slots == (0, 1, 2)
    assert f"first: position {copy}" in found.summary and f"there: position {source}" in found.summary
    assert ("earlier" in found.summary) == (source < copy)


def test_one_unknown_cause_is_one_finding() -> None:
    rng = np.random.default_rng(0)

    def other(rows: Any) -> Any:
        return rng.standard_normal(rows.shape) * np.linalg.norm(rows, axis=1, keepdims=True) / 8

    found = diff(served(WORLD, WIRING), over_slots(other)(dumped(CLOSE, WIRING)))
    assert faults(found) == ["unexplained"] and found.findings[0].slots == (0, 1, 2)
    for slot in found.slots:
        assert f"slot {slot.slot}: {slot.rel_l2.p50:.3g}, limit {slot.judged.noise_limit:.3g}" in found.summary


def test_odd_rows_are_counted_by_slot() -> None:
    rng = np.random.default_rng(0)

    def odd(count: int) -> Any:
        def put(rows: Any) -> Any:
            rows = rows.copy()
            for row in range(20, 20 + 7 * count, 7):
                rows[row] = rng.permutation(rows[row])
            return rows

        return put

    dump = over_slots(odd(1), (0,))(over_slots(odd(3), (2,))(dumped(CLOSE, WIRING)))
    found = diff(served(WORLD, WIRING), dump)
    assert faults(found) == ["unexplained"] and "1 (slot 0) and 3 (slot 2) rows hold" in found.summary


def test_legends_stand_beside_the_curves() -> None:
    """Inside the axes they covered the curves of some slot."""
    pytest.importorskip("matplotlib")
    figure = plots.by_position(diff(served(WORLD, WIRING), dumped(CLOSE, WIRING)), "norm")
    figure.draw_without_rendering()
    [axes] = figure.axes
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1
