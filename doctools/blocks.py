"""Fenced code blocks of Markdown pages: what each is, how it is run, and whether it did what the page says.

A comment on the line above a block says how it is meant::

    <!-- exit: 1 -->                the last command's exit code (0 without it)
    <!-- live -->                   needs a server; tests/live runs it
    <!-- not run: why -->           changes the machine; the reason is part of the page's source

In a ``console`` block, lines that start with ``$ `` are commands, the others what they print. A line ``...`` stands for
any number of lines, and ``...`` at the end of a line for the rest of it. White space and durations are not compared, and
numbers may differ by two percent: they come from measurements.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN = frozenset({"console", "python"})
CHECKED = frozenset({"json", "yaml"})
TEXT = frozenset({"text"})
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)(?P<rest>.*)$")
_DIRECTIVE = re.compile(r"^ *<!-- *(?P<name>[a-z ]+?)(?:: *(?P<value>.*?))? *-->$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_SECONDS = re.compile(r"\d+(?:\.\d+)? (?:s|ms)\b")
TOLERANCE = 0.02


class BlockFailed(Exception):
    """A block did not do what its page says; the message shows both."""


@dataclass(frozen=True)
class Step:
    """One command and what the page says it prints (empty: nothing is promised)."""

    command: str
    output: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Block:
    """One fenced block. line: of its first fence, from 1."""

    page: Path
    line: int
    language: str
    directives: Mapping[str, str]
    body: tuple[str, ...]

    @property
    def where(self) -> str:
        """``docs/index.md:12``."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def live(self) -> bool:
        """Whether it needs a server."""
        return "live" in self.directives

    @property
    def not_run(self) -> bool:
        """Whether nothing runs it, for a reason."""
        return "not run" in self.directives

    @property
    def steps(self) -> tuple[Step, ...]:
        """The commands of a console block. A command goes on over a line that ends in a backslash."""
        steps: list[Step] = []
        command, output, start = "", [], 0
        going_on = False
        for number, text in enumerate(self.body, self.line + 1):
            if going_on:
                command += "\n" + text
            elif text.startswith("$ "):
                if command:
                    steps.append(Step(command, tuple(output), start))
                command, output, start = text[2:], [], number
            else:
                output.append(text)
                continue
            going_on = text.endswith("\\")
        if command:
            steps.append(Step(command, tuple(output), start))
        return tuple(steps)


