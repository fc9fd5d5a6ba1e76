"""What ``drafttrace watch`` leaves behind where it could not begin, and how its metrics answer."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drafttrace.tracer import prometheus
from drafttrace.tracer.cli import app

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"


@pytest.mark.parametrize("first", ["data_0.pt", "text.h5", "empty.h5"])
@pytest.mark.parametrize("there", [False, True])
def test_a_refused_first_trace_leaves_no_folder(first: str, there: bool, tmp_path: Path) -> None:
    """`drafttrace watch data_0.pt` left an empty drafttrace-canary/; one that was there before stays."""
    shutil.copyfile(KIMI / "dump/data_0.pt", tmp_path / "data_0.pt")
    (tmp_path / "text.h5").write_text("no trace")
    (tmp_path / "empty.h5").touch()
    folder = tmp_path / "new/canary"
    if there:
        folder.mkdir(parents=True)
    asked = ["watch", str(tmp_path / first), "--url", "http://127.0.0.1:9", "--dir", str(folder), "--count", "1"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code and folder.exists() is folder.parent.exists() is there


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_watch_that_is_ended_in_its_first_trace_leaves_nothing(sent: signal.Signals, tmp_path: Path) -> None:
    """`systemctl stop` during the first trace left that trace on the server, and an empty folder; Ctrl-C did not."""
    asked: list[tuple[str, str]] = []
    generating, over = threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.command, self.path))
            if self.path == "/generate":
                generating.set()
                over.wait(60)
            told = {
                "supported": True,
                "sglang_version": "0.5.23",
                "hooks": [],
                "id": "one",
                "rid": "drafttrace-one",
            }
            data = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = tmp_path / "canary"
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "watch", "--dir", str(folder)]
    child = subprocess.Popen(
        [*command, "--url", f"http://127.0.0.1:{server.server_port}"],
        # A run of the tests in the background has Ctrl-C ignored, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert generating.wait(60) and folder.is_dir()
        child.send_signal(sent)
        assert child.wait(60) == 130
    finally:
        over.set()
        child.kill()
        server.shutdown()
        server.server_close()
    assert ("DELETE", "/drafttrace/traces/one") in asked and not folder.exists()


def test_metrics_answer_head_requests() -> None:
    """HEAD /metrics was answered 501, which health checks take for a broken exporter."""
    server = prometheus.serve(prometheus.Metrics(["cold"]), "0")
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        got = {}
        for method in ("GET", "HEAD"):
            for path in ("/metrics", "/nothing"):
                connection.request(method, path)
                answer = connection.getresponse()
                got[method, path] = answer.status, answer.getheaders()[2:], answer.read()
        connection.close()
    finally:
        server.shutdown()
        server.server_close()
    for path, status in (("/metrics", 200), ("/nothing", 404)):
        assert got["HEAD", path][:2] == got["GET", path][:2] and got["HEAD", path][0] == status
        assert got["HEAD", path][2] == b"" != got["GET", path][2]
