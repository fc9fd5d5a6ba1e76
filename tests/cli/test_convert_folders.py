"""``drafttrace convert`` of a whole dump, as people run it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from run_command import run

LAYERS, H = 8, 16


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Four samples of speculators v1."""
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [1, 3, 4, LAYERS - 1]}}))
    for i in range(4):
        made = torch.Generator().manual_seed(i)
        states = [torch.randn(12 + i, H, generator=made).bfloat16() for _ in range(4)]
        ids = torch.randint(0, 250, (12 + i,), generator=made)
        mask = (torch.arange(12 + i) > 2).long()
        torch.save({"input_ids": ids, "loss_mask": mask, "hidden_states": states}, folder / f"data_{i}.pt")
    return folder


def says(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit 2 and one sentence on stderr that holds all the words."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("drafttrace: ") and len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)


@pytest.mark.parametrize("to", ["safetensors", "speculators-v1", "trace"])
def test_every_sample_is_read_and_compared_under_its_number(to: str, dump: Path, tmp_path: Path) -> None:
    lose = ["--lose", "loss-mask", "--lose", "layer-ids"] if to == "trace" else []
    done = run("convert", dump, tmp_path / "out", "--to", to, *lose)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    told = ["left out: the loss mask (4 samples)", "left out: that the last state is B8 (4 samples)"]
    assert done.stdout.splitlines() == [f"{tmp_path / 'out'}: 4 samples", *(told if lose else [])]
    for i in (0, 3):
        inspected = run("inspect", f"{tmp_path / 'out'}#{i}", "--json", "-")
        assert inspected.returncode == 0, inspected.stderr
        assert json.loads(inspected.stdout)["tokens"] == 12 + i
    if to == "trace":
        compared = run("diff", f"{tmp_path / 'out'}#2", f"{dump}#2", "--json", "-")
        assert compared.returncode == 0, (compared.stdout, compared.stderr)
        assert json.loads(compared.stdout)["verdict"] == "match"


def test_names_of_files_and_files_are_refused_in_one_sentence(dump: Path, tmp_path: Path) -> None:
    named = run("convert", f"{dump}#0", tmp_path / "out/data_0.pt", "--to", "speculators-v1")
    says(named, "named like a file", "data_0.pt with data_config.json", f"such as '{tmp_path / 'out'}'")
    says(run("convert", dump, tmp_path / "x.h5", "--to", "trace"), "the 4 samples", f"'{dump}#0'")
    (tmp_path / "notes").write_text("mine")
    taken = run("convert", f"{dump}#0", tmp_path / "notes", "--to", "speculators-v1", "--force")
    says(taken, "is a file, and the layout speculators-v1 is a folder")
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_bad_sample_is_named_in_one_sentence_and_the_same_command_goes_on(dump: Path, tmp_path: Path) -> None:
    whole = (dump / "data_2.pt").read_bytes()
    (dump / "data_2.pt").write_bytes(whole[:-100])
    command = ("convert", dump, tmp_path / "out", "--to", "safetensors")
    says(run(*command), "Sample #2 of", "after 2 of 4 samples, which are kept")
    assert not (tmp_path / "out").exists()
    (dump / "data_2.pt").write_bytes(whole)
    assert run(*command, "-q").stdout == ""
    assert len(list((tmp_path / "out").glob("hs_*.safetensors"))) == 4


def test_a_terminal_shows_a_bar_and_a_pipe_does_not(dump: Path, tmp_path: Path) -> None:
    main, side = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "drafttrace.tracer.cli",
        "convert",
        dump,
        tmp_path / "out",
        "--to",
        "safetensors",
    ]
    with subprocess.Popen(
        command, stderr=side, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(side)
        shown = b""
        while True:
            try:
                part = os.read(main, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(main)
    assert process.returncode == 0
    assert b"samples" in shown and b"4/4" in shown, shown


def test_what_can_be_given_up_is_the_same_everywhere() -> None:
    from drafttrace.tracer.commands.convert import Layout, Loss
    from drafttrace.tracer.convert import LOSSES
    from drafttrace.tracer.convert_layouts import OUT_LAYOUTS

    assert tuple(Loss) == LOSSES
    assert [layout.value for layout in Layout] == list(OUT_LAYOUTS)
