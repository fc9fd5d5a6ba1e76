"""A slot whose bytes are misread, and a row of NaN in it: misread bytes make single channels NaN, not whole rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from compare_world import bf16
from edited_captures import dump, faults, trace, with_slot

from drafttrace.compare.diff import diff


def _misread(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return bf16(x).raw(0, len(x)).view(np.float16).astype(np.float32)


@pytest.mark.parametrize("pair", ["kimi", "llama"])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_of_nan_are_told_beside_misread_bytes(pair: str, rows: int) -> None:
    def change(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        x = _misread(x)
        x[12 : 12 + rows] = np.nan
        return x

    found = diff(with_slot(replace(trace(pair), draft=None, probes=()), 2, change), dump(pair))
    assert set(faults(found)) == {"dtype-reinterpretation", *(["nan-inf"] if rows else [])}
    told = [f for f in found.findings if f.id == "nan-inf"]
    assert [f.evidence["2"]["left"] for f in told] == ([rows] if rows else [])
    if rows:
        assert told[0].summary.startswith(f"{rows} row{'s' if rows > 1 else ''} in slot 2 ")


def test_rows_are_counted_for_each_state_and_not_added_up() -> None:
    """ "76 rows in slot 2 and the last state are not finite" was said where 58 were compared."""
    left = with_slot(replace(trace("llama"), draft=None, probes=()), 2, lambda x: x * np.nan)
    left = with_slot(left, 1, lambda x: np.where(np.arange(len(x))[:, None] == 12, np.nan, x))
    [told] = [f for f in diff(left, dump("llama")).findings if f.id == "nan-inf"]
    assert "1 row in slot 1, 54 rows in slot 2 are not finite" in told.summary
