"""Options that go round typer's own conversion come out as that would make them, and pydantic is not imported for them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer.main

from drafttrace.tracer.cli import build
from drafttrace.tracer.plain_options import command_of

LINES = [
    ("inspect", ["data_0.pt"]),
    ("inspect", ["a.h5", "--sample", "3", "--hidden-size", "64", "--slots", "a,b", "--json", "-", "-q"]),
    ("inspect", ["a.h5", "--target", "somewhere"]),
    ("diff", ["a.h5", "b.pt", "--threshold", "match=0.1", "--threshold", "noise=0.2", "--noise", "c.h5", "d.h5"]),
    ("diff", ["a.h5", "--md", "report.md", "--others", "x", "--others", "y"]),
    ("report", ["result.json", "--html", "page.html"]),
    ("record", ["--prompt", "7", "-o", "t.h5", "--max-new-tokens", "5", "--temperature", "0.5"]),
]


def parsed(command: Any, name: str, words: list[str]) -> dict[str, Any]:
    one = command.commands[name]
    return dict(one.make_context(name, list(words)).params)


@pytest.mark.parametrize(
    ("name", "words"), LINES, ids=lambda value: " ".join(value) if isinstance(value, list) else value
)
def test_values_are_what_typer_makes_of_them(name: str, words: list[str]) -> None:
    usual, quick = (make(build([name])) for make in (typer.main.get_command, command_of))
    known = parsed(usual, name, words)
    found = parsed(quick, name, words)
    assert found == known
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in known.items()}


@pytest.mark.parametrize("words", [["a.h5", "--sample", "x"], ["a.h5", "--hidden-size", "0"], []])
def test_mistakes_are_still_found(words: list[str]) -> None:
    messages = []
    for make in (typer.main.get_command, command_of):
        with pytest.raises(Exception) as caught:
            parsed(make(build(["inspect"])), "inspect", words)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


def test_text_and_nothing_need_no_pydantic() -> None:
    code = (
        "import sys\n"
        "from drafttrace.tracer.cli import build\n"
        "from drafttrace.tracer.plain_options import command_of\n"
        "command = command_of(build(['inspect']))\n"
        "command.commands['inspect'].make_context('inspect', ['a.h5', '--json', '-'])\n"
        "print('pydantic' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
