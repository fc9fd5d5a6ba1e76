"""A gain per channel that leaves a slot near its boundary was unexplained, or noise, as soon as there was a sweep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16
from edited_captures import Floats, dump, faults, trace, with_slot

from drafttrace.compare.diff import diff

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
