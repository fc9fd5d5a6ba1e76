"""``drafttrace convert --json``: what was read, written and left out, for programs; notes for people on standard error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from run_command import run

ROOT = Path(__file__).resolve().parents[2]
NOTE = "data_config.json uses layer id -1 for the embedding output B0, an extension of speculators v1"
DUMP = ROOT / "traces/tiny-kimi/dump/data_0.pt"
TRACES = ROOT / "traces/tiny-kimi"


def test_the_machine_form_says_what_was_read_and_written(tmp_path: Path) -> None:
    """There was none: a script had to read the sentences."""
    out = tmp_path / "out.safetensors"
    done = run("convert", DUMP, out, "--to", "safetensors", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["schema"] == "drafttrace.conversion/1"
    assert (told["source"]["path"], told["source"]["format"]) == (str(DUMP), "SPEC-V1")
    assert told["source"]["recognised_by"]
    assert (told["layout"], told["paths"], told["samples"]) == ("safetensors", [str(out)], 1)
    assert told["notes"] == [NOTE] and all(isinstance(what, str) for what in told["left_out"])
    report = tmp_path / "r.json"
    again = [run("convert", DUMP, out, "--to", "safetensors", "--force", "--json", report) for _ in range(2)]
    assert [one.returncode for one in again] == [0, 0] and again[0].stdout.startswith(f"{out}\n")
    assert json.loads(report.read_text()) == told


def test_the_place_of_the_machine_form_is_looked_at_first(tmp_path: Path) -> None:
    """The dump was converted, and then the report had no folder."""
    done = run(
        "convert", DUMP, tmp_path / "out.safetensors", "--to", "safetensors", "--json", tmp_path / "no/x.json"
    )
    assert done.returncode == 2 and "does not exist; make it first" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_machine_form_of_several_samples(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(ROOT / "pairs/tiny-kimi/dump", folder)
    shutil.copy(TRACES / "fixed.h5", folder)
    done = run("convert", folder, tmp_path / "out", "--to", "safetensors", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["paths"], told["samples"]) == ([str(tmp_path / "out")], 8)
    assert told["source"]["path"] == str(folder)
    assert told["notes"] == ["1 file of the folder left out, of another format than SPEC-V1: 'fixed.h5'", NOTE]


def test_what_was_left_out_of_a_folder_is_said_to_people_on_standard_error(tmp_path: Path) -> None:
    """``convert`` left the traces of a folder out and printed the name of its output alone."""
    out = tmp_path / "out.safetensors"
    done = run("convert", TRACES, out, "--to", "safetensors")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(out)
    names = "'as-trained.h5', 'fixed.h5', 'shifted.h5'"
    said = f"3 files of the folder left out, of another format than SPEC-V1: {names}"
    assert done.stderr == f"drafttrace: note: {said}\ndrafttrace: note: {NOTE}\n"
    quiet = run("convert", TRACES, out, "--to", "safetensors", "--force", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_the_json_is_not_the_conversion_itself(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    done = run("convert", DUMP, out, "--to", "safetensors", "--json", out)
    assert done.returncode == 2 and "Two outputs are the same file" in done.stderr and not out.exists()


@pytest.mark.parametrize("json_out", [(), ("--json", "-")])
def test_a_failed_conversion_prints_no_json(json_out: tuple[str, ...], tmp_path: Path) -> None:
    done = run("convert", tmp_path / "none", tmp_path / "out", "--to", "trace", *json_out)
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.strip().splitlines()) == 1
