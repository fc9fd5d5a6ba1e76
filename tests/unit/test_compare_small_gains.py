"""A gain per channel that leaves a slot near its boundary was unexplained, or noise, as soon as there was a sweep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16
from edited_captures import Floats, dump, faults, trace, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.thresholds import Noise
from drafttrace.tracer.capture import Capture

PAIRS = pytest.mark.parametrize("pair", ["kimi", "llama"])
SPREADS = pytest.mark.parametrize("spread", [0.3, 0.1])


def gains(pair: str, spread: float) -> Floats:
    width = trace(pair).slots[0].rows.width
    return (1 + spread * np.random.default_rng(0).standard_normal(width)).astype(np.float32)


@PAIRS
@SPREADS
def test_a_small_gain_of_the_served_slot_is_named(pair: str, spread: float) -> None:
    weight = gains(pair, spread)
    for left in (trace(pair), replace(trace(pair), boundaries={})):
        result = diff(with_slot(left, 0, lambda values: values * weight), dump(pair))
        first = result.findings[0]
        assert faults(result)[0] == "norm-gain" and first.slots == (0,) and result.exit_code == 1, first
    assert "the 1 norm" not in first.summary


@PAIRS
@SPREADS
def test_a_small_gain_of_the_dump_s_slot_is_named(pair: str, spread: float) -> None:
    result = diff(trace(pair), with_slot(dump(pair), 0, lambda values: values * gains(pair, spread)))
    first = result.findings[0]
    assert faults(result) == ["norm-gain"] and first.summary.startswith("The reference's slot 0"), first.summary


@PAIRS
def test_noise_of_the_same_size_is_no_gain(pair: str) -> None:
    rng = np.random.default_rng(0)

    def noisy(values: Floats) -> Floats:
        size = np.linalg.norm(values, axis=1, keepdims=True) / np.sqrt(values.shape[1])
        return values + (0.08 * size * rng.standard_normal(values.shape)).astype(np.float32)

    slots = tuple(replace(slot, rows=bf16(noisy(slot.rows.floats()))) for slot in dump(pair).slots)
    assert "norm-gain" not in faults(diff(trace(pair), replace(dump(pair), slots=slots)))


@PAIRS
def test_the_shared_rounding_of_one_repeated_token_is_no_gain(pair: str) -> None:
    """Its rows are nearly one row, so that the same channels are rounded the same way in all of them."""
    weight = gains(pair, 0.04)
    healthy = with_slot(dump(pair), 0, lambda values: values * weight)
    assert faults(diff(trace(pair), healthy)) == ["norm-gain"]
    left = replace(trace(pair), draft=None, probes=())
    assert faults(diff(of_few_tokens(left), of_few_tokens(healthy))) == []


def of_few_tokens(capture: Capture) -> Capture:
    """Its ids, of which there are three instead."""
    table = replace(capture.table, token_id=capture.table.token_id % 3)
    return replace(capture, tokens=capture.tokens % 3, table=table)


@PAIRS
def test_a_gain_within_the_recorded_floor_is_none(pair: str) -> None:
    result = with_slot(dump(pair), 0, lambda values: values * gains(pair, 0.04))
    floor = (0.03,) * len(trace(pair).slots)
    assert faults(diff(trace(pair), result, noise=Noise("two recordings", floor, floor))) == []
    low = (0.002,) * len(trace(pair).slots)
    assert faults(diff(trace(pair), result, noise=Noise("two recordings", low, low))) == ["norm-gain"]
