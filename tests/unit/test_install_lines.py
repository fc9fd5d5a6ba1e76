"""Lines that say how to install something work as typed, in zsh too."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_extras_are_quoted_wherever_a_line_installs_them() -> None:
    """`pip install drafttrace[plot]`: zsh takes the brackets for a pattern, and says "no matches found"."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    found = []
    for name in listed:
        if name.startswith("tests/"):
            continue
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            found += [
                (name, line) for one in re.finditer(r"drafttrace\[\w+\]", line) if line[one.start() - 1] != "'"
            ]
            found += [(name, line) for _ in re.finditer(r"'pip install '?drafttrace\[", line)]
    assert not found
