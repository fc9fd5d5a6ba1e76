"""The HTML report in a real headless Chromium: it draws, without an error and without a request."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from browser import browse
from compare_faults import nan_at
from compare_world import dumped, make_world, served

from drafttrace.compare import report_html
from drafttrace.compare.diff import diff
from drafttrace.compare.result import Result

WORLD = make_world(layers=20, tokens=30)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


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


LEGEND = """<script>
const names = () => [...document.querySelectorAll("#series .legend > span")].map((s) => s.textContent).join(";");
const drawn = () => document.querySelectorAll("#cosine-plot path").length;
const box = document.querySelector("#series [name=slot]");
document.documentElement.dataset.all = `${names()}:${drawn()}`;
for (const option of box.options) {
  box.value = option.value; box.dispatchEvent(new Event("change"));
  document.documentElement.dataset[`of${option.index}`] = `${names()}:${drawn()}`;
}
</script></body>"""


def test_the_legend_names_what_is_drawn(tmp_path: Path) -> None:
    """It showed "last" beside "all slots", which never draw it."""
    page = tmp_path / "report.html"
    result = diff(served(WORLD, (2, 10, 17)), dumped(WORLD.noisy(0.02), (2, 10, 17)))
    assert [other.slot for other in result.others] == [-1]
    page.write_text(report_html.render(result).replace("</body>", LEGEND), encoding="utf-8")
    dom = browse(page, tmp_path / "profile", "--dump-dom").stdout
    said = dict(re.findall(r'data-(\w+)="([^"]*)"', dom[: dom.index("<head")]))
    assert said["all"] == said["of0"] == "slot 0;slot 1;slot 2:3"
    assert (said["of1"], said["of4"]) == ("slot 0:1", "last:1")


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
