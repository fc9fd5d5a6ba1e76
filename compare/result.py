"""The result of a comparison, schema ``drafttrace.result/1``: what CI reads and what every report is made from.

``result.schema.json`` beside this file is the same thing as a JSON Schema. A number that is not finite is null in
the JSON and NaN here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafttrace.compare.listed import Findings, Slots
from drafttrace.compare.plain import from_plain, to_plain
from drafttrace.compare.thresholds import Thresholds
from drafttrace.tracer.errors import UnknownFormat, UnreadableFile
from drafttrace.tracer.report_file import where_json_breaks

SCHEMA = "drafttrace.result/1"
EXIT_CODES = {"match": 0, "noise": 0, "mismatch": 1, "incomparable": 2}
FAULT, NOTE = "fault", "note"
NAN = float("nan")


@dataclass(frozen=True)
class Stats:
    """A number over rows: mean, extremes and percentiles."""

    mean: float
    min: float
    p01: float
    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class WorstRow:
    """One of the rows that differ most. ``token`` is the decoded text, null without a tokenizer."""

    position: int
    token_id: int
    token: str | None
    phase: str
    round: int
    cosine: float
    rel_l2: float
    cosine_trimmed: float = NAN
    norm_ratio: float = NAN


@dataclass(frozen=True)
class BestMatch:
    """The state that a slot is most like. margin: second-best distance over best distance (1 = no margin).

    by: "value" where it was found among measured boundaries, "declared" where only a file says so.
    """

    reference: str
    boundary: str | None
    rel_l2: float
    margin: float
    by: str = "value"


@dataclass(frozen=True)
class Judged:
    """What a slot's median relative L2 was held against."""

    rel_l2: float
    match_limit: float
    noise_limit: float
    against: str


@dataclass(frozen=True)
class Group:
    """One part of the rows on its own: a phase, accepted draft tokens, a band of positions, a few rounds."""

    name: str
    rows: int
    cosine_p50: float
    rel_l2_p50: float
    norm_ratio_p50: float
    cosine_trimmed_p50: float = NAN
    rel_l2_p99: float = NAN


@dataclass(frozen=True)
class Series:
    """Values by row for plots, thinned to 2000 rows, of which the worse half are the worst ones. A row with a channel
    that is not finite has no norm."""

    position: tuple[int, ...]
    token_id: tuple[int, ...]
    phase: tuple[str, ...]
    round: tuple[int, ...]
    cosine: tuple[float, ...]
    rel_l2: tuple[float, ...]
    norm_left: tuple[float, ...]
    norm_reference: tuple[float, ...]
    cosine_trimmed: tuple[float, ...] = ()


@dataclass(frozen=True)
class RowPart:
    """Rows of a slot that differ while its others do not.

    kind: "phase" (the rows of one), "run" (rows side by side), "every" (each ``step``-th row) or "spread". level: what
    they are beyond: the "noise" limit (then the slot is a mismatch), the "match" limit, the rule for "odd" rows, or, by
    "slight", no limit but three times the median. first, last: positions. rows: how many are beyond ``limit``; of: how many
    rows the phase, the run or the slot has; compared: rows of the slot that count. rel_l2: their median; others_rel_l2:
    that of the rest. share_limit: the share rows / of from which on they are taken together.
    """

    kind: str
    level: str
    phase: str
    first: int
    last: int
    step: int
    rows: int
    of: int
    compared: int
    rel_l2: float
    others_rel_l2: float
    limit: float
    share_limit: float


