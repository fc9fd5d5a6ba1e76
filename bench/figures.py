"""Figures of the speed benchmarks: ratios of paired runs, and what they are held against."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured number and the target that it is held against (None: told for comparison only)."""

    group: str
    name: str
    value: float
    target: float | None
    at_least: bool
    unit: str
    detail: str

    def __post_init__(self) -> None:
        """Numbers that came out of numpy become Python's own: JSON knows no numpy scalar, nor what compares them."""
        object.__setattr__(self, "value", float(self.value))
        object.__setattr__(self, "target", None if self.target is None else float(self.target))

    @property
    def good(self) -> bool:
        if self.target is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for a value that was not measured."""
        return {**asdict(self), "good": self.good, "value": self.value if math.isfinite(self.value) else None}


@dataclass(frozen=True)
class Ran:
    """One command: wall and processor seconds, the most memory it held (bytes), and its exit code."""

    seconds: float
    cpu: float
    memory: int
    code: int


def run(command: Sequence[str], env: Mapping[str, str] | None = None, log: Path | None = None) -> Ran:
    """Run a command with its output thrown away (or into ``log``).

    It may keep what Python compiles, as every installation does: an environment that forbids it
    (PYTHONDONTWRITEBYTECODE) would have every command compile a hundred modules of drafttrace, and none of torch's.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with open(log or os.devnull, "wb") as out:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=out, env={**inherited, **(env or {})})
        peak = _Peak(child.pid)
        _pid, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    return Ran(seconds, used.ru_utime + used.ru_stime, peak.stop(), child.returncode)


class _Peak:
    """The most memory that a process holds, pages of mapped files included. Its own high-water mark is looked at a
    hundred times a second: what wait4 tells counts the memory of the process that started it, too."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            with contextlib.suppress(OSError, StopIteration, ValueError):
                lines = self._status.read_text().splitlines()
                self._most = max(self._most, int(next(x for x in lines if x.startswith("VmHWM")).split()[1]) * 1024)

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self._most


def paired(runs: int, *what: Callable[[], float]) -> list[list[float]]:
    """``runs`` rounds of every measurement, the order turning from round to round; one list per measurement."""
    found: list[list[float]] = [[] for _ in what]
    for number in range(runs):
        for k in range(len(what)):
            turn = (k + number) % len(what)
            found[turn].append(what[turn]())
    return found


def median_ratio(top: Sequence[float], bottom: Sequence[float]) -> float:
    """Median over rounds of top / bottom."""
    return statistics.median(a / b for a, b in zip(top, bottom, strict=True))


def spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    """The values in order, for the detail of a figure."""
    return " ".join(form.format(value) for value in sorted(values))
