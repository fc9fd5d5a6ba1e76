"""``--hidden-size`` and ``--layer-ids`` that a file contradicts: one sentence and exit 2 from every command."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_command import run

ROOT = Path(__file__).resolve().parents[2]
KIMI, PAIR = ROOT / "traces/tiny-kimi", ROOT / "pairs/tiny-kimi"
DUMP = KIMI / "dump/data_0.pt"
COMMANDS = {
    "diff": ("diff", KIMI / "fixed.h5", DUMP),
    "diff of two traces": ("diff", KIMI / "fixed.h5", KIMI / "shifted.h5"),
    "inspect": ("inspect", DUMP),
    "inspect with a target": ("inspect", DUMP, "--target", PAIR / "target"),
    "check": ("check", "--target", PAIR / "target", "--draft", PAIR / "draft", "--dump", DUMP),
    "replay": ("replay", DUMP, "--target", PAIR / "target", "--draft", PAIR / "draft"),
    "convert": ("convert", DUMP, "--to", "specforge", "OUT"),
}


@pytest.mark.parametrize("option", [("--hidden-size", "48"), ("--layer-ids", "2,30")])
@pytest.mark.parametrize("name", COMMANDS)
def test_what_the_file_contradicts_is_refused(name: str, option: tuple[str, str], tmp_path: Path) -> None:
    arguments = [tmp_path / "out.pt" if one == "OUT" else one for one in COMMANDS[name]]
    done = run(*arguments, *option)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("drafttrace: ") and len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in (option[0], *(("48", "96 wide") if option[1] == "48" else ("2 layer ids", "3 slots"))):
        assert word in done.stderr or (word == "3 slots" and "3 or 4 slots" in done.stderr), done.stderr
    assert not list(tmp_path.iterdir())


def test_what_the_file_agrees_with_is_taken() -> None:
    done = run("diff", KIMI / "fixed.h5", DUMP, "--hidden-size", "96", "--layer-ids=-1,2,30,58", "-q")
    assert done.returncode == 0, done.stderr
