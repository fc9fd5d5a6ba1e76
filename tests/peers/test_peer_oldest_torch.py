"""drafttrace on the oldest torch, and the oldest of everything else, that its metadata allow. Fetches gigabytes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "pairs/tiny-kimi"

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(sys.version_info >= (3, 12), reason="the oldest numpy has no wheel for this Python"),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the lowest versions that ``pyproject.toml`` names."""
    folder = tmp_path_factory.mktemp("oldest") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = [f"{one.name}=={specifier.version}" for one in map(Requirement, listed) for specifier in one.specifier]
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
    # SGLang's machine may have a constraint on torch, which is about newer releases.
    for arguments in (["--only-binary", ":all:", *oldest], ["--no-deps", str(ROOT)]):
        done = subprocess.run([*pip, *arguments], capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stderr[-2000:]
    return folder / "bin"


def run(programs: Path, cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [programs / "drafttrace", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_replay_diff_and_check_run_on_the_oldest_torch(programs: Path, tmp_path: Path) -> None:
    told = subprocess.run(
        [programs / "python", "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    assert told.stdout.startswith("2.4.0"), told.stderr
    dump, target = PAIR / "dump/data_0.pt", PAIR / "target"
    done = run(programs, tmp_path, "replay", dump, "--draft", PAIR / "draft", "--target", target, "--json", "-")
    assert done.returncode == 1, done.stderr[-2000:]  # the draft's config names another wiring
    assert json.loads(done.stdout)["wirings"][0]["wiring"] == "[B0, B3, B31]"
    done = run(programs, tmp_path, "diff", ROOT / "traces/tiny-kimi/fixed.h5", dump)  # torch reads the dump's bf16
    assert done.returncode == 0, done.stderr[-2000:]
    done = run(programs, tmp_path, "check", "--target", PAIR / "target", "--draft", PAIR / "draft", "--dump", dump)
    assert done.returncode == 1 and "slot-shift" in done.stdout, done.stderr[-2000:]
