"""Slots that are wired to another state, some rows of which are not even that state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from compare_world import rms
from edited_captures import TRACES, dump, with_slot

import drafttrace
from drafttrace.compare.diff import diff
from drafttrace.tracer.capture import Phase

Floats = npt.NDArray[np.float32]


@pytest.mark.parametrize("base", ["shifted", "as-trained"])
@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("scale", lambda x: x * 2),
        ("norm-extra", rms),
        ("unexplained", lambda x: np.random.default_rng(1).standard_normal(x.shape) * 9),
    ],
)
def test_verify_rows_of_a_miswired_slot_are_told_beside_the_wiring(
    base: str, cause: str, change: Callable[[Floats], npt.NDArray[np.floating]]
) -> None:
    """Only the wiring was: with an accept length of 1 no more than three accepted verify rows are within the sweep."""
    left = drafttrace.open(TRACES / f"tiny-kimi/{base}.h5")
    verify = left.table.phase == Phase.VERIFY

    def some(x: Floats) -> Floats:
        x[verify] = change(x[verify])
        return x

    found = diff(with_slot(left, 2, some), dump("kimi")).findings
    assert found[0].id == "slot-shift"
    told = [f for f in found if f.slots == (2,) and f.severity == "fault" and "verify rows" in f.summary]
    assert told, [f.summary for f in found]
    assert "of the server's slot 2" in told[0].summary
    # Three rows are too few to fit anything to.
    assert told[0].id == (cause if base == "shifted" else "unexplained")
