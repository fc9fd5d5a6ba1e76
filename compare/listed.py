"""The findings and the slots of a result: tuples that a notebook shows as the report does, not as a line of fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drafttrace.compare.result import Finding, SlotResult


class Findings(tuple["Finding", ...]):
    """``result.findings``: the causes, each with its remedy and the numbers that it rests on."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from drafttrace.compare.report_notebook import render_findings

        return render_findings(self)


class Slots(tuple["SlotResult", ...]):
    """``result.slots``: one line of a table for each."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from drafttrace.compare.report_notebook import render_slots

        return render_slots(self)
