"""Row hashes of what every rank should hold alike: collected by each rank, merged into the first rank's trace."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drafttrace.hooks.host import Step
from drafttrace.tracer.row_hash import Hashes, row_hashes
from drafttrace.tracer.trace import schema


class RankLog:
    """Rows and hashes of one rank. ``names``: the hashed tensors, one column each; 0 where a row has none."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._rows: list[schema.Records] = []
        self._hashes: list[Hashes] = []

    def append(self, step: Step) -> None:
        """Hash all frames of one scheduler step. Called by the writer thread."""
        for frame in step.frames:
            rows = schema.records(
                schema.RANK_ROW,
                frame.rows,
                position=frame.position,
                token_id=frame.token_id,
                phase=int(frame.group.phase),
                round=frame.round,
                frame=frame.frame,
                step=frame.group.step,
            )
            hashes = np.zeros((frame.rows, len(self.names)), np.uint64)
            for column, name in enumerate(self.names):
                part = frame.parts.get(name)
                if part is not None and len(part.array) == frame.rows:
                    hashes[:, column] = row_hashes(part.array)
            self._rows.append(rows)
            self._hashes.append(hashes)

    def tables(self) -> tuple[schema.Records, Hashes]:
        """All rows ``[R]`` and hashes ``[R, names]`` so far."""
        if not self._rows:
            return schema.records(schema.RANK_ROW, 0), np.zeros((0, len(self.names)), np.uint64)
        return np.concatenate(self._rows), np.concatenate(self._hashes)

    def save(self, path: Path, *, asked: float | None = None, problem: str | None = None) -> None:
        """Write them where the first rank looks for them, in one step.

        asked: when the trace was asked for, which tells it from an earlier one of its name. problem: what this rank lost.
        """
        rows, hashes = self.tables()
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with open(draft, "wb") as file:
            np.savez(file, rows=rows, hashes=hashes, asked=_stamp(asked), problem=np.array(problem or ""))
        os.replace(draft, path)


@dataclass(frozen=True)
class Report:
    """What another rank saved: rows ``[R]``, hashes ``[R, names]``, and in words what it lost (None: nothing)."""

    rows: schema.Records
    hashes: Hashes
    problem: str | None = None


def _stamp(asked: float | None) -> npt.NDArray[np.float64]:
    return np.array(-1.0 if asked is None else asked, np.float64)


def collect(paths: Mapping[int, Path], timeout: float, *, asked: float | None = None) -> dict[int, Report]:
    """What the other ranks saved, as far as it comes within ``timeout`` seconds. The files are removed.

    What they saved for an earlier trace of the same name (of another ``asked``) is removed, too, and not taken.
    """
    found: dict[int, Report] = {}
    deadline = time.monotonic() + timeout
    while True:
        for rank in paths.keys() - found.keys():
            path = paths[rank]
            if path.exists():
                with np.load(path, allow_pickle=False) as data:
                    if "asked" in data and data["asked"] == _stamp(asked):
                        found[rank] = Report(data["rows"], data["hashes"], str(data["problem"]) or None)
                path.unlink(missing_ok=True)
        if len(found) == len(paths) or time.monotonic() > deadline:
            return found
        time.sleep(0.02)
