"""``drafttrace serve --wiring``: what cannot work is refused in one sentence, and no server is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGET, DRAFT = ROOT / "pairs/tiny-kimi/target", ROOT / "pairs/tiny-kimi/draft"
LAYERS = json.loads((TARGET / "config.json").read_text())["num_hidden_layers"]
SERVED = "drafttrace-test: SGLang was started"


EAGLE3 = ("--speculative-algorithm", "EAGLE3")
BOTH = ("--model-path", str(TARGET), "--speculative-draft-model-path", str(DRAFT))


def serve(folder: Path, wiring: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """``drafttrace serve`` with an ``sglang`` first on the path that only says that it was started."""
    package = folder / "site/sglang"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(f"print({SERVED!r})")
    given = arguments or (*BOTH, *EAGLE3)
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "serve", "--trace-dir", folder / "traces"]
    return subprocess.run(
        [*map(str, command), "--wiring", wiring, "--", *map(str, given)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(folder / "site"), "NO_COLOR": "1"},
    )


@pytest.mark.parametrize(
    ("wiring", "words"),
    [
        ("B0,B3", "gives 2 slots"),
        ("B0,B3,B31,B59", "name 3 boundaries"),
        (f"B0,B3,B{LAYERS + 1}", f"name boundaries from B0 to B{LAYERS}"),
        ("B0,B3,B3", "names B3 twice"),
        ("embed,0,3", "names B0 twice"),
        ("B0,,B3", "'' is no boundary"),
        ("", "'' is no boundary"),
        ("B-1,B3,B31", "'B-1' is no boundary"),
        ("0x3,B1,B2", "'0x3' is no boundary"),
        ("three of them", "'three of them' is no boundary"),
    ],
)
def test_a_wiring_that_cannot_work_is_refused_before_any_server(tmp_path: Path, wiring: str, words: str) -> None:
    """Counts and ranges were told only by a server that had loaded both models, in a traceback, with exit code 137."""
    done = serve(tmp_path, wiring)
    assert done.returncode == 2 and words in done.stderr, (done.returncode, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert SERVED not in done.stdout and not (tmp_path / "traces").exists()


def test_a_draft_of_another_width_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    config = json.loads((TARGET / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "hidden_size": 100}))
    done = serve(tmp_path, "B0,B3,B31", "--model-path", target, f"--speculative-draft-model-path={DRAFT}")
    assert done.returncode == 2 and "no whole number" in done.stderr and SERVED not in done.stdout


def test_a_wiring_that_works_and_folders_that_are_not_here_reach_the_server(tmp_path: Path) -> None:
    done = serve(tmp_path, f"B{LAYERS},embed,3")
    assert done.returncode == 0 and SERVED in done.stdout, done.stderr
    assert done.stderr == ""
    hub = serve(tmp_path, "B0,B3,B9999", "--model-path", "some-org/some-model", *EAGLE3)
    assert hub.returncode == 0 and SERVED in hub.stdout, hub.stderr
    assert (
        "could not be checked before the start, because the target 'some-org/some-model' is no folder here"
        in hub.stderr
    )
    assert "the plugin checks the wiring when the models are loaded" in hub.stderr


@pytest.mark.parametrize("config", [("--config", "c.yaml"), ("--config=c.yaml",)])
def test_a_config_file_is_said_to_be_unchecked(tmp_path: Path, config: tuple[str, ...]) -> None:
    """With the models in SGLang's --config, the early check was left out without a word."""
    done = serve(tmp_path, "B0,B3,B9999", *config)
    assert done.returncode == 0 and SERVED in done.stdout, done.stderr
    first, second = done.stderr.strip().splitlines()
    assert "because the target is named in 'c.yaml' and the draft is named in 'c.yaml'" in first
    assert "whether 'c.yaml' asks for EAGLE3" in second and "Traceback" not in done.stderr
    # what the command line says itself is checked all the same
    wrong = serve(tmp_path, "B0,B3,B9999", *config, *BOTH, *EAGLE3)
    assert wrong.returncode == 2 and "names B9999" in wrong.stderr and SERVED not in wrong.stdout


def test_an_unreadable_draft_config_is_said_to_be_unchecked(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text("{")
    done = serve(
        tmp_path,
        "B0,B3",
        "--model-path",
        TARGET,
        "--speculative-draft-model-path",
        draft,
        "--speculative-algo=eagle3",
    )
    assert done.returncode == 0 and SERVED in done.stdout, done.stderr
    assert "the draft cannot be read" in done.stderr and "no valid JSON" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "no effect without speculative decoding; add --speculative-algorithm EAGLE3"),
        (("--speculative-algorithm", "EAGLE"), "no effect under --speculative-algorithm EAGLE,"),
        (("--speculative-algorithm=NGRAM",), "no effect under --speculative-algorithm NGRAM,"),
        ((*EAGLE3, "--speculative-algo", "nextn"), "no effect under --speculative-algorithm nextn,"),
    ],
)
def test_a_wiring_without_eagle3_is_refused_before_any_server(
    tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    """SGLang started and the wiring did nothing."""
    done = serve(tmp_path, "B0,B3,B31", *BOTH, *more)
    assert done.returncode == 2 and words in done.stderr and SERVED not in done.stdout, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
