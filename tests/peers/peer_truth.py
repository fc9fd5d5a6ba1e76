"""Holds a file that a project's own writer wrote against the residual stream of the target that it was taken from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drafttrace.tracer.capture import Capture


def holds(capture: Capture, truth: Path, boundaries: tuple[int, ...], last: str | None, *, first: int = 0) -> None:
    """Slot i of the capture is B(boundaries[i]) and its last state is ``last`` (b8 or post; None: it has none).

    first: tokens at the front that the file does not keep; the mask may miss them too.
    """
    with np.load(truth) as stored:
        assert len(capture.slots) == len(boundaries)
        for slot, k in zip(capture.slots, boundaries, strict=True):
            assert np.allclose(slot.rows.floats(), stored[f"b{k}"], atol=1e-6)
        assert (capture.last is None) == (last is None)
        if capture.last is not None:
            assert np.allclose(capture.last.rows.floats(), stored[last], atol=1e-6)
        assert capture.tokens[first:].tolist() == stored["ids"][first:].tolist()
        if capture.mask is not None:
            assert capture.mask[first:].tolist() == stored["mask"][first:].tolist()
