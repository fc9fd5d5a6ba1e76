"""The verdict ``noise`` is no match: how much differs, against which limits, and what the values show of its making."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compare_faults import fp8 as as_fp8
from compare_faults import over_slots
from compare_world import dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.grids import grid_of
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import FAULT, load_result
from drafttrace.compare.thresholds import DEFAULT

Rows = npt.NDArray[Any]
WORLD = make_world(layers=14, tokens=64, width=128, massive=False)
WIRING = (2, 6, 11)


def rounded(values: Rows) -> Rows:
    """To bf16, as a dump keeps them."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def integers(most: int, group: int | None = None) -> Callable[[Rows], Rows]:
    """Symmetric quantisation to whole multiples of one step per row, or per group of channels, and back."""

    def change(rows: Rows) -> Rows:
        parts = rows.reshape(-1, group or rows.shape[1])
        step = np.maximum(np.abs(parts).max(1, keepdims=True), 1e-9) / most
        return (np.round(parts / step) * step).reshape(rows.shape)

    return change


def fp8(kind: str, most: float) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        import torch

        scale = np.abs(rows).max(1, keepdims=True) / most
        coarse = torch.from_numpy((rows / scale).astype(np.float32)).to(getattr(torch, kind))
        return np.asarray(coarse.float().numpy() * scale)

    return change


FORMATS: dict[str, Callable[[Rows], Rows]] = {
    "int8": integers(127),
    "int8 in groups of 32": integers(127, 32),
    "int4 in groups of 32": integers(7, 32),
    "int4 in groups of 64": integers(7, 64),
    "fp8_e4m3": fp8("float8_e4m3fn", 448.0),
    "fp8_e5m2": fp8("float8_e5m2", 57344.0),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", [1.0, 300.0])
def test_a_grid_is_seen_in_the_values(name: str, level: float) -> None:
    rows = np.random.default_rng(1).standard_normal((8, 512)) * level
    assert grid_of(rounded(FORMATS[name](rows)).astype(np.float64)) == name


def test_a_row_of_massive_channels_still_shows_its_grid() -> None:
    rows = np.random.default_rng(1).standard_normal((8, 512))
    rows[:, [3, 90]] *= 40
    assert grid_of(rounded(integers(127)(rows)).astype(np.float64)) == "int8"


@pytest.mark.parametrize("seed", range(8))
def test_values_of_a_model_are_on_no_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for rows in (rng.standard_normal((8, 96)), rng.standard_t(3, (8, 512)) * 50, rng.laplace(size=(8, 2048))):
        assert grid_of(rounded(rows).astype(np.float64)) is None


@pytest.mark.parametrize("name", ["int4 in groups of 32", "fp8_e4m3", "fp8_e5m2"])
def test_a_dump_that_was_quantised_and_written_back_is_told_by_its_values(name: str) -> None:
    """Only a stored FP8 was known; what came back as bf16 was a match in which nothing is wrong."""
    found = diff(served(WORLD, WIRING), over_slots(FORMATS[name])(dumped(WORLD, WIRING)))
    told = next(f for f in found.findings if f.id == "quantization-noise")
    assert told.slots == (0, 1, 2) and name in told.summary and "reference side" in told.summary
    assert all(f"in slot {slot}" in told.summary for slot in range(3))
    assert not [f for f in found.findings if f.severity == FAULT] and found.summary == told.summary
    assert "none" not in {f.id for f in found.findings}


def test_noise_is_no_match_in_any_word() -> None:
    """ "Nothing is wrong: all slots match", with a confidence of 0.95, under the verdict noise."""
    found = diff(served(WORLD, WIRING), dumped(WORLD.noisy(0.06), WIRING))
    assert (found.verdict, found.exit_code) == ("noise", 0)
    assert [f.id for f in found.findings] == ["quantization-noise"]
    assert found.summary.startswith("No fault is shown, and no match either")
    for slot in found.slots:
        assert f"median relative L2 {slot.rel_l2.p50:.3g}" in found.summary
        assert (
            f"equal up to {slot.judged.match_limit:.3g}, wrong above {slot.judged.noise_limit:.3g}" in found.summary
        )
    assert "quantised on one side" in found.findings[0].remedy and "--noise" in found.findings[0].remedy
    assert "match" not in found.findings[0].summary.replace("no match either", "")


def test_noise_and_a_low_accept_length_are_both_told() -> None:
    left = served(WORLD, WIRING)
    left = replace(left, about={**left.about, "request": {"accept_counts": [1] * 80}})
    found = diff(left, dumped(WORLD.noisy(0.06), WIRING))
    assert found.findings[0].id == "downstream"
    assert found.findings[0].summary.startswith("The hidden states differ by noise alone")


def test_noise_is_judged_again() -> None:
    saved = load_result(json.dumps(diff(served(WORLD, WIRING), dumped(WORLD.noisy(0.06), WIRING)).to_json()))
    loose = rejudge(saved, replace(DEFAULT, match=0.2, neighbour_match=5))
    assert (loose.verdict, [f.id for f in loose.findings]) == ("match", ["none"])
    strict = rejudge(saved, replace(DEFAULT, noise=0.01, match=0.01))
    assert (strict.verdict, {f.id for f in strict.findings}) == ("mismatch", {"unexplained"})
    assert rejudge(strict, DEFAULT).to_json() == saved.to_json()


@pytest.mark.parametrize("stored", [True, False], ids=["stored as fp8", "on the grid of fp8"])
@pytest.mark.parametrize("rows", [1, 4, 12], ids=["one row", "four rows", "twelve rows"])
def test_a_coarse_format_hides_no_wrong_row(rows: int, stored: bool) -> None:
    """ "Nothing to fix": a random row of an FP8 dump was told as what the format costs, with exit 0."""
    wrong = np.random.default_rng(3).choice(np.arange(3, 48), rows, replace=False)

    def replaced(values: Rows) -> Rows:
        size = np.linalg.norm(values, axis=1, keepdims=True) / np.sqrt(values.shape[1])
        other = np.random.default_rng(7).standard_normal(values.shape) * size
        return np.where(np.isin(np.arange(len(values)), wrong)[:, None], other, values)

    coarse = as_fp8 if stored else over_slots(FORMATS["fp8_e4m3"])
    found = diff(served(WORLD, WIRING), coarse(over_slots(replaced, (1,))(dumped(WORLD, WIRING))))
    assert (found.verdict, found.exit_code) == ("mismatch", 1)
    faults = [f for f in found.findings if f.severity == FAULT]
    assert faults and all(f.slots == (1,) for f in faults)
    assert "quantization-noise" in {f.id for f in found.findings}
    healthy = diff(served(WORLD, WIRING), coarse(dumped(WORLD, WIRING)))
    assert not [f for f in healthy.findings if f.severity == FAULT] and healthy.exit_code == 0
