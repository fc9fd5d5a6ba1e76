"""Wheels of the projects whose dumps drafttrace reads, fetched once into ``.cache/peers`` and unpacked, not installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache/peers"
sys.path.insert(0, str(ROOT / "tests/unit"))  # dump_layouts, the writers of every layout


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Other projects' wheels are fetched only where they are asked for."""
    if "peers" in (config.getoption("-m") or ""):
        return
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(
                pytest.mark.skip(reason="fetches other projects' wheels: make test-peers (pytest -m peers)")
            )


def unpacked(name: str, version: str) -> Path:
    """The unpacked wheel. Skips the test where it cannot be fetched."""
    folder = CACHE / f"{name}-{version}"
    if (folder / ".complete").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest",
               str(folder), f"{name}=={version}"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name} {version} could not be fetched within 300 s")
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines()
        pytest.skip(f"{name} {version} could not be fetched: {lines[-1] if lines else 'no wheel'}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    (folder / ".complete").touch()
    return folder


@pytest.fixture(scope="session")
def peer() -> Callable[[str, str], Path]:
    return unpacked
