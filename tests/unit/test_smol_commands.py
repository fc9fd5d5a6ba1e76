"""Options of the real pair's commands: one sentence and exit code 2 before any work, and nothing of others overwritten."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(cache: Path, module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"DRAFTTRACE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    command = [sys.executable, "-m", f"pairs.smol.{module}", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(".\n") and not done.stdout
    return done.stderr


@pytest.mark.parametrize(
    ("module", "arguments", "value"),
    [
        ("dump", ["--out", "never", "--samples", "0"], "'0'"),
        ("dump", ["--out", "never", "--answer", "0"], "'0'"),
        ("dump", ["--out", "pairs"], "pairs"),
        ("dump", ["--out", "README.md"], "README.md"),
        ("answers", ["--part", "foo"], "'foo'"),
        ("answers", ["--part", "2/2"], "'2/2'"),
        ("answers", ["--count", "100000"], "'100000'"),
        ("train", ["--wiring", "B0,B5,B28"], "[B5]"),
        ("train", ["--wiring", "nonsense"], "nonsense"),
        ("train", ["--wiring", "B0,B16"], "[B0, B16] has 2 boundaries"),
        ("train", ["--wiring", "B0,B15,B16,B28"], "reads 3"),
        ("train", ["--updates", "-1"], "'-1'"),
        ("train", ["--minutes", "nan"], "'nan'"),
        ("make", ["--talks", "0"], "'0'"),
        ("accept", ["--prompts", "0"], "'0'"),
        ("accept", ["--draft", "docs"], "docs"),
        ("accept", ["--json", "no/such/folder/a.json"], "no/such/folder"),
        ("fetch", ["--bogus"], "--bogus"),
    ],
)
def test_a_wrong_option_is_one_sentence(module: str, arguments: list[str], value: str, tmp_path: Path) -> None:
    assert value in refused(run(tmp_path / "cache", module, *arguments))
    assert not (tmp_path / "cache").exists() and not (ROOT / "never").exists()


def test_training_that_cannot_begin_leaves_the_committed_log(tmp_path: Path) -> None:
    """It emptied pairs/smol/draft/training.jsonl before it looked for answers."""
    draft = ROOT / "pairs/smol/draft"
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in draft.iterdir()}
    said = refused(run(tmp_path / "cache", "train"))
    assert "python -m pairs.smol.answers" in said and str(tmp_path / "cache") in said
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in draft.iterdir()} == before


def test_a_dump_goes_into_a_new_folder_only(tmp_path: Path) -> None:
    """It overwrote files of others and left samples of an earlier run beside its own."""
    out = tmp_path / "dump"
    out.mkdir()
    (out / "data_7.pt").write_text("mine")
    assert str(out) in refused(run(tmp_path / "cache", "dump", "--out", out))
    assert [path.read_text() for path in out.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("wiring", "ids"), [((0, 16, 28), [15, 27, 28]), ((16, 28, 29), [15, 27, 28]), ((0, 3, 16), [-1, 2, 15])]
)
def test_a_head_is_saved_with_the_ids_of_its_own_wiring(wiring: tuple[int, ...], ids: list[int]) -> None:
    """Every head was saved with [15, 27, 28]: the incident's, which are right for one other wiring only."""
    from pairs.smol.train import layer_ids_of

    assert layer_ids_of(wiring) == ids
