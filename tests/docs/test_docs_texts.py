"""Blocks that are no commands and no code: what they show is what is there."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import h5py

from doctools import blocks
from drafttrace.tracer import canary

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {
    str(page.relative_to(ROOT)): [block for block in blocks.blocks_of(page) if block.language == "text"]
    for page in blocks.pages()
}
# /padding and /ranks are there where a batch was padded, and where there are several ranks.
SOMETIMES = {"/ranks/{r}", "/padding"}


def test_every_block_of_text_is_looked_at() -> None:
    """By a test below; those of the reference of the Python interface are made from the code."""
    assert {page for page, found in TEXTS.items() if found} == {
        "CONTRIBUTING.md",
        "docs/how-to/watch.md",
        "docs/reference/python.md",
        "docs/reference/trace-format.md",
    }
    assert all(len(found) == 1 for page, found in TEXTS.items() if found and not page.endswith("python.md"))


def test_the_map_of_the_house_is_whole() -> None:
    (block,) = TEXTS["CONTRIBUTING.md"]
    listed = {name for line in block.body for name in re.findall(r"(?:^|; )(\w+)/", line)}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {line.split("/")[0] for line in tracked.splitlines() if "/" in line}
    assert listed == {name for name in folders if not name.startswith(".")}


def test_the_canary_writes_the_lines_of_the_page() -> None:
    (block,) = TEXTS["docs/how-to/watch.md"]
    cold = canary.Run(3, "2026-11-30T05:40:00Z", canary.COLD, "match", 79, (0.0, 0.0), 0.035, 2.41, 2.41)
    warm = canary.Run(
        3,
        "2026-11-30T05:40:01Z",
        canary.WARM,
        "mismatch",
        31,
        (0.02, 0.31),
        0.035,
        1.07,
        2.41,
        drift=("cold-warm",),
        trace="drafttrace-canary/2026-11-30T054001Z-warm.h5",
    )
    assert list(block.body) == [replace(run, repeats=(0.0, 0.0)).line() for run in (cold, warm)]


def test_every_field_of_the_canary_is_on_the_page() -> None:
    """drafttrace.canary/1 was described nowhere."""
    page = (ROOT / "docs/reference/canary.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    assert named == set(canary.failed(1, "2026-01-01T00:00:00Z", canary.COLD, "No answer.").to_json())
    how_to = (ROOT / "docs/how-to/watch.md").read_text(encoding="utf-8")
    assert "(../reference/canary.md)" in how_to.split("## The lines of `--json`")[1].split("\n## ")[0]


def test_the_tree_of_a_trace_is_a_recorded_traces() -> None:
    """/about/layout was in every trace and in no page."""
    (block,) = TEXTS["docs/reference/trace-format.md"]
    patterns = {path: re.compile(re.sub(r"\\\{\w\\\}", r"\\d+", re.escape(path))) for path in _shown(block.body)}
    held: list[str] = []
    with h5py.File(ROOT / "traces/tiny-kimi/fixed.h5") as file:
        file.visititems(lambda name, item: held.append(f"/{name}") if isinstance(item, h5py.Dataset) else None)
        assert set(file.attrs) == set(re.findall(r"\w+", _after(block.body, "attributes:")))
        assert set(file["tokens"]) == {"ids", "prompt_length"}
    leaves = [path for path in held if not path.startswith(("/summary/", "/tokens/"))]
    unknown = [path for path in leaves if not any(one.fullmatch(path) for one in patterns.values())]
    assert not unknown
    unused = {
        path
        for path, one in patterns.items()
        if not any(one.match(found) for found in held) and path not in SOMETIMES
    }
    assert not unused


def _after(lines: tuple[str, ...], word: str) -> str:
    """The text behind a word, with the lines that go on it."""
    return re.split(r"\n(?=/)", "\n".join(lines).split(word)[1])[0]


def _shown(lines: tuple[str, ...]) -> list[str]:
    found = []
    for line in re.split(r"\n(?=/)", "\n".join(lines)):
        path, text = line.split(None, 1)
        if path == "/about/*":
            found += [f"/about/{name}" for name in re.findall(r"\w+", text.split(":")[1])]
        elif path == "/draft/...":
            found += [f"/draft/{name}" for name in re.findall(r"[\w/]+", text)]
        elif path != "/":
            found += [path, *re.findall(r"(?<=\s)/\w[\w/]*", text)]
    return found


def test_the_help_of_diff_says_what_noise_gives() -> None:
    """Its line of exit codes left out the verdict `noise`."""
    from drafttrace.compare.result import EXIT_CODES

    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    assert EXIT_CODES["match"] == EXIT_CODES["noise"] == 0 and "Exit code: 0 match or noise, 1 mismatch" in page
