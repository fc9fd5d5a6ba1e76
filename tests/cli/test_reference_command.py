"""``drafttrace reference``: where its tokens come from, what it declares, and what it keeps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafttrace.tracer.dumps.safetensors_file import read_safetensors
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "pairs/tiny-llama"
KIMI = ROOT / "pairs/tiny-kimi"
TRACE = ROOT / "traces/tiny-kimi/fixed.h5"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "reference", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def slots(path: Path) -> list[int]:
    found: list[int] = json.loads(read_safetensors(path).metadata["slots"])
    return found


def test_every_sample_of_a_dump_has_its_reference(tmp_path: Path) -> None:
    """It took one ``--from F#i`` per sample."""
    small = tmp_path / "dump"
    small.mkdir()
    for name in ("data_1.pt", "data_4.pt"):
        shutil.copy(KIMI / "dump" / name, small)
    out = tmp_path / "out"
    arguments = (
        "--from",
        small,
        "--target",
        KIMI / "target",
        "--boundaries",
        "canonical",
        "--batch-size",
        "2",
        "-o",
        out,
    )
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert [Path(line).name for line in done.stdout.splitlines()] == ["hs_1.safetensors", "hs_4.safetensors"]
    for number in (1, 4):
        made, given = open_capture(f"{out}#{number}"), open_capture(f"{small}#{number}")
        assert made.tokens.tolist() == given.tokens.tolist()
        assert made.mask is not None and given.mask is not None  # it was dropped
        assert (made.mask.tolist(), made.mask_offset) == (given.mask.tolist(), given.mask_offset)
        assert made.wiring == (2, 30, 58)
    first = (out / "hs_1.safetensors").stat().st_ino
    (out / "hs_4.safetensors").unlink()
    assert run(*arguments).returncode == 0
    assert (out / "hs_1.safetensors").stat().st_ino == first and (out / "hs_4.safetensors").exists()


@pytest.mark.parametrize("how", [("#4",), ("", "--sample", "4")])
def test_one_sample_of_a_dump_goes_into_one_file(how: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "r.safetensors"
    source, *more = how
    arguments = ("--from", f"{KIMI / 'dump'}{source}", *more, "--target", KIMI / "target", "-o", out)
    done = run(*arguments, "--boundaries", "canonical")
    assert done.returncode == 0, done.stderr
    assert open_capture(str(out)).tokens.tolist() == open_capture(f"{KIMI / 'dump'}#4").tokens.tolist()


def test_a_file_of_no_known_layout_gives_its_tokens(tmp_path: Path) -> None:
    """The error asked for --slots and --tokens, which the command did not have."""
    ids = torch.arange(3, 20)
    torch.save({"my_ids": ids, "a": torch.zeros(17, 96), "b": torch.zeros(17, 96)}, tmp_path / "mine.pt")
    out = tmp_path / "r.safetensors"
    arguments = (
        "--from",
        tmp_path / "mine.pt",
        "--target",
        KIMI / "target",
        "--boundaries",
        "canonical",
        "-o",
        out,
    )
    refused = run(*arguments)
    assert refused.returncode == 2 and "--slots and --tokens" in refused.stderr
    done = run(*arguments, "--slots", "a,b", "--tokens", "my_ids")
    assert done.returncode == 0, done.stderr
    assert open_capture(str(out)).tokens.tolist() == ids.tolist()


def test_the_slots_are_the_canonical_ones_and_boundaries_only_add(tmp_path: Path) -> None:
    """``--boundaries B0,B3,B31,B59`` declared four slots. The served wiring is not taken over: it would always match."""
    arguments = ("--from", TRACE, "--target", KIMI / "target", "--boundaries", "B59")
    done = run(*arguments, "-o", tmp_path / "a.safetensors")
    assert done.returncode == 0 and slots(tmp_path / "a.safetensors") == [2, 30, 58]
    assert json.loads(read_safetensors(tmp_path / "a.safetensors").metadata["boundaries"]) == [59, 2, 30, 58, 61]
    done = run(*arguments, "--wiring", "B0,B3,B31", "-o", tmp_path / "b.safetensors")
    assert done.returncode == 0 and slots(tmp_path / "b.safetensors") == [0, 3, 31]
    assert done.stderr == ""


def test_a_wiring_of_twice_the_same_boundary_is_refused(tmp_path: Path) -> None:
    done = run(
        "--from", TRACE, "--target", KIMI / "target", "--wiring", "B2,B2,B5", "-o", tmp_path / "a.safetensors"
    )
    assert done.returncode == 2 and "names B2 twice" in done.stderr and not (tmp_path / "a.safetensors").exists()


def test_force_makes_the_reference_of_the_target_that_is_named(tmp_path: Path) -> None:
    """Another model in another folder of the same name: rc 0, and the old model's file kept."""
    out = tmp_path / "o.safetensors"
    arguments = ("--from", f"{LLAMA / 'dump'}#0", "-o", out, "--target")
    assert run(*arguments, LLAMA / "target").returncode == 0
    before = read_safetensors(out).tensors["hidden_states"].read().copy()
    shutil.copytree(LLAMA / "target", tmp_path / "other/target")
    path = tmp_path / "other/target/model.safetensors"
    weights = load_file(path)
    weights[next(name for name in sorted(weights) if name.endswith("mlp.down_proj.weight"))].neg_()
    save_file(weights, path, {"format": "pt"})
    refused = run(*arguments, tmp_path / "other/target")
    assert refused.returncode == 2 and "other weights of the target" in refused.stderr
    assert run(*arguments, tmp_path / "other/target", "--force").returncode == 0
    assert not (read_safetensors(out).tensors["hidden_states"].read() == before).all()
