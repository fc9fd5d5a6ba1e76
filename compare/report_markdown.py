"""The report for a bug tracker: verdict first, one table, the rest folded away. Under 60,000 characters.

Token text comes from strangers. It is shown as code with every character that could end it made harmless, so that it
can mention nobody, close no fold and inject no markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drafttrace.compare.findings.base import name_slots
from drafttrace.compare.result import FAULT, Finding, Matrix, Result
from drafttrace.compare.wording import (
    GROUPS,
    HEADERS,
    MEASURES,
    VERDICTS,
    acceptance_line,
    alignment_line,
    cosine,
    group_rows,
    limits_line,
    measure_cells,
    note_lines,
    number,
    oddities,
    remedies,
    shorten,
    slot_cells,
    slot_name,
)
from drafttrace.tracer.printable import printable

LIMIT = 60_000
_SPECIAL = re.compile(r"([\\`*_{}\[\]#!|<>~@&$])")
_LINK = re.compile(r"(?i)(?:(?<=[a-z0-9]):(?=//)|(?<=mailto):|(?<=xmpp):|(?<=\bwww)\.)")
_MOST_CAUSES = 4
_MARK = {"match": "✅", "noise": "🟡", "mismatch": "❌", "incomparable": "⚪"}


def render(result: Result) -> str:
    """The whole report."""
    head = "\n".join(_head(result)) + "\n"
    sections = [head]
    left = LIMIT - len(head) - 200
    for section in _sections(result):
        if len(section) <= left:
            sections.append(section)
            left -= len(section)
        else:
            sections.append("\n*(A section was left out: the report would be longer than a bug tracker takes.)*\n")
            left -= 100
    return "".join(sections)


def text(value: str, most: int = 400) -> str:
    """Free text made harmless outside of code: every character with a meaning in Markdown or HTML is escaped, and so is
    what would make a link of an address."""
    flat = " ".join(shorten(value, most).split())
    return _LINK.sub(lambda m: f"&#{ord(m.group(0))};", _SPECIAL.sub(_escaped, flat))


def _escaped(match: re.Match[str]) -> str:
    character = match.group(1)
    return f"&#{ord(character)};" if character in "<>&@" else "\\" + character


def prose(value: str) -> str:
    """Our own sentences: code spans stay, angle brackets, mentions and tables do not.

    What stands between typographic quotes is text of strangers and escaped altogether.
    """
    parts = re.split(r"(“[^”]*”?)", " ".join(value.split()))
    return "".join(
        text(part) if part.startswith("“") else re.sub(r"[<>|@]", lambda m: f"&#{ord(m.group(0))};", part)
        for part in parts
    )


def code(value: str, most: int = 60) -> str:
    """Text in a code span that nothing in it can end. Control characters are written as escapes."""
    shown = printable(shorten(value, most))
    shown = shown.replace("|", "¦").replace("`", "ˋ").replace("<", "‹").replace(">", "›").replace("@", "＠")
    return f"` {shown} `" if shown.strip() else "` `"


def _head(result: Result) -> Iterator[str]:
    yield f"## drafttrace: {_MARK[result.verdict]} {VERDICTS[result.verdict]}"
    yield ""
    yield f"**{_verdict(result)}**"
    yield ""
    for place, (finding, remedy) in enumerate(zip(result.findings[:20], remedies(result), strict=False), 1):
        yield from _finding(place, finding, remedy)
    if result.slots or result.others:
        yield from _table(HEADERS, [slot_cells(slot) for slot in (*result.slots, *result.others)])
        yield ""
        yield (
            "Medians over rows; `trimmed` is the cosine without massive channels; `limits` are what `rel L2` was "
            "judged by (match/noise). `= B3` was measured, `(says B3)` is only declared."
        )
        yield ""
    for line in (limits_line(result), *oddities(result)):
        if line is not None:
            yield f"* {text(line, 800)}"
    yield f"* {text(alignment_line(result), 800)}"
    yield from (f"* note, {text(line)}" for line in note_lines(result))
    acceptance = acceptance_line(result)
    if acceptance is not None:
        yield f"* {text(acceptance)}"
    difference = result.alignment.first_difference
    if difference is not None:
        ids = f"id {difference.left_id} against {difference.reference_id}"
        yield f"* first token that differs: index {difference.index}, {ids}"
        if difference.left_text is not None and difference.reference_text is not None:
            yield f"  {code(difference.left_text)} against {code(difference.reference_text)}"


def _verdict(result: Result) -> str:
    """One short sentence: the causes by name where there are some, which the list below tells; else the summary."""
    faults = [f for f in result.findings if f.severity == FAULT]
    if not faults:
        return prose(result.summary)
    slots: dict[str, set[int]] = {}
    for fault in faults:
        slots.setdefault(fault.id, set()).update(fault.slots)
    causes = [f"{name} ({name_slots(sorted(where))})" if where else name for name, where in slots.items()]
    more = f" and {len(causes) - _MOST_CAUSES} more" if len(causes) > _MOST_CAUSES else ""
    return f"{'Cause' if len(causes) == 1 else 'Causes'}: {', '.join(causes[:_MOST_CAUSES])}{more}."


def _finding(place: int, finding: Finding, remedy: str) -> Iterator[str]:
    kind = "" if finding.severity == FAULT else " (note)"
    yield f"{place}. **`{finding.id}`**{kind}, confidence {finding.confidence:.2f}: {prose(finding.summary)}"
    if remedy:
        yield f"   **Fix:** {prose(remedy)}"
    yield ""


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(headers) + " |"
    yield "|" + "---|" * len(headers)
    for row in rows:
        yield "| " + " | ".join(text(cell, 80) for cell in row) + " |"


def _sections(result: Result) -> Iterator[str]:
    if result.matrix is not None:
        yield _fold("Slot × slot: relative L2", _matrix(result.matrix))
    if result.sweep is not None:
        yield _fold("Slot × boundary: relative L2 around the best boundary", _sweep(result.sweep))
    worst = list(_worst(result))
    if worst:
        yield _fold("Worst rows", "\n".join(worst))
    if result.slots or result.others:
        slots = (*result.slots, *result.others)
        yield _fold("All measures", "\n".join(_table(MEASURES, [measure_cells(slot) for slot in slots])))
    groups = list(group_rows(result))
    if groups:
        yield _fold("By phase, acceptance, position and round", "\n".join(_table(GROUPS, groups)))
    if result.findings:
        yield _fold("Evidence", _json({f"{i}. {f.id}": f.evidence for i, f in enumerate(result.findings, 1)}))
    yield _fold("Environment", _json(result.environment))
    yield _fold("Configurations", _json(result.configs))
    yield _fold("Files and thresholds", _json(_files(result)))


def _fold(title: str, body: str) -> str:
    return f"\n<details><summary>{title}</summary>\n\n{body}\n\n</details>\n"


def _json(value: Mapping[str, Any]) -> str:
    """A JSON block. A fence of tildes longer than any in the text; angle brackets cannot start a tag in it."""
    body = json.dumps(value, indent=1, ensure_ascii=True, default=str).replace("~", "\\u007e")
    return f"~~~json\n{shorten(body, 12_000)}\n~~~"


def _files(result: Result) -> dict[str, Any]:
    plain = result.to_json()
    keys = ("left", "reference", "noise", "thresholds", "tool_version")
    return {key: plain[key] for key in keys}


def _matrix(matrix: Matrix) -> str:
    rows = [(name, *(number(v) for v in line)) for name, line in zip(matrix.rows, matrix.rel_l2, strict=True)]
    return "\n".join(_table(("", *(text(c, 40) for c in matrix.columns)), rows))


def _sweep(matrix: Matrix, around: int = 4) -> str:
    """The few best boundaries of every slot."""
    rows = []
    for name, line in zip(matrix.rows, matrix.rel_l2, strict=True):
        ranked = sorted((v, c) for v, c in zip(line, matrix.columns, strict=True) if v == v)[:around]
        cells = [f"{column}: {number(value)}" for value, column in ranked]
        rows.append((name, *cells, *[""] * (around - len(cells))))
    return "\n".join(_table(("state", "best", "2nd", "3rd", "4th"), rows))


def _worst(result: Result) -> Iterator[str]:
    rows = [(slot, row) for slot in (*result.slots, *result.others) for row in slot.worst[:8]]
    if not rows:
        return
    yield "| slot | position | token | phase | round | cosine | trimmed | rel L2 | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for slot, row in rows:
        token = f"{row.token_id}" + (f" {code(row.token, 30)}" if row.token is not None else "")
        yield (
            f"| {slot_name(slot)} | {row.position} | {token} | {row.phase} | {row.round} | {cosine(row.cosine)} | "
            f"{cosine(row.cosine_trimmed)} | {number(row.rel_l2)} | {number(row.norm_ratio)} |"
        )
