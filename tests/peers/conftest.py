"""Packages of the projects whose dumps drafttrace reads, fetched once into ``.cache/peers``; nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
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


def module_of_source(name: str, version: str, member: str) -> Path:
    """One file of a source archive, where the wheel is too large to fetch. Skips the test where it cannot be had.

    pip has no command that fetches a source archive without asking it for its metadata; that may fail, for want of
    what the project is built with, and the unpacked tree is kept all the same (``--no-clean``). Nothing is built.
    """
    kept = CACHE / f"{name}-{version}" / Path(member).name
    if kept.is_file():
        return kept
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
                   "--no-clean", "--no-cache-dir", "--no-binary", ":all:", "--dest", scratch,
                   f"{name}=={version}"]  # fmt: skip
        environment = os.environ | {"TMPDIR": scratch, f"{name.upper()}_TARGET_DEVICE": "empty"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        except subprocess.TimeoutExpired:
            pytest.skip(f"the source of {name} {version} could not be fetched within 300 s")
        found = [*Path(scratch).glob(f"pip-*/{name}_*/{member}")]
        if not found:
            lines = done.stderr.strip().splitlines()
            pytest.skip(
                f"the source of {name} {version} could not be had: {lines[-1] if lines else 'no ' + member}"
            )
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found[0], kept.with_suffix(".part"))
    return kept.with_suffix(".part").replace(kept)


@pytest.fixture(scope="session")
def peer_module() -> Callable[[str, str, str], Path]:
    return module_of_source


@pytest.fixture(scope="session")
def peer() -> Callable[[str, str], Path]:
    return unpacked
