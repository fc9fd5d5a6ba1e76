"""What an audit found, as JSON: schema ``drafttrace.check/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drafttrace.compare.audit.subject import OUTSIDE
from drafttrace.compare.audit.weight_checks import TensorReport
from drafttrace.compare.plain import to_plain
from drafttrace.compare.result import FAULT, Finding
from drafttrace.tracer.boundary import wiring_name

SCHEMA = "drafttrace.check/1"


@dataclass(frozen=True)
class ReadingRow:
    """One reader's wiring of the draft's config, as text for reports (``wiring``) and as numbers (``boundaries``)."""

    who: str
    ids_from: str
    ids: tuple[int, ...] | None
    wiring: str | None
    boundaries: tuple[int, ...] | None
    note: str


@dataclass(frozen=True)
class CheckResult:
    """An audit. ``wanted`` is the wiring that training used, where known; ``fix`` the config changes that put right what a
    config can; ``left`` the faults that are there with these changes, too."""

    target: str
    draft: str
    target_class: str | None
    draft_class: str | None
    project: str
    layers: int
    hidden_size: int
    fc_slots: int | None
    sglang_version: str
    readings: tuple[ReadingRow, ...]
    wanted: tuple[int | None, ...] | None
    wanted_by: str
    live: tuple[int, ...] | None
    findings: tuple[Finding, ...]
    tensors: tuple[TensorReport, ...]
    vocabulary: tuple[tuple[int, int, str | None], ...]
    notes: tuple[str, ...] = ()
    fix: Mapping[str, Any] = field(default_factory=dict)
    left: tuple[Finding, ...] = ()
    seconds: float = 0.0
    schema: str = SCHEMA

    def __repr__(self) -> str:
        names = ", ".join(finding.id for finding in self.findings) or "no finding"
        return f"<CheckResult {self.verdict}: {names}; draft {self.draft}, target {self.target}>"

    def __str__(self) -> str:
        from drafttrace.compare.audit.render import blocks
        from drafttrace.compare.document import to_text

        return to_text(blocks(self))

    def _repr_html_(self) -> str:
        from drafttrace.compare.audit.render import blocks
        from drafttrace.compare.document_html import to_html

        return to_html(blocks(self))

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that turn the verdict."""
        return tuple(finding for finding in self.findings if finding.severity == FAULT)

    @property
    def verdict(self) -> str:
        """``mismatch`` where a fault was found, else ``match``."""
        return "mismatch" if self.faults else "match"

    @property
    def exit_code(self) -> int:
        """0 where nothing wrong was found, 1 otherwise."""
        return 1 if self.faults else 0

    @property
    def summary(self) -> str:
        """One sentence for the top of every report."""
        if self.faults:
            worst = max(self.faults, key=lambda f: f.confidence)
            more = f" ({len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
            return f"{worst.id}: {worst.summary}{more}{self._outside}"
        served = self.readings[-1].boundaries if self.readings else None
        hints = tuple(dict.fromkeys(finding.id for finding in self.findings))
        tail = f"; hints: {', '.join(hints)}" if hints else ""
        if self.wanted is not None and served is not None:
            return f"The server hands fc {wiring_name(served)}, as training did{tail}.{self._outside}"
        return f"Nothing in configs and weights is wrong{tail}.{self._outside}"

    @property
    def _outside(self) -> str:
        """That the release is one of which nothing is known, where it is."""
        found = next((finding.evidence for finding in self.findings if OUTSIDE in finding.evidence), None)
        if found is None:
            return ""
        return (
            f" SGLang {found[OUTSIDE]} lies outside the table ({found['first']} to {found['last']}), so this is what its "
            "nearest release would do."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = to_plain(self)
        head = {"schema": plain.pop("schema"), "verdict": self.verdict, "exit_code": self.exit_code}
        return {**head, "summary": self.summary, **plain}
