"""``drafttrace replay``: what a file does not say of itself can be said on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "pairs/tiny-llama"


def replay(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "replay", *map(str, arguments)]
    return subprocess.run(
        [*command, "--draft", PAIR / "draft", "--target", PAIR / "target"],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_slots_of_a_dump_without_layer_ids_can_be_named() -> None:
    done = replay(PAIR / "dump/hidden_states/hs_0.safetensors", "--slots-are", "B2,B8,B13", "--json", "-")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["wirings"]
    served = next(row for row in rows if any(source.startswith("server") for source in row["sources"]))
    assert served["wiring"] == "[B2, B8, B13]" and served["score"] is not None


def test_a_file_of_no_known_layout_is_replayed_by_its_fields(tmp_path: Path) -> None:
    known = open_capture(str(PAIR / "dump/hidden_states/hs_0.safetensors"))
    fields = {f"state_{k}": slot.rows.floats() for k, slot in enumerate(known.slots)}
    save_file({**fields, "ids": np.asarray(known.tokens)}, tmp_path / "mine.safetensors")
    names = ("--slots", "state_0,state_1,state_2", "--tokens", "ids", "--slots-are", "B2,B8,B13")
    done = replay(tmp_path / "mine.safetensors", *names, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reference"] == "[B2, B8, B13]"


def test_slots_that_are_too_few_are_refused() -> None:
    done = replay(PAIR / "dump/hidden_states/hs_0.safetensors", "--slots-are", "B2,B8")
    assert done.returncode == 2 and "3 slots" in done.stderr and "Traceback" not in done.stderr


def test_a_folder_of_samples_says_how_to_take_one_or_all() -> None:
    """It told of --sample, which replay does not have."""
    done = replay(PAIR / "dump")
    assert (
        done.returncode == 2 and "--all" in done.stderr and "#0'" in done.stderr and "--sample" not in done.stderr
    )
    assert replay(f"{PAIR / 'dump'}#1", "--steps", "1", "--no-switches").returncode == 0
