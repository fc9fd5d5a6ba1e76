"""The options of ``diff`` and ``report``, on the traces of the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edited_traces import edited

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"
FIXED, DUMP = KIMI / "fixed.h5", KIMI / "dump/data_0.pt"
LLAMA = ROOT / "traces/tiny-llama/healthy.h5"
TARGET = ROOT / "pairs/tiny-kimi/target"


def run(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "NO_COLOR": "1", **environment},
    )


def result_of(*arguments: Any) -> dict[str, Any]:
    done = run("diff", *arguments, "--json", "-")
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ids(result: dict[str, Any], severity: str = "fault") -> list[str]:
    return [f["id"] for f in result["findings"] if f["severity"] == severity]


@pytest.mark.parametrize("trace", [*sorted(p.name for p in KIMI.glob("*.h5")), "../tiny-llama/healthy.h5"])
def test_one_trace_by_itself_agrees_with_itself(trace: str) -> None:
    result = result_of(KIMI / trace)
    assert result["verdict"] == "match" and not ids(result)
    assert "fc received the target's states bit for bit" in result["summary"]


def test_an_expected_accept_length_is_shown_beside_the_observed_one(tmp_path: Path) -> None:
    assert "expected 2.36" in result_of(FIXED, DUMP, "--expected", "0.8,0.7")["summary"]
    # One accuracy holds for every step of the server.
    steps = result_of(FIXED, DUMP)["configs"]["server_args"]["speculative_num_steps"]
    alone = result_of(FIXED, DUMP, "--expected", "0.5")["acceptance"]
    assert alone["expected"] == pytest.approx(sum(0.5**k for k in range(steps + 1)))
    replay = tmp_path / "replay.json"
    replay.write_text(json.dumps({"wirings": [{"score": None}, {"score": {"expected": 6.0}}]}))
    low = result_of(FIXED, DUMP, "--expected", replay, "--threshold", "accept_part=1.2")
    assert ids(low) == ["downstream"] and low["exit_code"] == 1
    assert "6.00 where 6.00 is expected (too low below 7.00)" in low["summary"]
    beyond = tmp_path / "beyond.json"
    beyond.write_text(json.dumps({"wirings": [{"score": {"expected": 40.0}}]}))
    replay.write_text("[]")
    for wrong in ("much", "0.5,1.5", "-1", "0", "6.5", str(replay), str(tmp_path / "none.json"), str(beyond)):
        done = run("diff", FIXED, DUMP, "--expected", wrong)
        assert done.returncode == 2 and "Traceback" not in done.stderr and wrong in done.stderr


def test_rows_of_another_request_are_found_among_its_traces(tmp_path: Path) -> None:
    trace, other = tmp_path / "trace.h5", tmp_path / "traces" / "other.h5"
    other.parent.mkdir()
    trace.write_bytes((KIMI / "fixed.h5").read_bytes())
    other.write_bytes((KIMI / "fixed.h5").read_bytes())
    with edited(other) as file:  # another text with other rows
        file["tokens/ids"][...] = np.roll(file["tokens/ids"][...], 7)
        rows = file["target/rows"][...]
        rows["token_id"] = np.roll(rows["token_id"], 7)
        file["target/rows"][...] = rows
        for slot in range(3):
            file[f"target/aux/{slot}"][...] = file[f"target/aux/{slot}"][...][::-1] * 1.5
        file["target/last"][...] = file["target/last"][...][::-1] * 1.5
        row = file["target/aux/1"][10]
    assert not ids(result_of(trace, DUMP, "--others", other))
    with edited(trace) as file:
        file["target/aux/1"][20] = row
        position, width = file["target/rows"][20]["position"], len(row)
        for i in np.flatnonzero(file["draft/rows"]["position"] == position):  # the draft consumed what it was given
            file["draft/fc_in"][i, width : 2 * width] = row
    for place in (other, other.parent):
        found = result_of(trace, DUMP, "--others", place)
        assert ids(found) == ["cross-request"], [(f["id"], f["summary"]) for f in found["findings"]]
        assert found["findings"][0]["evidence"]["rows"][0]["trace"].endswith("other.h5")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run("diff", trace, DUMP, "--others", empty)
    assert done.returncode == 2 and "holds no traces" in done.stderr


def test_a_moved_mask_is_named_with_the_tokens_at_it(tmp_path: Path) -> None:
    import torch

    dump = torch.load(DUMP, weights_only=True)
    dump["loss_mask"] = torch.roll(dump["loss_mask"], -1)
    torch.save(dump, tmp_path / "data_0.pt")
    (tmp_path / "data_config.json").write_text((KIMI / "dump/data_config.json").read_text())
    found = result_of(FIXED, tmp_path / "data_0.pt", "--tokenizer", TARGET)
    assert ids(found) == ["mask-shift"] and "“<|assistant|>”" in found["summary"]


def test_a_picture_is_written_on_request_and_from_a_saved_result(tmp_path: Path) -> None:
    saved, first, second = tmp_path / "r.json", tmp_path / "a.png", tmp_path / "b.png"
    assert run("diff", FIXED, DUMP, "--png", first, "--json", saved, "-q").returncode == 0
    assert run("report", saved, "--png", second, "-q").returncode == 0
    for picture in (first, second):
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 50_000


PICTURES = {"png": b"\x89PNG", "pdf": b"%PDF-", "svg": b"<?xml"}


@pytest.mark.parametrize("form", PICTURES)
def test_the_ending_of_a_picture_says_its_form(form: str, tmp_path: Path) -> None:
    """A picture named .pdf was a PNG."""
    saved, picture = tmp_path / "r.json", tmp_path / f"Plots.{form.upper()}"
    run("diff", FIXED, DUMP, "--json", saved, "-q")
    assert run("report", saved, "--png", picture, "-q").returncode == 0
    data = picture.read_bytes()
    assert data.startswith(PICTURES[form]) and (form == "png" or b"<svg" in data or b"%%EOF" in data[-16:])
    assert run("report", saved, "--png", picture, "-q").returncode == 0  # its own picture is replaced


@pytest.mark.parametrize("name", ["plots.jpg", "plots", "plots.pdf.gz"])
def test_a_picture_of_no_known_form_is_refused_by_name(name: str, tmp_path: Path) -> None:
    done = run("diff", FIXED, DUMP, "--png", tmp_path / name, "--json", tmp_path / "r.json", "-q")
    assert done.returncode == 2 and f"{name}' " in done.stderr and ".png, .pdf or .svg" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())  # told before anything was compared


@pytest.mark.parametrize("form", PICTURES)
def test_a_picture_of_somebody_elses_is_not_replaced(form: str, tmp_path: Path) -> None:
    """``--png photo.png`` replaced any PNG, whoever had made it."""
    from matplotlib.figure import Figure

    saved, picture = tmp_path / "r.json", tmp_path / f"mine.{form}"
    Figure().savefig(picture)
    mine = picture.read_bytes()
    run("diff", FIXED, DUMP, "--json", saved, "-q")
    done = run("report", saved, "--png", picture, "-q")
    assert done.returncode == 2 and "give another name" in done.stderr, done.stderr
    assert picture.read_bytes() == mine


def test_without_matplotlib_a_picture_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib/__init__.py").write_text("raise ImportError('not here')")
    done = run("diff", FIXED, DUMP, "--png", tmp_path / "a.png", "-q", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and "pip install" in done.stderr and "matplotlib" in done.stderr
    assert not (tmp_path / "a.png").exists()


def test_thresholds_that_need_the_tensors_are_refused_with_the_command(tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    run("diff", FIXED, DUMP, "--json", saved, "-q")
    done = run("report", saved, "--threshold", "located=0.3")
    assert done.returncode == 2 and "--threshold located=0.3" in done.stderr
    again = run("report", saved, "--threshold", "accept=7", "--json", "-")
    assert again.returncode == 1 and ids(json.loads(again.stdout)) == ["downstream"]


def test_a_rank_s_trace_of_another_recording_is_refused() -> None:
    done = run("diff", FIXED, DUMP, "--rank-trace", LLAMA)
    assert done.returncode == 2 and "no two ranks of one request" in done.stderr


def test_the_target_says_how_wide_a_slot_is(tmp_path: Path) -> None:
    """'give --target DIR or --hidden-size H', and diff had no --target."""
    sample = {
        "input_ids": torch.arange(6),
        "loss_mask": torch.ones(6).long(),
        "hidden_states": torch.randn(1, 6, 3 * 96),
    }
    torch.save(sample, tmp_path / "data_0.ckpt")
    torch.save(sample | {"loss_mask": torch.zeros(6).long()}, tmp_path / "data_1.ckpt")
    command = ("diff", tmp_path / "data_0.ckpt", tmp_path / "data_1.ckpt")
    told = run(*command)
    assert told.returncode == 2 and "give --target DIR or --hidden-size H" in told.stderr
    done = run(*command, "--target", ROOT / "pairs/tiny-kimi/target", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["slots"]) == 3
