"""The parts of the documentation that need a server, run on one: the pages' own commands, in their order."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sglang_cpu import cpu_args

from doctools import blocks

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
LIVE = {page: [b for b in blocks.blocks_of(page) if b.live] for page in blocks.pages()}
# The options that any page gives to `serve`, so that those with a token share one server.
GUARDED = ("--token", "SECRET", "--max-traces", "1", "--max-trace-mib", "256", "--max-dir-mib", "1024")


def serve(line: str, start_server: Callable[..., Any], pair: Any) -> str:
    """Start the server that a page's `drafttrace serve` line asks for, on the CPU; its address."""
    words = shlex.split(line)
    cut = words.index("--")
    options, arguments = words[2:cut], words[cut + 1 :]
    assert arguments[:2] in (["--model-path", "TARGET"], ["--model-path", "target"]), line
    assert arguments[2:4] == ["--speculative-algorithm", "EAGLE3"], line
    assert arguments[4:] in (
        ["--speculative-draft-model-path", "DRAFT"],
        ["--speculative-draft-model-path", "draft"],
    ), line
    if "--token" in options:
        assert set(options) <= set(GUARDED), f"add the options of '{line}' to GUARDED"
        options = list(GUARDED)
    return str(start_server(cpu_args(pair.target, pair.draft, steps=5, num_draft_tokens=6), serve=options).url)


def addressed(command: str, url: str) -> str:
    """The command with the server's address, where it talks to one."""
    words = command.split()
    if words[1] in {"record", "watch"} and "--url" not in words:
        return f"{command} --url {url}"
    return command.replace("URL", url)


@pytest.mark.parametrize("page", [p for p in LIVE if LIVE[p]], ids=lambda page: str(page.relative_to(ROOT)))
def test_live_blocks(
    page: Path, start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    blocks.desk(tmp_path)
    url = ""
    for block in LIVE[page]:
        if block.language == "python":
            script = tmp_path / "live.py"
            if not url:
                url = serve(SERVE, start_server, pairs["tiny-kimi"])
            script.write_text(f"import drafttrace\nURL = {url!r}\n" + "\n".join(block.body) + "\n")
            code, printed = blocks.run_command(f"{sys.executable} live.py", tmp_path)
            assert code == 0, f"{block.where}: {printed}"
            continue
        steps = block.steps
        for step in steps:
            if step.command.split()[1] == "serve":
                url = serve(step.command, start_server, pairs["tiny-kimi"])
                continue
            code, printed = blocks.run_command(addressed(step.command, url), tmp_path)
            wanted = int(block.directives.get("exit", "0")) if step is steps[-1] else 0
            assert code == wanted, f"{block.where}: '{step.command}' exited with {code}: " + "\n".join(printed)
            if any(step.output):
                assert blocks.matches(step.output, printed), f"{block.where}: {printed}"


SERVE = (
    "drafttrace serve -- --model-path TARGET --speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT"
)
