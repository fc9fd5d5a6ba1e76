"""A reference whose wiring nobody gave says which boundaries there are, and nothing about what training used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import drafttrace
from drafttrace.compare.result import FAULT
from drafttrace.tracer.assumed_wiring import GIVEN, WIRING, was_assumed
from drafttrace.tracer.dumps.safetensors_file import read_safetensors
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import make_reference

ROOT = Path(__file__).resolve().parents[2]
TARGET, DRAFT = ROOT / "pairs/tiny-kimi/target", ROOT / "pairs/tiny-kimi/draft"
TRACE = ROOT / "traces/tiny-kimi/fixed.h5"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """References of the trace's tokens, without a wiring and with the trained one."""
    folder = tmp_path_factory.mktemp("references")
    tokens = open_capture(str(TRACE)).tokens
    make_reference(TARGET, [tokens], folder / "unsaid.safetensors")
    make_reference(TARGET, [tokens], folder / "given.safetensors", slots=[0, 3, 31])
    return folder / "unsaid.safetensors", folder / "given.safetensors"


def healthy(folder: Path) -> Path:
    """The pair's draft, as check --fix puts its config right."""
    shutil.copytree(DRAFT, folder)
    text = (folder / "config.json").read_text()
    fixed = drafttrace.check(TARGET, DRAFT, trained=[0, 3, 31]).fix
    ids = fixed["eagle_config.eagle_aux_hidden_state_layer_ids"]
    config = json.loads(text) | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_check_takes_no_wiring_from_a_reference_that_was_given_none(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    """A healthy draft was accused of slot-shift, and the remedy broke it; a canonically miswired one was cleared."""
    unsaid, given = made
    result = drafttrace.check(TARGET, healthy(tmp_path / "draft"), dump=unsaid)
    assert result.wanted is None and not result.faults and not result.fix
    (said,) = [one for one in result.notes if "without --wiring" in one]
    assert "--trained" in said and "drafttrace reference --wiring" in said
    assert drafttrace.check(TARGET, tmp_path / "draft", dump=given).wanted == (0, 3, 31)


def test_check_clears_nothing_by_it_either(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(DRAFT, tmp_path / "draft")
    result = drafttrace.check(TARGET, tmp_path / "draft", dump=made[0])
    assert result.wanted is None and any("without --wiring" in one for one in result.notes)


def test_diff_accuses_no_server_by_it(made: tuple[Path, Path]) -> None:
    """ "its slot i holds what training had in slot i-1", 0.98, with ids that nobody trained."""
    unsaid, given = made
    result = drafttrace.diff(TRACE, unsaid)
    assert result.verdict == "incomparable" and not [f for f in result.findings if f.severity == FAULT]
    first = result.findings[0]
    assert first.id == "unsaid-wiring" and "is not known" in first.summary and "--wiring" in first.remedy
    assert first.summary == result.summary
    assert drafttrace.diff(TRACE, given).verdict == "match"


def test_replay_says_that_nobody_gave_the_wiring_of_the_file(made: tuple[Path, Path], tmp_path: Path) -> None:
    result = drafttrace.replay(made[0], draft=healthy(tmp_path / "draft"), target=TARGET, switches=False)
    (row,) = [row for row in result.wirings if row.wiring == "[B2, B30, B58]"]
    assert row.sources == ("file, where nobody gave --wiring",) and not result.faults


def test_old_files_that_do_not_say_count_as_given_none_where_their_slots_are_the_canonical_ones() -> None:
    old = {"written_by": "drafttrace 0.1.0 reference"}
    assert was_assumed(old, [2, 30, 58], 61) and not was_assumed(old, [0, 3, 31], 61)
    assert not was_assumed(old | {WIRING: GIVEN}, [2, 30, 58], 61)
    assert not was_assumed({"written_by": "drafttrace 0.1.0 convert"}, [2, 30, 58], 61)


def test_a_conversion_keeps_what_nobody_said(made: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "again.safetensors"
    command = [
        sys.executable,
        "-m",
        "drafttrace.tracer.cli",
        "convert",
        str(made[0]),
        str(out),
        "--to",
        "safetensors",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert read_safetensors(out).metadata[WIRING] != GIVEN and open_capture(str(out)).assumed_wiring