def pages() -> list[Path]:
    """Every page whose blocks are tested: the documentation, the README, the guide for contributors."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    place = 0
    while place < len(lines):
        fence = _FENCE.match(lines[place])
        if fence is None:
            place += 1
            continue
        indent = len(fence["indent"])
        stop = next(i for i in range(place + 1, len(lines)) if lines[i].strip() == "```")
        body = tuple(line[indent:] for line in lines[place + 1 : stop])
        yield Block(page, place + 1, fence["language"], _directives(lines, place), body)
        place = stop + 1


def _directives(lines: Sequence[str], place: int) -> dict[str, str]:
    found = {}
    for line in reversed(lines[:place]):
        match = _DIRECTIVE.match(line)
        if match is None:
            break
        found[match["name"]] = match["value"] or ""
    return found


def environment() -> dict[str, str]:
    """Where the commands of a page run: this environment's programs first, no colours, 118 columns, UTF-8."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "NO_COLOR": "1",
        "COLUMNS": "118",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def desk(folder: Path) -> None:
    """Lay out what the pages' commands find: the repository's traces and pairs, and a user's own file names.

    What is there already stays. Readers get the same folder with ``make desk``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {
        "traces": "traces",
        "pairs": "pairs",
        "trace.h5": "traces/tiny-kimi/as-trained.h5",
        "fixed.h5": "traces/tiny-kimi/fixed.h5",
        "data_0.pt": "pairs/tiny-kimi/dump/data_0.pt",
        "data_config.json": "pairs/tiny-kimi/dump/data_config.json",
        "target": "pairs/tiny-kimi/target",
        "draft": "pairs/tiny-kimi/draft",
    }
    for name, source in names.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(ROOT / source)


def run_command(command: str, folder: Path, timeout: float = 300.0) -> tuple[int, list[str]]:
    """Exit code and lines of both streams, in the order in which a terminal would show them."""
    done = subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        cwd=folder,
        env=environment(),
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, [line.rstrip() for line in done.stdout.splitlines()]


def run_console(block: Block, folder: Path) -> None:
    """Run every command of a block. Raises BlockFailed for another exit code or output than the page has."""
    steps = block.steps
    if not steps:
        raise BlockFailed(f"{block.where}: a console block without a command")
    for step in steps:
        code, printed = run_command(step.command, folder)
        expected = int(block.directives.get("exit", "0")) if step is steps[-1] else 0
        shown = "\n".join(printed)
        if code != expected:
            raise BlockFailed(f"{block.where}: '{step.command}' exited with {code}, not {expected}:\n{shown}")
        if any(step.output) and not matches(step.output, printed):
            page = "\n".join(step.output)
            raise BlockFailed(f"{block.where}: '{step.command}' printed\n{shown}\n--- and the page says\n{page}")


def matches(expected: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether the printed lines are the expected ones; ``...`` stands for any number of lines, blank lines for none."""
    wanted = [line.strip() for line in expected if line.strip()]
    got = [line.strip() for line in printed if line.strip()]
    if not wanted:
        return not got
    if wanted[0] == "...":
        return any(matches(wanted[1:], got[k:]) for k in range(len(got) + 1)) if len(wanted) > 1 else True
    return bool(got) and same_line(wanted[0], got[0]) and matches(wanted[1:], got[1:])


def same_line(expected: str, printed: str) -> bool:
    """Equal up to white space and the last digits of numbers."""
    wanted, got = (_SECONDS.sub("some time", " ".join(line.split())) for line in (expected, printed))
    if wanted.endswith(" ..."):  # the rest of the line may be anything
        wanted = wanted.removesuffix(" ...")
        got = " ".join(got.split()[: len(wanted.split())])
    if _NUMBER.sub("#", wanted) != _NUMBER.sub("#", got):
        return False
    return all(_near(a, b) for a, b in zip(_NUMBER.findall(wanted), _NUMBER.findall(got), strict=True))


def _near(left: str, right: str) -> bool:
    if left == right:
        return True
    if "." not in left and "e" not in left:  # a count, a boundary, an id
        return False
    a, b = float(left), float(right)
    return abs(a - b) <= max(TOLERANCE * max(abs(a), abs(b)), 1e-6)


def run_python(page: Path, folder: Path) -> None:
    """Run all Python blocks of a page as one script. Raises BlockFailed where it ends with an error."""
    parts = []
    for block in blocks_of(page):
        if block.language == "python" and not block.not_run and not block.live:
            parts.append(f"# {block.where}\n" + "\n".join(block.body))
    script = folder / "page.py"
    script.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    code, printed = run_command(f"{sys.executable} page.py", folder)
    if code != 0:
        raise BlockFailed(f"{page.relative_to(ROOT)}: its Python blocks end with {code}:\n" + "\n".join(printed))


def updated(page: Path, folder: Path) -> str:
    """The page with what its commands print now; blocks that promise nothing, or use ``...``, stay as they are."""
    shown: list[tuple[int, int, list[str]]] = []  # first line, lines now, lines then
    for block in blocks_of(page):
        if block.language != "console" or block.live or block.not_run:
            continue
        for step in block.steps:  # a later one may use what an earlier one wrote
            _, printed = run_command(step.command, folder)
            if any(step.output) and "..." not in {line.strip() for line in step.output}:
                while printed and not printed[-1]:
                    printed.pop()
                shown.append((step.line + step.command.count("\n"), len(step.output), printed))
    lines = page.read_text(encoding="utf-8").splitlines()
    for start, count, printed in reversed(shown):
        lines[start : start + count] = printed
    return "\n".join(lines) + "\n"
