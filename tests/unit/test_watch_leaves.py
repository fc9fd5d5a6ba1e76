"""What ``drafttrace watch`` leaves behind where it could not begin, and how its metrics answer."""

from __future__ import annotations

import http.client
import shutil
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
