"""``python -m doctools.screenshot``: docs/report.png, the first HTML report of `make demo` in a headless Chromium.

The picture keeps the words of its report, so that a test can tell when the report says something else by now.
"""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs/report.png"
REPORT = ROOT / "demo-output/before.html"
WIDTH, HEIGHT = 1180, 1120
LIMIT = 200_000
KEY = "report"  # of the PNG's text that holds the words
_BELOW = "Slot × boundary"  # where the picture ends
# What another recording of the same story changes: where it lies, how many tokens and rows it has.
_RECORDING = re.compile(r"(?:left|reference): \S+ \(|\d+ rows compared|accept length: ")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--virtual-time-budget=3000",
)


def words(page: str) -> list[str]:
    """What the top of a report says, without what differs from recording to recording."""
    body = re.sub(r"<pre.*?</pre>", "", page.split("<main>")[1].split("</main>")[0], flags=re.DOTALL)
    texts = (" ".join(html.unescape(text).split()) for text in re.split(r"<[^>]*>", body))
    said = [text for text in texts if text and not _RECORDING.match(text)]
    return said[: said.index(_BELOW)]


def words_of_picture(path: Path) -> list[str]:
    """The words of the report that the picture was made of; none for a picture of another maker."""
    from PIL import Image

    with Image.open(path) as image:
        kept = image.info.get(KEY)
    return [str(word) for word in json.loads(kept)] if isinstance(kept, str) else []


def picture(report: Path, folder: Path) -> bytes:
    """The top of the page as a PNG of few colours, so that it stays small."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("chromium is not installed: run tests/system_packages.sh")
    shot = folder / "shot.png"
    size = f"--window-size={WIDTH},{HEIGHT}"
    command = [
        browser,
        *_FLAGS,
        size,
        f"--user-data-dir={folder / 'profile'}",
        f"--screenshot={shot}",
        report.as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    with Image.open(shot) as image:
        small = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    data = io.BytesIO()
    kept = PngInfo()
    kept.add_text(KEY, json.dumps(words(report.read_text(encoding="utf-8"))), zip=True)
    small.save(data, "PNG", optimize=True, pnginfo=kept)
    return data.getvalue()


def main() -> None:
    if not REPORT.is_file():
        sys.exit(f"{REPORT.relative_to(ROOT)} is not there: run `make demo`")
    with tempfile.TemporaryDirectory() as scratch:
        data = picture(REPORT, Path(scratch))
    if len(data) > LIMIT:
        sys.exit(f"the picture has {len(data)} bytes, more than the {LIMIT} allowed")
    OUT.write_bytes(data)
    print(f"{OUT.relative_to(ROOT)}: {len(data)} bytes")


if __name__ == "__main__":
    main()
