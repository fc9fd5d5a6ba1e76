"""Every error that a user can cause says what happened and what to do about it. The sentences are read from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tracer", "compare", "hooks", "drafttrace")
# What follows the last semicolon is the remedy: "what happened, with the value; what to do". It begins with what the
# user does.
_DOES = (
    "add ask audit check choose close compare convert copy count decrypt dump export fetch finish give install leave let "
    "load look lower make move name number pass pip put read record remove repair run save say set start try update wait "
    "write"
)
# These pass on a sentence that has one already, or one that is chosen elsewhere.
PASSED_ON = (
    "{}' cannot be read: {}.",  # parse_wiring: "'x' is no boundary; write B0, B3, ... or embed"
    "--sglang-version: {}.",
    "The target's weights: {}",
    "answered {}: {}",
    "is off: {} Run 'drafttrace doctor' there.",
    "refused the request: {}",
    "samples of '{}' can be read: {}",
)


@cache
def trees_of_all() -> dict[Path, ast.Module]:
    """The parsed files of the folders, in order."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: ast.parse(path.read_text()) for path in paths}


def errors() -> set[str]:
    """The classes of errors that the command line turns into one sentence."""
    names = {"DrafttraceError"}
    trees = list(trees_of_all().values())
    while True:
        more = {
            node.name
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and any(isinstance(base, ast.Name) and base.id in names for base in node.bases)
        }
        if more <= names:
            return names
        names |= more


@cache
def sentences() -> tuple[tuple[str, str], ...]:
    """(place, text) of every error that is raised with a literal text; what is filled in is ``{}``."""
    return tuple(_sentences(errors()))


def _sentences(names: set[str]) -> Iterator[tuple[str, str]]:
    for path, tree in trees_of_all().items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in names
                and node.args
            ):
                text = literal(node.args[0])
                if text and re.search(r"[a-z]{3}", text):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


def test_every_error_has_a_remedy() -> None:
    found = sentences()
    assert len(found) > 250
    bare = [
        f"{place}: {text}"
        for place, text in found
        if ";" not in text and not any(part in text for part in PASSED_ON)
    ]
    assert not bare, "\n".join(bare)
    assert all(any(part in text for _, text in found) for part in PASSED_ON)


def test_every_remedy_says_what_to_do() -> None:
    """A question ("is it the target?") and a fact ("the formats are ...") leave the user to find out what to do."""
    weak = [
        f"{place}: {text}"
        for place, text in sentences()
        if ";" in text
        and (first := text.rsplit(";", 1)[1].split()[0].rstrip(".")) not in _DOES.split()
        and first != "{}"  # chosen elsewhere
    ]
    assert not weak, "\n".join(weak)
    asked = [f"{place}: {text}" for place, text in sentences() if text.rstrip().endswith("?")]
    assert not asked, "\n".join(asked)


def test_no_error_says_layer_without_saying_which_side() -> None:
    """A bare "layer 3" in an error would be the very confusion that drafttrace is about."""
    for place, text in sentences():
        assert not re.search(r"\blayer \{\}", text), f"{place}: {text}"


def test_errors_are_one_line() -> None:
    for place, text in sentences():
        assert "\n" not in text, f"{place}: {text}"