@dataclass(frozen=True, repr=False)
class SlotResult:
    """One slot (or the last state, ``slot`` = -1, or the embedding, -2) of the left side against the reference.

    left_boundary / reference_boundary are written ``B3``; ``*_by`` says "value" or "declared". parts: rows that differ
    while the others do not, which the medians do not show. rounding: the relative L2 that number formats and layers leave
    of two healthy runs. kinds: how many different rows the compared ones are, where that is too few to tell boundaries
    apart (a prompt that repeats a token); 0 where they tell.
    """

    slot: int
    left: str
    reference: str
    left_boundary: str | None
    left_by: str | None
    reference_boundary: str | None
    reference_by: str | None
    rows: int
    cosine: Stats
    cosine_trimmed: Stats
    trimmed_channels: int
    norm_left: Stats
    norm_reference: Stats
    norm_ratio: Stats
    rel_l2: Stats
    max_abs: float
    ulp_p50: float
    ulp_p99: float
    nan_rows: int
    zero_rows: int
    constant_rows: int
    duplicate_rows: int
    massive_rows: int
    outlier_rows: int
    worst: tuple[WorstRow, ...]
    groups: tuple[Group, ...]
    series: Series
    verdict: str
    judged: Judged
    neighbour_rel_l2: float
    noise_rel_l2: float
    noise_rel_l2_p99: float
    rounding: float
    best_match: BestMatch | None
    parts: tuple[RowPart, ...] = ()
    kinds: int = 0

    def __repr__(self) -> str:
        from drafttrace.compare.wording import number, slot_name

        left, reference = self.left_boundary or self.left, self.reference_boundary or self.reference
        return (
            f"<SlotResult {slot_name(self)}: {self.verdict}, {left} against {reference}; "
            f"relative L2 {number(self.rel_l2.p50)}, {self.rows} rows>"
        )

    def _repr_html_(self) -> str:
        from drafttrace.compare.report_notebook import render_slot

        return render_slot(self)


