"""`make docs` builds the site strictly: a dead link, a missing page or an unknown anchor fails it."""

from __future__ import annotations

import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

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


def test_the_site_builds_and_its_links_are_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "docs", f"SITE={tmp_path}"], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    pages = {page: read(page) for page in tmp_path.rglob("*.html")}
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
