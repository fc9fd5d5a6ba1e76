"""What a replay found, as JSON: schema ``drafttrace.replay/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drafttrace.compare.document import join
from drafttrace.compare.plain import to_plain
from drafttrace.compare.replay.live import LiveComparison
from drafttrace.compare.replay.ranking import too_few
from drafttrace.compare.replay.score import WiringScore
from drafttrace.compare.replay.texts import Key, key_name
from drafttrace.compare.result import FAULT, Finding

SCHEMA = "drafttrace.replay/1"
_MANY = 256
"""Rows of which no more are needed to see whether a draft works."""
GIVEN = "given"
"""The source of a wiring that the user names."""


@dataclass(frozen=True)
class WiringRow:
    """One wiring that was compared. sources: who names it (the file, the server, the trainer, the user, the search).

    score is None where the capture does not hold all of its boundaries; ``missing`` names those.
    """

    wiring: str
    sources: tuple[str, ...]
    score: WiringScore | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class VariantRow:
    """One switch set otherwise than the config says, on the best wiring. gain: step at which it differs most, and by
    how much of top-1 there."""

    switch: str
    value: str
    score: WiringScore
    step: int
    gain: float


@dataclass(frozen=True)
class SearchInfo:
    """How the search went: ordered wirings tried of those possible, and the margin of the winner over the runner-up in
    top-1 and in loss (positive: the winner's is lower). Both can be negative where the winner is a wiring that keeps its
    place because chance explains the difference (see ``ranking``). undecided: wirings that chance cannot tell from the
    winner, neither by their proposals nor by their losses, row by row."""

    method: str
    tried: int
    possible: int
    winner: str
    runner_up: str | None
    margin: float
    nll_margin: float
    undecided: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplayResult:
    """A replay. ``wirings`` best first; ``reference`` is the wiring that the variants and findings rest on. another: one
    that was not tried and that the captures hold, where there is one. absent_tokens: so many tokens before the counted
    rows have no states; then the lengths of ``wirings`` are not those of the served draft. uncounted: rows of
    captures whose mask counts none, so that nothing could be judged."""

    captures: tuple[str, ...]
    target: str
    draft: str
    rows: int
    steps: int
    slots: int
    judged_by: str
    switches: Mapping[str, Any]
    served_switches: Mapping[str, Any]
    wirings: tuple[WiringRow, ...]
    reference: str | None
    served: str | None
    as_served: WiringScore | None
    search: SearchInfo | None
    variants: tuple[VariantRow, ...]
    live: LiveComparison | None
    outside_vocabulary: float
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    seconds: float
    another: tuple[Key, ...] | None = None
    absent_tokens: int = 0
    uncounted: int = 0
    schema: str = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        names = ", ".join(finding.id for finding in self.findings) or "no finding"
        best = self.best
        if best is None or best.score is None:
            return f"<ReplayResult {self.verdict}: {names}>"
        return (
            f"<ReplayResult {self.verdict}: {names}; best {best.wiring}, accept length {best.score.expected:.2f}>"
        )

    def __str__(self) -> str:
        from drafttrace.compare.document import to_text
        from drafttrace.compare.replay.render import blocks

        return to_text(blocks(self))

    def _repr_html_(self) -> str:
        from drafttrace.compare.document_html import to_html
        from drafttrace.compare.replay.render import blocks

        return to_html(blocks(self))

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that turn the verdict."""
        return tuple(finding for finding in self.findings if finding.severity == FAULT)

    @property
    def best(self) -> WiringRow | None:
        """The wiring with the highest score."""
        return next((row for row in self.wirings if row.score is not None), None)

    @property
    def scored(self) -> int:
        """How many different wirings were tried, those of a search among them."""
        shown = sum(row.score is not None for row in self.wirings)
        return max(shown, self.search.tried) if self.search is not None else shown

    @property
    def verdict(self) -> str:
        """``mismatch`` where a fault was found, ``incomparable`` where nothing could be replayed, else ``match``."""
        if self.best is None:
            return "incomparable"
        return "mismatch" if self.faults else "match"

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a fault was found, 2 nothing was replayed."""
        return {"match": 0, "mismatch": 1, "incomparable": 2}[self.verdict]

    @property
    def summary(self) -> str:
        """One sentence for the top of every report, and one for wirings that were asked for and could not be tried."""
        return f"{self._outcome}{self._not_tried}"

    @property
    def _not_tried(self) -> str:
        """The wirings that the user gave and the captures do not hold."""
        absent = [row for row in self.wirings if row.score is None and GIVEN in row.sources]
        if not absent or self.best is None:
            return ""
        said = (
            f"--wiring {row.wiring} was not tried, for the capture does not hold {join(row.missing)}"
            for row in absent
        )
        return " " + "; ".join(said) + "."

    @property
    def _outcome(self) -> str:
        if self.faults:
            more = f" ({len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
            return f"{self.faults[0].id}: {self.faults[0].summary}{more}"
        if self.best is None and self.uncounted:
            return (
                f"No wiring could be judged: the mask of the capture counts no token that one of its {self.uncounted} rows "
                "predicts (a loss mask of zeros, or a trace without an answer); give a capture whose mask counts the "
                "reply, or write the mask again."
            )
        if self.best is None or self.best.score is None:
            missing = dict.fromkeys(name for row in self.wirings for name in row.missing)
            return (
                "No wiring could be replayed: the capture does not hold the boundaries that were asked for"
                f"{f' ({join(tuple(missing))})' if missing else ''}."
            )
        score = self.best.score
        length = f"and an expected accept length of {score.expected:.2f}"
        if self.absent_tokens:
            length = (
                f"without the {self.absent_tokens} tokens before them, which the replay has no states of, so the accept "
                "length to expect is not known"
            )
        found = f"{self.best.wiring} gives {score.top1:.1%} at the first step over {score.rows} rows {length}"
        if too_few(score) and score.rows < _MANY:
            found += ", too few rows to say whether the draft works (record a longer answer: --max-new-tokens 256)"
        elif too_few(score):
            found += ", which is hardly what a draft that works gives (a fifth of the tokens that it can say, at the least)"
        if self.scored > 1:
            return f"{found}; none of the {self.scored} wirings that were tried is better beyond chance."
        other = "--search tries all that the capture holds"
        if self.another is not None:
            name = ",".join(key_name(key) for key in self.another)
            other = f"--wiring {name} tries another one, --search all that the capture holds"
        return f"{found}; it is the only wiring that was tried: {other}."

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = to_plain(self)
        head = {"schema": plain.pop("schema"), "verdict": self.verdict, "exit_code": self.exit_code}
        live = plain.get("live")
        if live is not None and self.live is not None:
            live |= {"observed": self.live.observed, "top1_agreement": self.live.top1_agreement}
        return {**head, "summary": self.summary, **plain}
