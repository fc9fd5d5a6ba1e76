"""The server manager of the CPU tests, with a few lines of Python in the place of SGLang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang_cpu")


from sglang_cpu import CpuServer, ServerDied, ServerTimeout, cpu_args, cpu_env
from sglang_cpu.__main__ import completed

# Answers /health, echoes POST bodies, dies on /die; writes the process id of a child that would outlive it.
FAKE = """
import http.server, json, os, subprocess, sys, time
print("fake server", sys.argv[1:], os.environ.get("EXTRA"), os.environ["SGLANG_USE_CPU_ENGINE"], flush=True)
mode = os.environ.get("MODE", "")
if mode == "early death":
    print("line one\\nthe reason", flush=True)
    sys.exit(3)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
if mode == "deaf":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("ok" if self.path == "/health" and mode != "never ready" else None)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/die":
            os._exit(4)
        self.answer(body.decode() if self.path != "/flush_cache" else "Cache flushed.\\n")
    def answer(self, text):
        self.send_response(503 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())
    def log_message(self, *args):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def make_server(tmp_path: Path) -> Callable[..., CpuServer]:
    def make(mode: str = "", **options: Any) -> CpuServer:
        launcher = [sys.executable, "-c", FAKE]
        return CpuServer(
            ["--an-option"], tmp_path / "logs/s.log", {"MODE": mode, "EXTRA": "x"}, launcher, **options
        )

    return make


def child_of(server: CpuServer) -> int:
    lines = server.log_path.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("child "))


def is_gone(pid: int) -> bool:
    """Gone, or dead and waiting for whoever adopts orphans here to collect it."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_it_starts_answers_and_stops_with_all_that_it_started(make_server: Callable[..., CpuServer]) -> None:
    with make_server() as server:
        pid, child = server.pid, child_of(server)
        assert server.is_running
        assert os.getpgid(pid) == pid
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert server.start_seconds > 0
        assert server.generate("hello", max_new_tokens=3, rid="r1") == {
            "text": "hello",
            "rid": "r1",
            "sampling_params": {"max_new_tokens": 3, "temperature": 0.0, "ignore_eos": False},
        }
        assert server.generate(input_ids=[1, 2], sampling={"n": 2})["input_ids"] == [1, 2]
        server.flush_cache()
    assert is_gone(pid)
    assert is_gone(child)
    with pytest.raises(RuntimeError, match="not running"):
        server.post("/echo")
    assert "['--an-option', '--host', '127.0.0.1', '--port'" in server.log_tail().replace(str(server.port), "")
    assert "x 1" in server.log_tail()


def test_it_can_be_started_again(make_server: Callable[..., CpuServer]) -> None:
    server = make_server()
    for _ in range(2):
        with server:
            assert server.post("/echo", {"a": 1}) == {"a": 1}


def test_an_early_death_is_told_with_the_tail_of_the_log(make_server: Callable[..., CpuServer]) -> None:
    server = make_server("early death")
    began = time.monotonic()
    with pytest.raises(ServerDied, match=r"exit status 3\)[\s\S]*the reason"):
        server.start()
    assert time.monotonic() - began < 30
    assert not server.is_running


def test_a_server_that_never_gets_ready_is_stopped(make_server: Callable[..., CpuServer]) -> None:
    server = make_server("never ready", start_timeout=3)
    with pytest.raises(ServerTimeout, match=r"not ready after 3 s[\s\S]*child"):
        server.start()
    assert not server.is_running
    assert is_gone(child_of(server))


def test_a_death_during_a_request_is_told(make_server: Callable[..., CpuServer]) -> None:
    with make_server() as server:
        child = child_of(server)
        with pytest.raises(ServerDied, match=r"died during http://127\.0\.0\.1:\d+/die"):
            server.post("/die")
    # Its process group outlives the leader, and is ended all the same.
    assert is_gone(child)


def test_a_server_that_ignores_the_polite_signal_is_killed(make_server: Callable[..., CpuServer]) -> None:
    with make_server("deaf", stop_timeout=0.5) as server:
        pid = server.pid
        os.kill(pid, signal.SIGTERM)
        assert server.is_running
    assert is_gone(pid)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_does_not_outlive_a_process_that_was_killed(how: signal.Signals, tmp_path: Path) -> None:
    owner = """
