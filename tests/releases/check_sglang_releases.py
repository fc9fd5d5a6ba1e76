"""Checks every symbol that the recorder rests on against releases of SGLang, without installing them.

    python tests/releases/check_sglang_releases.py [VERSION ...]

Downloads each wheel with pip (no dependencies), reads its source and prints one line per symbol that is missing. Exit
code 1 where a symbol that the recorder cannot do without is missing. Not part of ``make test``: it needs a package
index.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from drafttrace.hooks.sglang_engine.symbols import Verdict, judge

RELEASES = ("0.5.12", "0.5.15.post1", "0.5.18", "0.5.20", "0.5.23")


def verdict_of(version: str, wheel: Path) -> Verdict:
    """What the recorder makes of the SGLang in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        return judge(version, lambda path: archive.read(path) if path in names else None)


def download(version: str, folder: Path) -> Path:
    """The wheel of one release, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "-d", str(folder), f"sglang=={version}"], check=True)
    return next(folder.glob(f"sglang-{version}-*.whl"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=RELEASES)
    parser.add_argument("--wheels", type=Path, help="a folder that holds the wheels already")
    options = parser.parse_args()
    bad = False
    for version in options.versions:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.wheels or Path(temporary)
            have = list(folder.glob(f"sglang-{version}-*.whl"))
            verdict = verdict_of(version, have[0] if have else download(version, folder))
        bad = bad or not verdict.works
        says = "every needed symbol is there" if verdict.works else verdict.reason or "the recorder cannot work"
        print(f"SGLang {version}: {says}")
        for symbol in verdict.symbols:
            if symbol.problem:
                print(f"  {'MISSING' if symbol.needed else 'without'} {symbol.name}: {symbol.problem}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
