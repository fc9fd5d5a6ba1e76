"""Release notes out of fragments: one file in ``changes/`` per change that a user notices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("added", "changed", "fixed", "removed")
_NAME = re.compile(rf"(?P<about>[a-z0-9-]+)\.(?P<kind>{'|'.join(KINDS)})\.md")


class BadFragment(Exception):
    """A fragment has no kind, or says nothing."""


@dataclass(frozen=True)
class Fragment:
    """One change. text: a sentence or two, on one line."""

    about: str
    kind: str
    text: str


def fragments(folder: Path = ROOT / "changes") -> list[Fragment]:
    """All fragments, by name. Raises BadFragment for one that cannot be used."""
    found = []
    for path in sorted(folder.glob("*")):
        if path.name == "README.md":
            continue
        name = _NAME.fullmatch(path.name)
        if name is None:
            raise BadFragment(f"{path.name}: name it <about>.<{'|'.join(KINDS)}>.md")
        text = " ".join(path.read_text(encoding="utf-8").split())
        if not text.endswith((".", "!")):
            raise BadFragment(f"{path.name}: write a whole sentence from the user's view")
        found.append(Fragment(name["about"], name["kind"], text))
    return found


def notes(changes: Sequence[Fragment]) -> str:
    """The section of CHANGELOG.md that the fragments add up to."""
    parts = []
    for kind in KINDS:
        mine = [change.text for change in changes if change.kind == kind]
        if mine:
            parts.append(f"### {kind.capitalize()}\n\n" + "\n".join(f"* {text}" for text in mine) + "\n")
    return "\n".join(parts)
