"""What an audit's table says as a whole: verdicts, and every finding with how many samples show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttrace.tracer.auditing.outcome import COMPARED, FAILED, INCOMPARABLE, UNMATCHED
from drafttrace.tracer.auditing.table import PASSED_OVER, SCHEMA, reading

if TYPE_CHECKING:
    from rich.console import Console

_EXAMPLES = 3
Query = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class FindingCount:
    """One finding over all samples. share: of the compared samples. remedy, summary: the most frequent ones."""

    id: str
    severity: str
    samples: int
    share: float
    confidence: float
    summary: str
    remedy: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class SlotLevel:
    """One slot over all samples: medians of the samples' medians, and the worst of them."""

    slot: int
    samples: int
    rel_l2: float | None
    worst_rel_l2: float | None
    worst_sample: str | None
    mismatches: int


@dataclass(frozen=True)
class Problem:
    """Samples that could not be compared for one reason."""

    status: str
    reason: str
    samples: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """The audit. verdicts: samples by verdict. exit_code: 0 all match or noise, 1 a mismatch or a sample that failed,
    2 nothing was compared. passed_over: traces of the served side that were compared with nothing."""

    table: str
    samples: int
    compared: int
    incomparable: int
    unmatched: int
    failed: int
    verdicts: dict[str, int]
    rows_compared: int
    seconds: float
    findings: tuple[FindingCount, ...]
    slots: tuple[SlotLevel, ...]
    problems: tuple[Problem, ...]
    exit_code: int
    passed_over: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The machine form."""
        return {"schema": SCHEMA, **asdict(self)}


def summarise(path: Path) -> Summary:
    """The summary of an audit's table, finished or not. Raises UnreadableFile."""
    with reading(path) as db:

        def query(text: str, *values: object) -> list[tuple[Any, ...]]:
            return db.execute(text, values).fetchall()

        by_status = dict(query("SELECT status, COUNT(*) FROM samples GROUP BY status"))
        verdicts = dict(query("SELECT verdict, COUNT(*) FROM samples WHERE verdict IS NOT NULL GROUP BY verdict"))
        compared = by_status.get(COMPARED, 0)
        rows, seconds = query("SELECT SUM(rows_compared), SUM(seconds) FROM samples")[0]
        return Summary(
            table=str(path),
            samples=sum(by_status.values()),
            compared=compared,
            incomparable=by_status.get(INCOMPARABLE, 0),
            unmatched=by_status.get(UNMATCHED, 0),
            failed=by_status.get(FAILED, 0),
            verdicts=verdicts,
            rows_compared=int(rows or 0),
            seconds=float(seconds or 0.0),
            findings=tuple(_findings(query, compared + by_status.get(INCOMPARABLE, 0))),
            slots=tuple(_slots(query)),
            problems=tuple(_problems(query)),
            exit_code=_exit_code(compared, verdicts, by_status.get(FAILED, 0)),
            passed_over=tuple(
                name
                for (text,) in query("SELECT value FROM about WHERE key = ?", PASSED_OVER)
                for name in json.loads(text)
            ),
        )


def _exit_code(compared: int, verdicts: dict[str, int], failed: int) -> int:
    if compared == 0:
        return 2
    return 1 if verdicts.get("mismatch", 0) or failed else 0


def _findings(query: Query, of: int) -> list[FindingCount]:
    # Among equally frequent ones the order of the reports, which is the one of the rows of a sample: what explains most
    # stands first.
    counts = query(
        "SELECT id, severity, COUNT(DISTINCT reference) AS n, AVG(confidence) FROM findings AS told "
        "GROUP BY id, severity ORDER BY severity = 'fault' DESC, n DESC, "
        "AVG(rowid - (SELECT MIN(rowid) FROM findings WHERE reference = told.reference)), id"
    )
    found = []
    for name, severity, samples, confidence in counts:
        chosen = (name, severity)
        text = [
            query(
                f"SELECT {column} FROM findings WHERE id = ? AND severity = ? GROUP BY {column} "
                f"ORDER BY COUNT(*) DESC, {column} LIMIT 1",
                *chosen,
            )[0][0]
            for column in ("summary", "remedy")
        ]
        examples = query(
            "SELECT DISTINCT reference FROM findings WHERE id = ? AND severity = ? ORDER BY confidence DESC, reference "
            "LIMIT ?",
            *chosen,
            _EXAMPLES,
        )
        share = samples / of if of else 0.0
        found.append(
            FindingCount(
                name, severity, samples, share, confidence, text[0], text[1], tuple(e for (e,) in examples)
            )
        )
    return found


