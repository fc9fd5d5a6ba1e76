"""A file of no known layout, with its fields named: the same options in every command that reads a dump."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]
FIXED, DUMP = ROOT / "traces/tiny-kimi/fixed.h5", ROOT / "traces/tiny-kimi/dump/data_0.pt"
PAIR = ROOT / "pairs/tiny-kimi"
FIELDS = ["--slots", "run/a,run/b,run/c", "--tokens", "ids"]


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drafttrace.tracer.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def answer(*arguments: Any) -> Any:
    done = run(*arguments, "--json", "-")
    assert done.returncode in {0, 1}, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def known() -> Capture:
    return open_capture(str(DUMP))


@pytest.fixture(scope="module")
def mine(known: Capture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of the pair with names that no project uses, in chunks."""
    path = tmp_path_factory.mktemp("mine") / "mine.h5"
    assert known.last is not None
    assert known.mask is not None
    with h5py.File(path, "w") as file:
        for name, slot in zip("abc", known.slots, strict=True):
            file.create_dataset(f"run/{name}", data=slot.rows.floats(), chunks=True, compression="gzip")
        file.create_dataset("final", data=known.last.rows.floats(), chunks=True)
        file["ids"], file["weights"] = known.tokens, known.mask
    return path


@pytest.fixture(scope="module")
def everything(known: Capture) -> list[str]:
    """All that can be said of the file."""
    wiring = ",".join(f"B{k}" for k in known.wiring)
    return [*FIELDS, "--last", "final", "--last-norm", "pre", "--mask", "weights", "--boundaries", wiring]


def test_inspect_shows_what_was_said(mine: Path, known: Capture, everything: list[str]) -> None:
    found = answer("inspect", mine, *everything)
    assert [s["boundary"] for s in found["states"][:3]] == [f"B{k}" for k in known.wiring]
    assert found["states"][3]["norm"] == "pre"
    assert known.mask is not None
    assert found["mask_ones"] == int(known.mask.sum())
    plain = answer("inspect", mine, *FIELDS)
    assert [s["boundary"] for s in plain["states"]] == [None] * 3
    assert plain["mask_ones"] is None


def test_convert_writes_what_was_said(mine: Path, known: Capture, everything: list[str], tmp_path: Path) -> None:
    done = run("convert", mine, tmp_path / "v1", "--to", "speculators-v1", "--target", PAIR / "target", *everything)
    assert done.returncode == 0, done.stderr
    again = open_capture(str(tmp_path / "v1"))
    assert again.wiring == known.wiring
    assert again.tokens.tolist() == known.tokens.tolist()
    assert again.mask is not None
    assert known.mask is not None
    assert again.mask.tolist() == known.mask.tolist()
    for one, two in zip(known.slots, again.slots, strict=True):
        assert np.array_equal(one.rows.floats(), two.rows.floats())
    refused = run("convert", mine, tmp_path / "x.safetensors", "--to", "safetensors", *FIELDS)
    assert refused.returncode == 2
    assert "--lose other-fields" in refused.stderr  # the last state and the mask, which nobody named here
    lost = ("--lose", "other-fields")
    refused = run("convert", mine, tmp_path / "x.safetensors", "--to", "safetensors", *FIELDS, *lost)
    assert refused.returncode == 2
    assert "--boundaries" in refused.stderr


