"""``python -m doctools.screenshot``: docs/report.png, the first HTML report of `make demo` in a headless Chromium."""

from __future__ import annotations

import io
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


def picture(html: Path, folder: Path) -> bytes:
    """The top of the page as a PNG of few colours, so that it stays small."""
    from PIL import Image

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
        html.as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    with Image.open(shot) as image:
        small = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    data = io.BytesIO()
    small.save(data, "PNG", optimize=True)
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
