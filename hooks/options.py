"""Which taps a client wants for one trace, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from drafttrace.tracer.errors import DrafttraceError

AUTO_ROWS = 64  # prefill rows of the automatic sweep: enough for the locator, little to copy
TOP_K = 8

Sweep = Literal["auto", "none", "all"] | tuple[int, ...]


class BadOptions(DrafttraceError):
    """The taps that a client asked for make no sense."""


@dataclass(frozen=True)
class TapOptions:
    """boundaries: which of B(0)..B(n) to record beside the slots, for the first ``boundary_rows`` target rows (None:
    all rows). "auto" is all boundaries on the first 64 rows. draft: whether the draft's tensors are recorded.
    """

    boundaries: Sweep = "auto"
    boundary_rows: int | None = None
    embed: bool = True
    last: bool = True
    draft: bool = True
    topk: int = TOP_K

    @staticmethod
    def parse(data: Mapping[str, Any]) -> TapOptions:
        """The options in a JSON object. Raises BadOptions for an unknown name or a wrong value."""
        known = {"boundaries", "boundary_rows", "embed", "last", "draft", "topk"}
        unknown = sorted(set(data) - known)
        if unknown:
            raise BadOptions(f"There is no tap option '{unknown[0]}'; choose from {', '.join(sorted(known))}.")
        rows = data.get("boundary_rows")
        if rows is not None and not _whole(rows, 1):
            raise BadOptions(f"boundary_rows is {rows!r}; give a whole number of rows or null for all.")
        topk = data.get("topk", TOP_K)
        if not _whole(topk, 1) or topk > 256:
            raise BadOptions(f"topk is {topk!r}; give a whole number from 1 to 256.")
        flags = {name: data.get(name, True) for name in ("embed", "last", "draft")}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise BadOptions(f"{name} is {value!r}; give true or false.")
        return TapOptions(_sweep(data.get("boundaries", "auto")), rows, topk=topk, **flags)

    def sweep(self, n: int) -> tuple[int, ...]:
        """The boundaries to record for a target with n layers, in order."""
        if self.boundaries == "none":
            return ()
        if isinstance(self.boundaries, tuple):
            return tuple(sorted({k for k in self.boundaries if 0 <= k <= n}))
        return tuple(range(n + 1))

    @property
    def sweep_rows(self) -> int | None:
        """Target rows that the sweep covers; None: all."""
        if self.boundary_rows is None and self.boundaries == "auto":
            return AUTO_ROWS
        return self.boundary_rows


def _sweep(value: Any) -> Sweep:
    if value in ("auto", "none", "all"):
        return value  # type: ignore[no-any-return]
    if isinstance(value, list | tuple) and value and all(_whole(k, 0) for k in value):
        return tuple(value)
    raise BadOptions(f'boundaries is {value!r}; give "auto", "none", "all" or a list of numbers.')


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
