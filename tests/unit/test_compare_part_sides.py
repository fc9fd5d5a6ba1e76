"""Which side is told to be wrong where no sweep covers the rows of a part: what the rows beside them show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from compare_world import bf16, rms
from edited_captures import dump, trace, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.result import Finding

Floats = npt.NDArray[np.float32]
FAULTS: dict[str, Callable[[Floats], npt.NDArray[np.floating]]] = {
    "scale": lambda x: x * 16,
    "dtype-reinterpretation": lambda x: bf16(x).raw(0, len(x)).view(np.float16).astype(np.float32),
    "norm": rms,
}


def _found(pair: str, side: str, change: Callable[[Floats], npt.NDArray[np.floating]], slot: int = 2) -> Finding:
    """The first finding where 12 rows of one side's slot are changed and nothing is swept."""
    left, reference = replace(trace(pair), boundaries={}, draft=None, probes=()), dump(pair)

    def some(x: Floats) -> Floats:
        x[10:22] = change(x[10:22])
        return x

    if side == "server":
        left = with_slot(left, slot, some)
    else:
        reference = with_slot(reference, slot, some)
    return diff(left, reference).findings[0]


@pytest.mark.parametrize("pair", ["kimi", "llama"])
@pytest.mark.parametrize("side", ["server", "reference"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_side_whose_rows_are_unlike_those_beside_them_is_told(pair: str, side: str, fault: str) -> None:
    """Sixteen times too large rows of the server were "the reference's are B13 times 0.0625", and a misread bf16 of the
    server the advice to read the reference's file as fp16."""
    found = _found(pair, side, FAULTS[fault])
    assert found.id.startswith(fault) and f"of the {side}'s slot 2" in found.summary, found.summary
    assert "do not show which" not in found.summary


def test_a_side_that_the_rows_do_not_show_is_not_guessed() -> None:

    found = _found("llama", "reference", lambda x: x * 1.1)
    assert found.id == "scale" and "the rows do not show which of the sides is wrong" in found.summary
    assert found.evidence["slots"]["2"]["side_known"] is False and "--boundary-rows" in found.remedy


@pytest.mark.parametrize("factor", [1.3, 0.5])
def test_half_of_the_rows_times_a_number_are_no_neighbouring_boundary(factor: float) -> None:
    """The suspicion of a boundary-offset was printed before the right scale."""

    def even(x: Floats) -> Floats:
        x[::2] *= factor
        return x

    left = replace(trace("llama"), boundaries={}, draft=None, probes=())
    found = diff(with_slot(left, 2, even), dump("llama"))
    assert [f.id for f in found.findings] == ["scale"], found.summary