def _slots(query: Query) -> list[SlotLevel]:
    levels = []
    for (slot,) in query("SELECT DISTINCT slot FROM slots ORDER BY slot < 0, ABS(slot)"):
        known = query(
            "SELECT rel_l2_p50, reference FROM slots WHERE slot = ? AND rel_l2_p50 IS NOT NULL ORDER BY rel_l2_p50",
            slot,
        )
        samples, bad = query(
            "SELECT COUNT(*), COALESCE(SUM(verdict = 'mismatch'), 0) FROM slots WHERE slot = ?", slot
        )[0]
        middle = known[len(known) // 2][0] if known else None
        worst = known[-1] if known else (None, None)
        levels.append(SlotLevel(slot, samples, middle, worst[0], worst[1], bad))
    return levels


def _problems(query: Query) -> list[Problem]:
    reasons: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for status, error, reference in query(
        "SELECT status, error, reference FROM samples WHERE status IN (?, ?) ORDER BY reference", UNMATCHED, FAILED
    ):
        said, path = str(error or "unknown"), reference.split("#")[0]
        alike = said.replace(path, "")  # one kind of error names another file each time
        reasons.setdefault((status, alike), []).append((reference, said))
    found = [
        Problem(status, said[0][1], len(said), tuple(name for name, _ in said[:_EXAMPLES]))
        for (status, _), said in reasons.items()
    ]
    return sorted(found, key=lambda one: (-one.samples, one.reason))[:20]


def render(summary: Summary, console: Console) -> None:
    """The terminal report. File names, and sentences that hold them, are shown as they are and never as markup."""
    from rich.table import Table
    from rich.text import Text

    from drafttrace.tracer.fitted import Fitted
    from drafttrace.tracer.grammar import in_number
    from drafttrace.tracer.printable import printable

    words = ", ".join(f"{count} {verdict}" for verdict, count in sorted(summary.verdicts.items()))
    samples = in_number(f"{summary.samples} samples")
    console.print(f"[bold]{samples}[/bold]: {words or 'none compared'}", highlight=False)
    for count, word in ((summary.unmatched, "had nothing to compare with"), (summary.failed, "failed")):
        if count:
            console.print(f"{count} {word}")
    if summary.passed_over:
        count, names = len(summary.passed_over), ", ".join(summary.passed_over[:3])
        more = f" and {count - 3} more" if count > 3 else ""
        which = "trace of the served side was" if count == 1 else "traces of the served side were"
        console.print(
            Text(
                f"{count} {which} compared with nothing, another one fits better or none of the samples is "
                f"theirs: {printable(names)}{more}"
            )
        )
    if summary.findings:
        table = Table(box=None, pad_edge=False)
        for name, justify in (("finding", "left"), ("samples", "right"), ("share", "right"), ("what", "left")):
            table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for one in summary.findings:
            shown = Text(one.id, style="bold" if one.severity == "fault" else "")
            table.add_row(shown, str(one.samples), f"{one.share:.0%}", Text(printable(one.summary)))
        console.print(Fitted(table))
        for one in summary.findings:
            if one.severity == "fault":
                console.print()
                console.print(Text.assemble((one.id, "bold"), f": {printable(one.remedy)}"))
                console.print(Text(f"  for example: {printable(one.examples[0])}"))
    for problem in summary.problems[:5]:
        alike = "the first of them: " if problem.samples > 1 else ""
        console.print(Text(f"{problem.samples} {problem.status}: {alike}{printable(problem.reason)}"))
    console.print(Text(f"table: {printable(summary.table)}"))
