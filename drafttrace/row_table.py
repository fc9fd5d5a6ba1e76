"""Row measures as a table: columns of one length, for pandas, polars, or anything that takes a dict of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.compare.measured import MeasuredSlot
    from drafttrace.compare.result import Result
    from drafttrace.tracer.capture import Capture

Column = npt.NDArray[Any]

IDENTITY = ("slot", "left", "reference", "position", "token_id", "phase", "round")
MEASURES = ("cosine", "cosine_trimmed", "rel_l2", "max_abs", "ulp", "norm_left", "norm_reference")
FLAGS = ("nan_left", "nan_reference", "zero_left", "zero_reference")
_SHOWN = 5  # rows of a table from either end that a notebook shows
SERIES = ("cosine", "rel_l2", "norm_left", "norm_reference")


@dataclass(frozen=True)
class RowTable:
    """Columns ``[n]``, one entry per paired row and slot.

    slot: its number in fc order. left, reference: the states' names. position: the token's, 0-based. token_id: -1 where
    it is not known. phase: prefill, verify, ... round: -1 in prefill, then 0, 1, ...
    cosine: of the two rows; cosine_trimmed: without the massive channels. rel_l2: |left - reference| / |reference|.
    max_abs: largest difference of a channel. ulp: median over channels of the distance in bf16 steps. norm_left,
    norm_reference: L2 norms, in the model's own units. nan_*, zero_*: rows that are not finite, or all zero.
    A row without a meaningful value (zero or not finite) has NaN there. A table of :func:`of_result` has fewer columns.
    """

    columns: Mapping[str, Column]

    def __repr__(self) -> str:
        return f"<RowTable {len(self)} rows: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        from drafttrace.compare.document_html import table

        shown = [*range(min(_SHOWN, len(self))), *range(max(_SHOWN, len(self) - _SHOWN), len(self))]
        rows = [[_cell(column[row]) for column in self.columns.values()] for row in shown]
        if len(shown) < len(self):
            rows.insert(_SHOWN, ["..."] * len(self.columns))
        return f"<div>{table(self, rows)}<div>{len(self)} rows × {len(self.columns)} columns</div></div>"

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def keys(self) -> Iterator[str]:
        """The column names; with ``[]`` they make the table a mapping: ``dict(table)``."""
        return iter(self.columns)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``. Raises DrafttraceError where pandas is not installed."""
        return _library("pandas").DataFrame(dict(self.columns))

    def to_polars(self) -> Any:
        """A ``polars.DataFrame``. Raises DrafttraceError where polars is not installed."""
        return _library("polars").DataFrame(dict(self.columns))


def of_captures(left: Capture, reference: Capture) -> RowTable:
    """All paired rows of all slots. Raises NothingToCompare where there are none."""
    from drafttrace.compare.describe import phase_name
    from drafttrace.compare.diff import measure_slots

    def part(slot: MeasuredSlot) -> dict[str, Column]:
        ids, count = slot.ids, len(slot.measures)
        return {
            "slot": np.full(count, slot.index, np.int64),
            "left": np.full(count, slot.left.name),
            "reference": np.full(count, slot.reference.name),
            "position": ids.position,
            "token_id": ids.token_id,
            "phase": np.array([phase_name(int(value)) for value in ids.phase], dtype=str),
            "round": ids.round,
            **{name: getattr(slot.measures, name) for name in (*MEASURES, *FLAGS)},
        }

    slots = measure_slots(left, reference)
    return _joined([part(slot) for slot in slots], (*IDENTITY, *MEASURES, *FLAGS))


def of_result(result: Result) -> RowTable:
    """The rows that a result keeps for its plots."""
    parts: list[dict[str, Column]] = []
    for slot in result.slots:
        series = slot.series
        count = len(series.position)
        parts.append(
            {
                "slot": np.full(count, slot.slot, np.int64),
                "left": np.full(count, slot.left),
                "reference": np.full(count, slot.reference),
                "position": np.array(series.position, np.int64),
                "token_id": np.array(series.token_id, np.int64),
                "phase": np.array(series.phase, dtype=str),
                "round": np.array(series.round, np.int64),
                **{name: np.array(getattr(series, name), np.float64) for name in SERIES},
            }
        )
    return _joined(parts, (*IDENTITY, *SERIES))


def _joined(parts: list[dict[str, Column]], names: tuple[str, ...]) -> RowTable:
    if not parts:
        return RowTable({name: np.empty(0) for name in names})
    return RowTable({name: np.concatenate([part[name] for part in parts]) for name in names})


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise DrafttraceError(
            f"The package {name} is not installed; install it with 'pip install {name}'."
        ) from None
