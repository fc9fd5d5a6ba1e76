"""A running SGLang server as a context manager."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sglang_cpu import with_parent
from sglang_cpu.arguments import cpu_env

_LOG_TAIL_LINES = 60
# Nothing on loopback goes through a proxy that the environment names.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerDied(RuntimeError):
    """The server's process ended before, or while, it was used; the message ends with the tail of its log."""


class ServerTimeout(RuntimeError):
    """The server did not become ready in time; the message ends with the tail of its log."""


class CpuServer:
    """Starts a server on a free loopback port, waits until it is ready, and stops it.

    ``args`` are SGLang's (see ``cpu_args``), without host and port. ``env`` is added to this process's environment
    and to ``cpu_env()``. ``launcher`` is the command that takes the arguments, by default
    ``python -m sglang.launch_server``. The log is overwritten.

    Only the process that it started, and the process group that it made for it, are ever signalled. If this process
    ends without ``stop()`` (it was killed), the server is sent SIGTERM by the kernel.
    """

    def __init__(
        self,
        args: Sequence[str],
        log_path: str | Path,
        env: Mapping[str, str] | None = None,
        launcher: Sequence[str] | None = None,
        *,
        start_timeout: float = 600.0,
        stop_timeout: float = 10.0,
    ) -> None:
        self.args = list(args)
        self.log_path = Path(log_path)
        self.env = dict(env or {})
        self.launcher = list(launcher) if launcher else [sys.executable, "-m", "sglang.launch_server"]
        self.start_timeout = start_timeout
        self.stop_timeout = stop_timeout
        self.port = 0
        self.start_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the launched command, which is also its process group."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the server was started and its process has not ended since."""
        return self._process is not None and not _has_ended(self._process.pid)

    @property
    def command(self) -> list[str]:
        return [*self.launcher, *self.args, "--host", "127.0.0.1", "--port", str(self.port)]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the process and returns when it answers; on failure the process is gone."""
        if self._process is not None:
            raise RuntimeError(f"this server is running already, as process {self._process.pid}")
        self.port = free_port()
        began = time.monotonic()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*_with_parent(), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **cpu_env(tp=_tensor_parallel_size(self.args)), **self.env},
                start_new_session=True,
            )
        try:
            self._wait_until_ready(began + self.start_timeout)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - began

    def stop(self) -> None:
        """Ends the process and what it started: politely, then, after ``stop_timeout``, by force."""
        process, self._process = self._process, None
        if process is None:
            return
        if not _has_ended(process.pid):
            process.terminate()
            _wait(lambda: _has_ended(process.pid), self.stop_timeout)
        # The leader is not reaped yet, so that its id, and with it the group's, cannot belong to anyone else.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """The last lines of the server's log."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def get(self, path: str, *, timeout: float = 60.0) -> Any:
        """The JSON answer to a GET request."""
        return self._request(urllib.request.Request(self.url + path), timeout)

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 300.0) -> Any:
        """The JSON answer to a POST request with a JSON body (the text itself where the answer is no JSON)."""
        data = json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"}
        return self._request(urllib.request.Request(self.url + path, data, headers), timeout)

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        ignore_eos: bool = False,
        sampling: Mapping[str, Any] | None = None,
        timeout: float = 300.0,
        **request: Any,
    ) -> Any:
        """The answer of ``/generate``: a dict, or a list of them for a batch or for n > 1.

        ``sampling`` adds to the sampling parameters, ``request`` to the request itself (``rid``, ``return_logprob`` …).
        """
        if (prompt is None) == (input_ids is None):
            raise ValueError("give either a prompt or input_ids")
        parameters = {"max_new_tokens": max_new_tokens, "temperature": temperature, "ignore_eos": ignore_eos}
        parameters |= sampling or {}
        source: dict[str, Any] = {"text": prompt} if input_ids is None else {"input_ids": input_ids}
        return self.post("/generate", {**source, "sampling_params": parameters, **request}, timeout=timeout)

    def flush_cache(self) -> None:
        """Forgets all cached prefixes."""
        self.post("/flush_cache")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("this server is not running: use it in a with statement, or call start()")
        return self._process

    def _request(self, request: urllib.request.Request, timeout: float) -> Any:
        process = self._running()
        try:
            with _opener.open(request, timeout=timeout) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")
            raise RuntimeError(f"{request.full_url} answered {error.code}: {detail}") from error
        except (OSError, http.client.HTTPException) as error:
            # SGLang dies with its scheduler, a moment after the connection breaks.
            if _wait(lambda: _has_ended(process.pid), 5.0):
                raise ServerDied(
                    f"the server died during {request.full_url}; its log ends:\n{self.log_tail()}"
                ) from error
            raise
        try:
            return json.loads(text) if text else None
        except json.JSONDecodeError:
            return text

    def _wait_until_ready(self, deadline: float) -> None:
        process = self._running()
        health = urllib.request.Request(self.url + "/health")
        while True:
            if _has_ended(process.pid):
                raise ServerDied(
                    f"the server ended before it was ready (exit status {_exit_status(process.pid)}); "
                    f"its log, {self.log_path}, ends:\n{self.log_tail()}"
                )
            try:
                with _opener.open(health, timeout=5.0):
                    return
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() > deadline:
                raise ServerTimeout(
                    f"the server was not ready after {self.start_timeout:g} s; "
                    f"its log, {self.log_path}, ends:\n{self.log_tail()}"
                )
            time.sleep(0.1)


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _with_parent() -> list[str]:
    """What stands before the command so that it ends with this process; nothing in a thread, with which it would end."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [sys.executable, "-S", with_parent.__file__, str(os.getpid())]


def _tensor_parallel_size(args: Sequence[str]) -> int:
    for option, value in itertools.pairwise(args):
        if option in ("--tp-size", "--tp", "--tensor-parallel-size"):
            return int(value)
    return 1


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _exit_status(pid: int) -> int | None:
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if ended is None else ended.si_status


def _wait(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
