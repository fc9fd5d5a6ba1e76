"""The report as one HTML file that needs no network: causes, heatmap, plots by position, worst tokens, filters.

The causes stand in the page itself, so that it says them without scripts too; the rest is drawn from the embedded
result. A content security policy forbids every request.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from drafttrace.compare.result import FAULT, Finding, Result, SideInfo
from drafttrace.compare.wording import (
    VERDICTS,
    acceptance_line,
    alignment_line,
    limits_line,
    note_lines,
    oddities,
    remedies,
)

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'"
)
_HEAT = """<section class="card" id="{id}"><h2>{title}</h2><div class="bar">
<button data-kind="rel_l2" aria-pressed="true">relative L2</button><button data-kind="cosine">cosine</button>
<span class="dim">near <span class="scale"></span> far; the best of a row is outlined</span></div>
<div class="plot scroll"></div></section>"""
_SERIES = """<section class="card" id="series"><h2>By position</h2><div class="bar">
<select name="slot" aria-label="slot"></select><select name="phase" aria-label="phase"></select>
<label><input type="checkbox" name="trimmed"> without massive channels</label><span class="legend"></span></div>
<h3>cosine</h3><div id="cosine-plot"></div><h3>relative L2 (logarithmic)</h3><div id="rel-plot"></div>
<h3>norm (left solid, reference dashed, logarithmic)</h3><div id="norm-plot"></div></section>"""
_WORST = """<section class="card" id="worst"><h2>Worst rows</h2><div class="bar">
<select name="slot" aria-label="slot"></select><select name="phase" aria-label="phase"></select>
<input type="search" placeholder="token text, id or position" aria-label="search"><span class="count dim"></span></div>
<div class="rows"></div></section>"""


def render(result: Result) -> str:
    """The whole page."""
    assets = files("drafttrace.compare") / "assets"
    style = (assets / "report.css").read_text(encoding="utf-8")
    script = (assets / "report.js").read_text(encoding="utf-8")
    body = "\n".join(_body(result))
    title = html.escape(f"drafttrace: {VERDICTS[result.verdict]}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<link rel="icon" href="data:,"><title>{title}</title>\n<style>\n{style}</style></head>\n'
        f"<body><main>\n{body}\n</main>\n"
        f'<script type="application/json" id="result">{_embedded(result.to_json())}</script>\n'
        f"<script>\n{script}</script>\n</body></html>\n"
    )


def _embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _body(result: Result) -> Iterator[str]:
    yield '<section class="card"><h1>drafttrace</h1>'
    yield f'<div class="verdict {result.verdict}">{html.escape(VERDICTS[result.verdict])}</div>'
    yield f'<p class="summary">{html.escape(result.summary)}</p>'
    yield from (
        _side(name, side) for name, side in (("left", result.left), ("reference", result.reference)) if side
    )
    yield from (f'<div class="side">{html.escape(f"note, {line}")}</div>' for line in note_lines(result))
    for line in (alignment_line(result), acceptance_line(result), f"noise floor: {result.noise.source}"):
        if line:
            yield f'<div class="side">{html.escape(line)}</div>'
    yield "</section>"
    if result.findings:
        yield '<section class="card" id="findings"><h2>Findings</h2>'
        for place, (finding, remedy) in enumerate(zip(result.findings, remedies(result), strict=True), 1):
            yield from _finding(place, finding, remedy)
        yield "</section>"
    yield '<section class="card" id="slots"><h2>Slots</h2>'
    lines = (limits_line(result), *oddities(result))
    yield from (f'<div class="dim">{html.escape(line)}</div>' for line in lines if line is not None)
    yield "</section>"
    yield _HEAT.format(id="sweep", title="Slot × boundary")
    yield _HEAT.format(id="matrix", title="Slot × slot")
    yield _SERIES
    yield _WORST
    yield '<section class="card" id="groups"></section>'
    yield _folded("Environment", result.environment)
    yield _folded("Configurations", result.configs)
    yield _folded("Thresholds", result.to_json()["thresholds"])


def _side(name: str, side: SideInfo) -> str:
    wiring = "[" + ", ".join(k or "?" for k in side.wiring) + "]" if side.wiring else "not declared"
    text = f"{name}: {side.path} ({side.format}), {side.tokens} tokens, declared wiring {wiring}"
    return f'<div class="side">{html.escape(text)}</div>'


def _finding(place: int, finding: Finding, remedy: str) -> Iterator[str]:
    kind = "" if finding.severity == FAULT else " note"
    yield f'<div class="finding{kind}"><b>{place}. <code>{html.escape(finding.id)}</code></b>'
    yield f'<span class="dim"> {html.escape(finding.severity)}, confidence {finding.confidence:.2f}</span>'
    yield f"<div>{html.escape(finding.summary)}</div>"
    if remedy:
        yield f'<div class="fix">→ {html.escape(remedy)}</div>'
    evidence = json.dumps(dict(finding.evidence), indent=1, default=str)
    yield f"<details><summary>evidence</summary><pre>{html.escape(evidence)}</pre></details></div>"


def _folded(title: str, value: Any) -> str:
    text = json.dumps(value, indent=1, default=str)
    return f'<section class="card"><details><summary>{title}</summary><pre>{html.escape(text)}</pre></details></section>'
