"""Terminal and Markdown reports: verdict first, narrow terminals, hostile token text, the size limit."""

from __future__ import annotations

import html
import io
import re
from dataclasses import replace

import pytest
from compare_faults import one_unknown_row
from compare_world import dumped, make_world, served
from rich.console import Console

from drafttrace.compare import report_html, report_markdown, report_terminal
from drafttrace.compare.acceptance import parse_expected
from drafttrace.compare.diff import diff
from drafttrace.compare.result import Result
from drafttrace.compare.wording import cosine, number

WORLD = make_world(layers=61, tokens=40)
ABOUT = {"rule": "plus_one_if_first_is_one", "model_class": "DeepseekV3ForCausalLM", "sglang_version": "0.5.23"}
HOSTILE = "</details><script>alert(1)</script>|`\n@someone #1 ~~~ [x](http://e) \x1b[31m"


def incident(text: str = HOSTILE) -> Result:
    left = served(WORLD, (2, 30, 58), prompt=30, about=ABOUT)
    dump = dumped(WORLD.noisy(0.02), (0, 3, 31), last=59, last_declared=59)
    return diff(left, dump, decode=lambda token: f"{token}{text}")


INCIDENT = incident()


def terminal(found: Result, width: int, color: bool = False) -> str:
    out = io.StringIO()
    report_terminal.render(found, Console(file=out, width=width, force_terminal=color, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 96, 120, 200])
def test_the_terminal_report_fits_any_width_and_says_the_cause_first(width: int) -> None:
    text = terminal(INCIDENT, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert text.startswith("MISMATCH")
    flat = " ".join(text.split())
    assert flat.index("slot-shift") < flat.index("boundary-offset")
    assert "[0, 3, 31]" in flat
    assert INCIDENT.matrix is not None
    matrix = " ".join(
        flat[flat.index("relative L2, left by reference") :].split()
    )  # it was left out below 60 columns
    assert all(name in matrix for name in (*INCIDENT.matrix.rows, *INCIDENT.matrix.columns))


def test_piped_output_has_no_escapes_and_a_terminal_has() -> None:
    assert "\x1b" not in terminal(INCIDENT, 100)
    assert "\x1b[" in terminal(INCIDENT, 100, color=True)


def test_the_table_shows_numbers_beside_what_they_are_judged_against() -> None:
    text = terminal(INCIDENT, 140)
    header = next(line for line in text.splitlines() if line.startswith("slot"))
    names = "slot left reference cosine trimmed rel L2 limits norm L norm R ratio verdict"
    assert header.split() == names.split()
    assert re.search(r"aux/0 = B2 +hidden_states\[0\] = B0 .* 0\.05/0\.\d+ .*MISMATCH", text)
    flat = " ".join(text.split())
    assert re.search(
        r"slot 1, 40 rows: rel L2 p99 [\d.]+, max .* \(without 2 channels\); max abs .* bf16 steps, p99", flat
    )
    assert "limits of rel L2 (match/noise): the default limits, and the neighbouring boundary at 0.1" in flat
    assert re.search(r"aux/0 = B2 \(margin exact, 1\.7x proves it\)", flat)


def test_a_few_odd_rows_are_told_by_phase_and_token_and_by_the_rule_that_found_them() -> None:
    dump = one_unknown_row(35)(dumped(WORLD.noisy(0.02), (2, 30, 58)))
    found = diff(served(WORLD, (2, 30, 58), prompt=30), dump, decode=lambda token: f"word{token}")
    flat = " ".join(terminal(found, 160).split())
    assert (
        "1 holding something else (relative L2 above 0.5 with a cosine below 0.85, or a trimmed one below 0.5)"
        in flat
    )
    assert re.search(
        r"slot 1, rel L2: prefill [\d.]+; verify [\d.]+; accepted draft tokens [\d.]+; tokens that", flat
    )
    assert re.search(r"slot 1, worst tokens: 35 “word\d+” \(verify, round 2; cosine", flat)
    hostile = diff(served(WORLD, (2, 30, 58), prompt=30), dump, decode=lambda token: "\x1b[31m\u202eevil\n")
    text = terminal(hostile, 160)
    assert "\x1b" not in text and "\u202e" not in text and "evil" in text


def test_an_accept_length_stands_beside_what_it_is_judged_by() -> None:
    about = {"request": {"accept_counts": [3, 1, 2, 2, 1, 3]}}
    left = served(WORLD, (2, 30, 58))
    left = replace(left, about={**left.about, **about})
    found = diff(left, dumped(WORLD.noisy(0.02), (2, 30, 58)), expected=parse_expected("0.75,0.5"))
    text = " ".join(terminal(found, 140).split())
    assert "observed 2.00 over 6 rounds, expected 2.12 (1 + a1 + a1·a2 + … with step accuracies 0.75, 0.5)" in text
    assert "too low below 1.67; accepted by draft position: 67 %, 50 %" in text
    assert "observed accept length 2.00, expected 2.12" in found.summary


def test_every_measure_is_in_the_markdown_report() -> None:
    text = report_markdown.render(INCIDENT)
    for word in ("max abs", "ulp p50", "rel L2 p99", "channels", "accepted draft tokens", "round 0", "positions"):
        assert word in text, word


def test_one_trace_and_no_overlap_can_be_shown() -> None:
    for found in (diff(served(WORLD, (2, 30, 58)), None), diff(served(WORLD, (2, 30, 58)), _other())):
        assert terminal(found, 80)
        assert report_markdown.render(found).startswith("## drafttrace:")


def _other():  # type: ignore[no-untyped-def]
    dump = dumped(WORLD, (0, 3, 31))
    return replace(dump, tokens=dump.tokens + 5000)


def test_markdown_says_verdict_cause_and_fix_before_any_number() -> None:
    text = report_markdown.render(INCIDENT)
    head = text[: text.index("| slot |")]
    assert head.startswith("## drafttrace: ❌ MISMATCH\n")
    assert head.index("slot-shift") < head.index("boundary-offset")
    assert '"eagle_aux_hidden_state_layer_ids": [0, 3, 31]' in head
    assert text.count("<details>") == text.count("</details>") >= 5


def test_token_text_cannot_inject_markup() -> None:
    text = report_markdown.render(INCIDENT)
    assert "<script" not in text and "\x1b" not in text
    assert "@someone" not in text
    outside = re.sub(r"~~~json\n.*?\n~~~", "", text, flags=re.S)
    tags = set(re.findall(r"<[^>]*>", outside))
    assert tags <= {"<details>", "</details>", "<summary>", "</summary>"}
    rows = [line for line in outside.splitlines() if "script" in line]
    assert len(rows) >= 12 and {row.count("|") for row in rows} == {10}


def test_the_first_difference_is_shown_as_text_that_injects_nothing() -> None:
    dump = dumped(WORLD, (0, 3, 31))
    tokens = dump.tokens.copy()
    tokens[9:] += 5000
    evil = "![x](http://e)`**@all** </details> ” [y](z)"
    found = diff(
        served(WORLD, (2, 30, 58), prompt=40, about=ABOUT),
        replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens)),
        decode=lambda token: evil if token > 400 else f" t{token}",
    )
    assert evil[:10] in next(f.summary for f in found.findings if f.id == "no-overlap")
    text = report_markdown.render(found)
    outside = re.sub(r"~~~json\n.*?\n~~~\n", "", text, flags=re.S)
    outside = re.sub(r"` .*? `", "", outside)
    assert not re.search(r"(?<!\\)\]\(", outside) and "@all" not in outside and "</details> ”" not in outside


