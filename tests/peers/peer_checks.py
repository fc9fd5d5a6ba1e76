"""Runs a peer's own code in a process of its own, and holds what it says against our reading of the same file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from drafttrace.tracer.capture import Capture

Peer = Callable[[str, str], Path]
READERS = Path(__file__).with_name("peer_programs.py")
WRITERS = Path(__file__).with_name("peer_writers.py")


def run(action: str, *arguments: Path | str, program: Path = READERS) -> None:
    """Run one action of a program on its paths, which are absolute, and words. Fails with the program's own error."""
    command = [sys.executable, str(program), action, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)  # for a hang
    assert done.returncode == 0, done.stderr[-3000:]


def same(
    capture: Capture,
    theirs: Path,
    *,
    last_mask: bool = True,
    tolerance: float = 0.0,
    shift: int = 0,
    mask_shift: int | None = None,
) -> None:
    """The fc input, last state, ids and mask are the same on both sides, as far as the project has them.

    shift: rows that the project moves its ids to the left, with zeros behind them; mask_shift: and its mask, the same
    unless given. last_mask: False where the project zeroes the mask's last entry.
    """
    with np.load(theirs) as stored:
        assert ("fc_in" in stored) == bool(capture.slots)
        if capture.slots:
            fc_in = np.concatenate([slot.rows.floats() for slot in capture.slots], -1)
            assert fc_in.shape == stored["fc_in"].shape
            assert np.allclose(fc_in, stored["fc_in"], rtol=tolerance, atol=tolerance)
        assert ("last" in stored) == (capture.last is not None)
        if capture.last is not None:
            last = capture.last.rows.floats()
            assert last.shape == stored["last"].shape
            assert np.allclose(last, stored["last"], rtol=tolerance, atol=tolerance)
        assert stored["ids"].shape == (len(capture.tokens),)
        assert capture.tokens[shift:].tolist() == stored["ids"][: len(capture.tokens) - shift].tolist()
        if capture.mask is not None:
            by = shift if mask_shift is None else mask_shift
            stop = len(capture.mask) - by - (not last_mask)
            assert capture.mask[by : by + stop].tolist() == stored["mask"][:stop].tolist()
