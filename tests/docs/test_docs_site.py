"""`make docs` builds the site strictly: a dead link, a missing page or an unknown anchor fails it."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import browse

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.packaging


class Links(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids.add(str(values["id"]))
        for name in ("href", "src"):
            if values.get(name) is not None:
                self.targets.append(str(values[name]))


def read(page: Path) -> Links:
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(["make", "docs", f"SITE={folder}"], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def test_the_site_builds_and_its_links_are_whole(site: Path) -> None:
    pages = {page: read(page) for page in site.rglob("*.html")}
    assert len(pages) > 20
    checked = 0
    for page, links in pages.items():
        if page.name == "404.html":
            continue
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target == "":
                continue
            other = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if other.is_dir():
                other /= "index.html"
            assert other.exists(), f"{page}: {target}"
            if parts.fragment and other in pages:
                assert unquote(parts.fragment) in pages[other].ids, f"{page}: {target}"
            checked += 1
    assert checked > 500


CLICK = """
<script>
addEventListener("load", () => {
  const texts = [...document.querySelectorAll(".language-console")].map((block) => {
    const button = block.querySelector("button") || block.appendChild(document.createElement("button"));
    button.classList.add("md-code__button");
    button.click();
    return button.getAttribute("data-clipboard-text");
  });
  const found = document.createElement("script");
  found.type = "application/json";
  found.id = "copied";
  found.textContent = JSON.stringify(texts);
  document.body.append(found);
});
</script>
"""


def test_the_copy_button_takes_the_commands_alone(site: Path, tmp_path: Path) -> None:
    """It copied the prompt, and what the command had printed."""
    page = site / "index.html"
    opened = site / "clicked.html"
    opened.write_text(page.read_text("utf-8").replace("</body>", CLICK + "</body>"), "utf-8")
    dom = browse(opened, tmp_path, "--dump-dom").stdout
    opened.unlink()
    found = re.search(r'<script type="application/json" id="copied">(.*?)</script>', dom)
    assert found is not None, dom[-2000:]
    texts = json.loads(found[1])
    assert "drafttrace demo\n" in texts
    assert all(text and "$ " not in text and "MATCH" not in text for text in texts), texts
    serve = next(text for text in texts if text.startswith("drafttrace serve"))
    assert serve.count("\n") == 2 and "\ndrafttrace record --from-dump" in serve
