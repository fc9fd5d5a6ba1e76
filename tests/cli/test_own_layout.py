"""A dump of the user's own layout: every command that reads one has the options that its error names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from run_command import run

from drafttrace.tracer.cli import app
from drafttrace.tracer.plain_options import command_of

KIMI = Path(__file__).resolve().parents[2] / "traces/tiny-kimi"
TRACE = KIMI / "as-trained.h5"
NAMED = ("--slots", "aux_a,aux_b,aux_c", "--tokens", "ids")
DEAD = ("--url", "http://127.0.0.1:9")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """The dump of tiny-kimi, as somebody's own script might have saved it."""
    sample = torch.load(KIMI / "dump/data_0.pt")
    names = ("aux_a", "aux_b", "aux_c")
    own = {"ids": sample["input_ids"], **dict(zip(names, sample["hidden_states"], strict=False))}
    torch.save(own, tmp_path / "my_dump.pt")
    return tmp_path / "my_dump.pt"


def commands(dump: Path) -> dict[str, tuple[str | Path, ...]]:
    return {
        "record": ("--from-dump", dump, "-o", dump.with_name("t.h5"), *DEAD),
        "watch": ("--from-dump", dump, "--count", "1", "--dir", dump.with_name("canary"), *DEAD),
        "audit": (dump, "--against", TRACE, "-o", dump.with_name("a.sqlite"), "--workers", "1"),
        "inspect": (dump,),
        "diff": (TRACE, dump),
        "view": (TRACE, dump, "-o", dump.with_name("r.html")),
        "convert": (dump, dump.with_name("c.h5"), "--to", "trace"),
        "reference": ("--from", dump, "--target", dump.parent, "-o", dump.with_name("r.safetensors")),
        "replay": (dump, "--draft", dump.parent, "--target", dump.parent),
    }


def test_no_command_names_a_remedy_that_it_does_not_have(dump: Path) -> None:
    """record, watch, audit and view named --slots and --tokens, and answered `No such option`."""
    options = {
        name: {text for option in command.params for text in option.opts}
        for name, command in command_of(app).commands.items()
    }
    for name, arguments in commands(dump).items():
        done = run(name, *arguments)
        assert done.returncode == 2 and "no dump format that drafttrace knows" in done.stderr, (name, done.stderr)
        known = options["diff"] if name == "view" else options[name]
        assert {*re.findall(r"--[\w-]+", done.stderr)} <= known, (name, done.stderr)


@pytest.mark.parametrize("name", ["record", "watch"])
def test_the_prompt_of_an_own_layout_reaches_the_server(name: str, dump: Path) -> None:
    done = run(name, *commands(dump)[name], *NAMED)
    assert "No answer from http://127.0.0.1:9" in done.stderr, done.stderr
    done = run(name, *DEAD, "--prompt", "x", *NAMED)
    assert done.returncode == 2 and "--from-dump" in done.stderr


def test_an_own_layout_is_audited(dump: Path) -> None:
    """Also as a folder of samples, whose tokens tell which of them a trace belongs to."""
    first = run("audit", *commands(dump)["audit"], *NAMED, "--boundaries", "B0,B3,B31", "--json", "-")
    assert first.returncode == 1 and "slot-shift" in first.stdout, (first.stdout, first.stderr)
    folder = dump.parent / "own"
    folder.mkdir()
    own = torch.load(dump)
    for number in range(9):  # so many that the index of tokens is kept
        torch.save(
            {**own, "ids": own["ids"] if number == 4 else own["ids"].flip(0) + number}, folder / f"s_{number}.pt"
        )
    cache = {"XDG_CACHE_HOME": str(dump.parent)}
    arguments = (
        folder,
        "--against",
        TRACE,
        "-o",
        dump.with_name("f.sqlite"),
        "--workers",
        "1",
        *NAMED,
        "--json",
        "-",
    )
    many = run("audit", *arguments, "--boundaries", "B0,B3,B31", env=cache)
    assert many.returncode == 1 and json.loads(many.stdout)["samples"] == 9, (many.stdout, many.stderr)
    assert "slot-shift" in many.stdout
