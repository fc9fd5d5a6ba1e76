"""The HTML report in a real headless Chromium: it draws, without an error and without a request."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from compare_faults import nan_at
from compare_world import dumped, make_world, served

from drafttrace.compare import report_html
from drafttrace.compare.diff import diff
from drafttrace.compare.result import Result

WORLD = make_world(layers=20, tokens=30)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=3000",
)


def mismatch() -> Result:
    left = served(WORLD, (2, 10, 17), prompt=20)
    return diff(left, dumped(WORLD.noisy(0.02), (0, 3, 11)), decode=lambda token: f"{token}{HOSTILE}")


def one_trace() -> Result:
    return diff(served(WORLD, (2, 10, 17)), None)


def nothing_shared() -> Result:
    dump = dumped(WORLD, (2, 10, 17))
    return diff(served(WORLD, (2, 10, 17)), replace(dump, tokens=dump.tokens + 900))


def with_nan() -> Result:
    return diff(served(WORLD, (2, 10, 17), sweep=()), nan_at(3)(dumped(WORLD, (2, 10, 17), last=None)))


def browse(page: Path, profile: Path, *more: str) -> subprocess.CompletedProcess[str]:
    if CHROMIUM is None:
        pytest.fail("chromium is not installed: run tests/system_packages.sh (apt-get install chromium)")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *more, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)


@pytest.mark.parametrize("make", [mismatch, one_trace, nothing_shared, with_nan])
def test_the_page_draws_in_a_browser_without_an_error(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "report.html"
    page.write_text(report_html.render(make()), encoding="utf-8")
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert 'data-drawn="yes"' in done.stdout, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    assert "<img src=" not in done.stdout


def test_the_drawn_page_holds_heatmaps_plots_filters_and_escaped_tokens(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report_html.render(mismatch()), encoding="utf-8")
    dom = browse(page, tmp_path / "profile", "--dump-dom").stdout
    assert dom.count('class="tile"') == (8 * 21 + 5 * 4)
    assert dom.count("<path d=") >= 3 + 3 + 6
    assert "slot-shift" in dom and "48 of 48 rows" in dom
    assert dom.count("<option") >= 2 * 4
    assert "&lt;img src=x onerror" in dom


def test_the_page_is_a_picture_of_some_colours(tmp_path: Path) -> None:
    page, shot = tmp_path / "report.html", tmp_path / "shot.png"
    page.write_text(report_html.render(mismatch()), encoding="utf-8")
    browse(page, tmp_path / "profile", f"--screenshot={shot}", "--window-size=1240,2600")
    assert shot.stat().st_size > 60_000


PROBE = """<script>
const wide = document.documentElement.scrollWidth - innerWidth;
const tile = document.querySelector("#sweep .tile");
document.documentElement.dataset.over = String(Math.max(0, wide));
document.documentElement.dataset.tile = tile.getAttribute("fill");
document.documentElement.dataset.shown = String(document.querySelectorAll("#rel-plot .limit").length);
const slot = document.querySelector("#series [name=slot]");
slot.value = "1"; slot.dispatchEvent(new Event("change"));
document.querySelector("#series [name=trimmed]").click();
document.documentElement.dataset.chosen = String(document.querySelectorAll("#rel-plot .limit").length);
document.documentElement.dataset.lines = String(document.querySelectorAll("#cosine-plot path").length);
const find = document.querySelector("#worst input");
find.value = "no such token"; find.dispatchEvent(new Event("input"));
document.documentElement.dataset.found = document.querySelector("#worst .count").textContent;
</script></body>"""


@pytest.mark.parametrize("window", ["420,900", "1240,900"])
@pytest.mark.parametrize("scheme", ["0", "1"])  # dark, light
def test_the_page_fits_its_window_and_its_filters_work(window: str, scheme: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report_html.render(mismatch()).replace("</body>", PROBE), encoding="utf-8")
    more = (f"--window-size={window}", f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom")
    done = browse(page, tmp_path / "profile", *more)
    said = dict(re.findall(r'data-(\w+)="([^"]*)"', done.stdout[: done.stdout.index("<head")]))
    assert "CONSOLE" not in done.stderr, done.stderr
    assert said["over"] == "0", said
    assert (said["shown"], said["chosen"], said["lines"]) == ("0", "2", "1")
    assert said["found"] == "0 of 48 rows"
    lightness = int(float(re.findall(r"([\d.]+)%\)$", said["tile"])[0]))
    assert lightness < 70 if scheme == "0" else lightness > 20


def test_the_page_asks_the_network_for_nothing() -> None:
    text = report_html.render(mismatch())
    assert "default-src 'none'" in text
    outside = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.S)
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", outside)
    assert "http://www.w3.org/2000/svg" in outside and outside.count("http:") == 1


def test_token_text_stays_inside_the_data() -> None:
    text = report_html.render(mismatch())
    assert "alert(1)</script>" not in text
    assert text.count("</script>") == 2


def test_causes_are_readable_without_scripts() -> None:
    text = re.sub(r"<script.*?</script>", "", report_html.render(mismatch()), flags=re.S)
    assert "slot-shift" in text and "MISMATCH" in text and "fix" in text
