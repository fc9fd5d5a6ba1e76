"""A real headless Chromium for tests that look at a page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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


def browse(page: Path, profile: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Open a file; ``more`` are flags such as ``--dump-dom`` or ``--screenshot=FILE``."""
    if CHROMIUM is None:
        pytest.fail("chromium is not installed: run tests/system_packages.sh (apt-get install chromium)")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *more, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
