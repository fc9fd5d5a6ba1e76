"""``python -m doctools.screenshot``: docs/report.png, the HTML report of the recorded incident in a headless Chromium."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs/report.png"
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


def page(folder: Path) -> Path:
    """The report as `drafttrace diff --html` writes it, with tokens as text."""
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "diff"]
    command += ["traces/tiny-kimi/as-trained.h5", "traces/tiny-kimi/dump/data_0.pt"]
    command += ["--tokenizer", "pairs/tiny-kimi/target", "--html", str(folder / "report.html"), "--quiet"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode != 1:
        sys.exit(f"the recorded incident compared with exit code {done.returncode}, not 1")
    return folder / "report.html"


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
    with tempfile.TemporaryDirectory() as scratch:
        data = picture(page(Path(scratch)), Path(scratch))
    if len(data) > LIMIT:
        sys.exit(f"the picture has {len(data)} bytes, more than the {LIMIT} allowed")
    OUT.write_bytes(data)
    print(f"{OUT.relative_to(ROOT)}: {len(data)} bytes")


if __name__ == "__main__":
    main()
