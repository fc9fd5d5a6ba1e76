"""The demo says in one sentence what stands in its way."""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sglang_cpu import cpu_args, cpu_env
from sglang_cpu.server import free_port

from demo.pairs import PAIRS
from demo.story import server_line

ROOT = Path(__file__).resolve().parents[2]


def demo(out: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


def test_a_folder_that_cannot_be_made_or_is_somebody_elses(tmp_path: Path) -> None:
    """It ended in a traceback, and with 1, which means that the story does not hold."""
    (tmp_path / "precious.txt").write_text("mine")
    for out, words in ((tmp_path, "not made by the demo"), ("/proc/x", "cannot be made")):
        done = demo(out)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.live
def test_a_server_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    done = demo(tmp_path / "out", SGLANG_PLUGINS="none")
    assert done.returncode == 2 and done.stderr.startswith("demo: the server did not come up"), done.stderr[-2000:]
    assert "demo/story.py" not in done.stderr  # no traceback of ours
    assert (tmp_path / "out/server-before.log").stat().st_size > 0


def printed_line(trace_dir: Path, port: int) -> str:
    """The server's line of a demo of the tiny pair."""
    pair = PAIRS["tiny-kimi"]
    args = cpu_args(pair.target(), pair.draft, steps=pair.steps, topk=1, num_draft_tokens=pair.steps + 1)
    return server_line(args, trace_dir, port)


def test_the_printed_server_line_holds_the_whole_environment(tmp_path: Path) -> None:
    words = shlex.split(printed_line(tmp_path / "a folder", 31000))
    assert words[0] == "env"
    place = words.index("drafttrace")
    assert dict(word.split("=", 1) for word in words[1:place]) == cpu_env()
    assert words[place + 1 : place + 5] == ["serve", "--trace-dir", str(tmp_path / "a folder"), "--"]
    assert words[-4:] == ["--host", "127.0.0.1", "--port", "31000"]


@pytest.mark.live
def test_the_printed_server_line_works_as_typed(tmp_path: Path) -> None:
    """It ended with "No module named 'vllm'": what SGLang needs on a CPU was set for the demo's own process only."""
    port = free_port()
    line = printed_line(tmp_path / "traces", port)
    bare = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": os.environ["HOME"]}
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=tmp_path, env=bare, stdout=log, stderr=log, start_new_session=True
        )
    try:
        assert answers(port, server, time.monotonic() + 300), (tmp_path / "server.log").read_text()[-3000:]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(port: int, server: subprocess.Popen[bytes], until: float) -> bool:
    """Whether the server says that it is there before it ends or the time is over."""
    while server.poll() is None and time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return True
        except OSError:
            time.sleep(0.5)
        finally:
            connection.close()
        time.sleep(0.2)
    return False
