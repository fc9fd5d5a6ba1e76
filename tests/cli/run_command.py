"""The command line as people run it, for tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(*arguments: str | Path, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """The command line in an environment without NO_COLOR, COLUMNS and a locale of the test runner's."""
    clean = {
        k: v for k, v in os.environ.items() if not re.match(r"LC_|LANG|NO_COLOR|COLUMNS|FORCE_COLOR|BROWSER", k)
    }
    return subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        env={**clean, "OMP_NUM_THREADS": "1", **(env or {})},
        **more,
    )