import sys, time
from pathlib import Path
from sglang_cpu import CpuServer
server = CpuServer([], Path(sys.argv[1]), launcher=[sys.executable, "-c", sys.argv[2]])
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", owner, str(tmp_path / "s.log"), FAKE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    server = int(process.stdout.readline())
    process.send_signal(how)
    process.wait()
    child = int((tmp_path / "s.log").read_text().split("child ")[1].split()[0])
    try:
        assert is_gone(server)
    finally:
        for pid in (child, server):
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def test_an_error_of_the_server_is_told_in_its_words(make_server: Callable[..., CpuServer]) -> None:
    with make_server() as server, pytest.raises(RuntimeError, match=r"/nowhere answered 503"):
        server.get("/nowhere")


def test_arguments() -> None:
    plain = cpu_args("models/target")
    assert "--speculative-algorithm" not in plain
    args = cpu_args("t", "d", steps=2, topk=2, num_draft_tokens=5, tp=2, dtype="float32", extra=["--x", "y"])
    option = dict(pairwise(args))
    assert option["--speculative-draft-model-path"] == "d"
    assert option["--speculative-algorithm"] == "EAGLE3"
    assert (option["--speculative-num-steps"], option["--speculative-eagle-topk"]) == ("2", "2")
    assert option["--speculative-num-draft-tokens"] == "5"
    assert (option["--tp-size"], option["--dtype"]) == ("2", "float32")
    assert args[-2:] == ["--x", "y"]


def test_environment() -> None:
    env = cpu_env(tp=3, threads=2)
    assert env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert env["OMP_NUM_THREADS"] == "2"
    assert len(env["SGLANG_CPU_OMP_THREADS_BIND"].split("|")) == 3


def test_a_command_is_completed_for_a_cpu_and_what_it_gives_stays() -> None:
    """The README's serve line ended with "No accelerator" where `make demo` had built the environment."""
    line = ["drafttrace", "serve", "--", "--model-path", "T", "--speculative-draft-model-path", "D", "--tp-size=2"]
    made = completed([*line, "--max-total-tokens", "512"])
    assert made[: len(line) + 2] == [*line, "--max-total-tokens", "512"]
    added = made[len(line) + 2 :]
    assert added[added.index("--device") + 1] == "cpu" and "--sleep-on-idle" in added
    assert "--speculative-num-steps" in added and not {"--tp-size", "--max-total-tokens"} & set(added)
    assert not any("speculative" in word for word in completed(["x", "--model-path", "T"]))
    with pytest.raises(ValueError, match="--model-path"):
        completed(["drafttrace", "serve"])


def test_the_module_runs_the_command_in_that_environment(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['SGLANG_USE_CPU_ENGINE'], sys.argv[1:])"
    command = [sys.executable, "-m", "sglang_cpu", sys.executable, "-c", code, "--model-path", "T"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith("1 ['--model-path', 'T', '--device', 'cpu'"), done.stderr
    for wrong, words in (
        (["true"], "--model-path"),
        (["no-such-program", "--model-path", "T"], "cannot be started"),
    ):
        done = subprocess.run([sys.executable, "-m", "sglang_cpu", *wrong], capture_output=True, text=True)
        assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_a_command_beside_this_python_is_told_to_be_activated() -> None:
    """ "drafttrace cannot be started (No such file or directory)", where the environment has it."""
    command = [sys.executable, "-m", "sglang_cpu", "pip", "--model-path", "T"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/nowhere"})
    assert done.returncode == 1 and f". {Path(sys.executable).parent / 'activate'}" in done.stderr
