"""The benchmark's figures as JSON: what numpy computed is written as well as what Python did."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from bench.figures import Figure

KINDS: list[Callable[[float], object]] = [
    float,
    int,
    np.float16,
    np.float32,
    np.float64,
    np.int64,
    np.uint8,
    np.array,
]


@pytest.mark.parametrize("of_target", KINDS)
@pytest.mark.parametrize("of_value", KINDS)
@pytest.mark.parametrize(("value", "at_least", "good"), [(2, True, False), (2, False, True), (4, True, True)])
def test_figures_made_of_numpy_numbers_can_be_written(
    value: float, at_least: bool, good: bool, of_value: Callable[..., float], of_target: Callable[..., float]
) -> None:
    """A whole `make bench` once ended in a traceback: a numpy ratio below a bound is a numpy bool."""
    figure = Figure("scale", "rows", of_value(value), of_target(3), at_least, "x", "")
    written = json.loads(json.dumps(figure.to_json(), allow_nan=False))
    assert (written["value"], written["target"], written["good"]) == (value, 3, good)


@pytest.mark.parametrize("value", [float("nan"), np.float64("nan"), np.float32("inf")])
def test_a_figure_that_was_not_measured_is_null(value: float) -> None:
    figure = Figure("cold", "comparator / diff", value, None, True, "x", "not run")
    written = json.loads(json.dumps(figure.to_json(), allow_nan=False))
    assert written["value"] is None and written["target"] is None and written["good"] is True