def test_a_path_cannot_inject_markup() -> None:
    found = replace(INCIDENT, left=replace(INCIDENT.left, path="<img src=x onerror=alert(1)>~~~\n</details>"))
    text = report_markdown.render(found)
    assert "\n</details>\n~~~" not in text
    blocks = re.findall(r"~~~json\n(.*?)\n~~~\n", text, flags=re.S)
    assert any("<img" in block for block in blocks)
    assert "<img" not in re.sub(r"~~~json\n.*?\n~~~\n", "", text, flags=re.S)


def test_the_report_stays_under_the_limit_of_bug_trackers() -> None:
    huge = replace(
        INCIDENT,
        environment={f"variable {i}": "x" * 500 for i in range(500)},
        configs={f"config {i}": {"y" * 100: list(range(200))} for i in range(300)},
        findings=INCIDENT.findings * 30,
    )
    text = report_markdown.render(huge)
    assert len(text) < report_markdown.LIMIT
    assert text.count("<details>") == text.count("</details>")
    assert "slot-shift" in text


def test_numbers_are_short_and_keep_the_digits_that_matter() -> None:
    assert number(float("nan")) == number(None) == "-"
    assert number(25_000.0) == "2.5e+04" and number(0.0003) == "3.0e-04" and number(0.03127) == "0.0313"
    assert cosine(0.99991234) == "0.999912" and cosine(0.98) == "0.9800" and cosine(1.0) == "1.0000"


def test_notes_of_both_sides_stand_in_the_reports_escaped_and_bounded() -> None:
    """What is odd about a file ("100 rows for 129 tokens") stood in the JSON alone."""
    left = replace(INCIDENT.left, notes=("rank 0 of 4 ranks",))
    assert INCIDENT.reference is not None
    notes = ("100 rows for 129 tokens", HOSTILE * 20, *(f"note {k}" for k in range(20)))
    found = replace(INCIDENT, left=left, reference=replace(INCIDENT.reference, notes=notes))
    shown, markdown, page = terminal(found, 160), report_markdown.render(found), report_html.render(found)
    for text in (shown, markdown, page):
        assert "note, left: rank 0 of 4 ranks" in text
        assert "note, reference: 100 rows for 129 tokens" in text
        assert "reference: 16 more notes" in text and "note, reference: note 5" not in text
    assert "\x1b" not in shown and "\\x1b" in shown
    line = next(line for line in markdown.splitlines() if "alert" in line and line.startswith("* note"))
    assert "<script" not in line and "@someone" not in line and len(line) < 600
    assert "</details><script>" not in page.split('<script type="application/json"')[0]


def test_the_bold_verdict_names_the_causes_and_does_not_repeat_the_list() -> None:
    """It was items 1 and 2 word for word, several hundred characters."""
    bold = report_markdown.render(INCIDENT).splitlines()[2]
    assert bold == "**Causes: slot-shift (slots 0, 1 and 2), boundary-offset (slots 0, 1 and 2).**"
    many = replace(
        INCIDENT, findings=tuple(replace(f, id=f"{f.id}{k}") for k in range(20) for f in INCIDENT.findings)
    )
    assert len(report_markdown.render(many).splitlines()[2]) < 300


@pytest.mark.parametrize("address", ["http://evil.example/x", "HTTPS://e", "www.evil.example", "mailto:a@b.c"])
def test_addresses_in_token_text_are_no_links(address: str) -> None:
    shown = report_markdown.text(f"see {address} now")
    assert "://" not in shown and "www." not in shown and "mailto:" not in shown
    assert html.unescape(shown.replace("\\", "")) == f"see {address} now"
    assert "://" not in report_markdown.prose(f"The token is “{address}”.")