@dataclass(frozen=True)
class Matrix:
    """Median distances between every row name and every column name."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    rel_l2: tuple[tuple[float, ...], ...]
    cosine: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, repr=False)
class Finding:
    """One named cause. ``id`` is of the closed vocabulary; ``severity`` "note" never turns a verdict.

    judged_by_level: the finding rests on the limits only, so that another threshold may remove it.
    """

    id: str
    kind: str = field(metadata={"key": "class"})
    severity: str
    confidence: float
    slots: tuple[int, ...]
    summary: str
    evidence: Mapping[str, Any]
    remedy: str
    judged_by_level: bool = False

    def __repr__(self) -> str:
        slots = f", slots {', '.join(map(str, self.slots))}" if self.slots else ""
        return f"<Finding {self.id}: {self.severity}, confidence {self.confidence:.2f}{slots}>"

    def __str__(self) -> str:
        remedy = f"\n→ {self.remedy}" if self.remedy else ""
        return f"{self.id} ({self.severity}, confidence {self.confidence:.2f})\n{self.summary}{remedy}"

    def _repr_html_(self) -> str:
        from drafttrace.compare.report_notebook import render_finding

        return render_finding(self)


@dataclass(frozen=True)
class Skipped:
    """Rows that were not compared, and why."""

    reason: str
    count: int


@dataclass(frozen=True)
class FirstDifference:
    """The first token at which two prompts differ: index, ids and, with a tokenizer, the text around it."""

    index: int
    left_id: int
    reference_id: int
    left_text: str | None
    reference_text: str | None


@dataclass(frozen=True)
class AlignmentInfo:
    """How rows were paired. token_shift s: the left row at position p was compared with reference row p + s."""

    rows_compared: int
    rows_left: int
    rows_reference: int
    token_shift: int
    coverage: float
    skipped: tuple[Skipped, ...]
    first_difference: FirstDifference | None = None


@dataclass(frozen=True)
class SideInfo:
    """One side of the comparison."""

    path: str
    format: str
    recognised_by: str
    tokens: int
    prompt_length: int | None
    hidden_size: int | None
    dtype: str | None
    slots: tuple[str, ...]
    wiring: tuple[str | None, ...] | None
    wiring_source: str | None
    last: str | None
    last_norm: str | None
    boundaries: tuple[str, ...]
    complete: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Acceptance:
    """Accept lengths (tokens per round, bonus included): observed in the trace, expected if something says so.

    curve: the share of rounds that accepted draft token 1, then of those token 2, and so on. expected_curve: the same
    as training saw it. fc_in: what fc received, as "equal", "normed", "raw", "differs" or "unknown". after_the_end: the
    prompt was a finished text, whose continuation nothing was trained on. outside: the share of the answer's tokens that
    the draft's vocabulary lacks, None where the draft is not at hand. counted_rounds: the rounds that say something about
    the draft, those whose next token it could say (all of them where ``outside`` is None). at_most: the accept length
    that those rounds do not rule out (95 %). steps: tokens that the server drafts in a round, None where it does not say.
    between_traces: both sides are traces, so that what they agree in need not be what the draft was trained on.
    """

    observed: float | None
    rounds: int
    expected: float | None
    expected_source: str | None
    curve: tuple[float, ...] = ()
    expected_curve: tuple[float, ...] = ()
    fc_in: str = "unknown"
    after_the_end: bool = False
    counted_rounds: int = 0
    at_most: float | None = None
    outside: float | None = None
    steps: int | None = None
    between_traces: bool = False


@dataclass(frozen=True)
class NoiseInfo:
    """Where the noise floor comes from, and its values per slot."""

    source: str
    rel_l2: tuple[float, ...]
    rel_l2_p99: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Result:
    """Everything that a comparison found. ``exit_code`` follows from ``verdict``. covered: findings that others, which rest
    on limits, stand in for; a report by looser limits tells them.

    ``print(result)`` is the terminal's report; in a notebook the result shows itself.
    """

    verdict: str
    exit_code: int
    summary: str
    left: SideInfo
    reference: SideInfo | None
    alignment: AlignmentInfo
    slots: tuple[SlotResult, ...]
    others: tuple[SlotResult, ...]
    matrix: Matrix | None
    sweep: Matrix | None
    findings: tuple[Finding, ...]
    acceptance: Acceptance
    noise: NoiseInfo
    thresholds: Thresholds
    environment: Mapping[str, Any]
    configs: Mapping[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA
    tool_version: str = ""
    covered: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        for name, listed in (("slots", Slots), ("others", Slots), ("findings", Findings)):
            object.__setattr__(self, name, listed(getattr(self, name)))

    def __repr__(self) -> str:
        names = ", ".join(finding.id for finding in self.findings) or "no finding"
        return f"<Result {self.verdict}: {names}; {self.alignment.rows_compared} rows compared>"

    def __str__(self) -> str:
        from drafttrace.compare.report_terminal import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from drafttrace.compare.report_notebook import render

        return render(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report whose form the name ends in.

        .json: machine form; .md: for an issue; .html: with plots; .png, .pdf, .svg: one picture of the plots.
        An older report is replaced, and no other file. Raises DrafttraceError for another ending, for a file that is no
        report, and where nothing can be written.
        """
        from drafttrace.compare.saving import save

        save(self, Path(path))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the order is that of architecture.md's contract."""
        plain: dict[str, Any] = to_plain(self)
        return {"schema": plain.pop("schema"), **plain}

    @staticmethod
    def from_json(value: Any) -> Result:
        """The result that :meth:`to_json` wrote.

        Raises UnknownFormat for another schema and UnreadableFile for a damaged one.
        """
        schema = value.get("schema") if isinstance(value, dict) else None
        if schema != SCHEMA:
            raise UnknownFormat(
                f"This is no drafttrace result: its schema is {schema!r}, not '{SCHEMA}'; give the file that "
                "drafttrace diff --json wrote."
            )
        try:
            return from_plain(Result, value)
        except ValueError as error:
            raise UnreadableFile(
                f"The drafttrace result is damaged ({error}); write it again with drafttrace diff --json."
            ) from None


def load_result(text: str) -> Result:
    """A result from the text of its JSON file."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(
            f"The result is no JSON ({where_json_breaks(error)}); give the file that drafttrace diff --json wrote."
        ) from None
    return Result.from_json(value)