def test_diff_and_replay_and_check_read_it_as_the_dump_that_it_is(mine: Path, everything: list[str]) -> None:
    # Without the last state: this dump's is B59, and no option says so of a named field.
    slots = [*FIELDS, *everything[everything.index("--boundaries") :]]
    named, known = answer("diff", FIXED, mine, *slots), answer("diff", FIXED, DUMP)
    assert named["verdict"] == known["verdict"] == "match"
    assert named["reference"]["wiring"] == known["reference"]["wiring"]
    pair = ["--draft", PAIR / "draft", "--target", PAIR / "target"]
    named, known = (answer("replay", *source, *pair) for source in ((mine, *everything), (DUMP,)))
    assert named["reference"] == known["reference"]
    assert named["wirings"][0]["wiring"] == known["wirings"][0]["wiring"]
    assert named["wirings"][0]["score"] is not None
    named, known = (answer("check", "--dump", *source, *pair) for source in ((mine, *everything), (DUMP,)))
    assert named["exit_code"] == known["exit_code"]
    # That the last state is B59 only the known layout's file says.
    told = [f["id"] for f in known["findings"] if f["id"] != "last-not-last"]
    assert [f["id"] for f in named["findings"]] == told and "slot-shift" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slots", "run/a"], "needs both --slots and --tokens"),
        (["--boundaries", "B2"], "--boundaries says more of a file of no known layout"),
        ([*FIELDS, "--last-norm", "pre"], "--last-norm pre says something of a last state that is not named"),
        ([*FIELDS, "--last", "final", "--last-norm", "rms"], "'rms'"),
        ([*FIELDS, "--boundaries", "B2,B3"], "2 boundaries are given for the 3 slots"),
        ([*FIELDS, "--boundaries", "layer two"], "layer two"),
        (["--slots", "run/a,run/zz", "--tokens", "ids"], "no field 'run/zz'"),
        ([*FIELDS, "--mask", "nothing"], "no field 'nothing'"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_what_does_not_fit_together_is_one_sentence(
    command: str, options: list[str], words: str, mine: Path, tmp_path: Path
) -> None:
    more = [tmp_path / "out.h5", "--to", "trace"] if command == "convert" else []
    done = run(command, mine, *more, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def fused(known: Capture, path: Path) -> Path:
    """The slots of the dump side by side, in a layout that does not say how wide one is."""
    states = np.concatenate([slot.rows.floats() for slot in known.slots], -1)[None]
    torch.save({"input_ids": torch.from_numpy(known.tokens), "hidden_states": torch.from_numpy(states)}, path)
    return path


def test_a_file_that_is_looked_at_alone_is_read_as_it_is_said_to_be(
    known: Capture, mine: Path, everything: list[str], tmp_path: Path
) -> None:
    """``diff`` without a REFERENCE ignored every option that says something of a file."""
    width = known.slots[0].rows.width
    lone = fused(known, tmp_path / "data_0.ckpt")
    asked = run("diff", lone)
    assert asked.returncode == 2 and "--hidden-size" in asked.stderr
    # A dump alone has nothing that it could be compared with: only what was read of it is told.
    told = run("diff", lone, "--hidden-size", width, "--layer-ids", "0,1,2", "--json", "-")
    left = json.loads(told.stdout)["left"]
    assert left["hidden_size"] == width and len(left["slots"]) == len(known.slots)
    assert left["wiring"] == ["B1", "B2", "B3"]
    left = json.loads(run("diff", mine, *everything, "--json", "-").stdout)["left"]
    assert left["wiring"] == [f"B{k}" for k in known.wiring]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hidden-size", "48"], "--hidden-size is 48"),
        (["--layer-ids", "1,2,3,4,5"], "5 layer ids are given"),
        (["--slots", "x,y", "--tokens", "tokens/ids"], "no field 'x'"),
        (["--format", "SF-EAGLE3"], "there is no REFERENCE"),
    ],
)
def test_what_does_not_fit_a_file_that_is_looked_at_alone_is_refused(options: list[str], words: str) -> None:
    done = run("diff", FIXED, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_hidden_size_cuts_both_sides_of_a_comparison(known: Capture, tmp_path: Path) -> None:
    """LEFT could not be read at all where it does not say how wide a slot is."""
    width = known.slots[0].rows.width
    lone = fused(known, tmp_path / "data_0.ckpt")
    found = answer("diff", lone, DUMP, "--hidden-size", width)
    assert found["verdict"] == "match"
    assert found["left"]["hidden_size"] == found["reference"]["hidden_size"] == width
