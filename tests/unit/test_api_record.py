"""`drafttrace.record` against the plugin's own routes, with an answer and a trace in the place of SGLang."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import drafttrace
from drafttrace.hooks.config import Settings
from drafttrace.hooks.routes import Service
from drafttrace.hooks.store import Store, identity, write_json

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-kimi/fixed.h5"
DUMP = ROOT / "pairs/tiny-kimi/dump/data_0.pt"
TOKEN = "s3cret"


class Guarded:
    """A server that was started with ``--token``. asked: the bodies of POST requests, by path."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.store.create()
        self.service = Service(
            Settings(folder, token=TOKEN), self.store, lambda: {"supported": True, "reason": None}
        )
        self.asked: dict[str, dict[str, Any]] = {}
        self.ranks: tuple[int, ...] = ()
        self.broken = ""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        name = path.removeprefix("/drafttrace/traces").strip("/").split("/")[0]
        if method == "POST":
            self.asked[path] = body
        if path == "/generate":
            (waiting,) = (one["id"] for one in self.service.list()[1]["traces"])
            state = {
                "state": "incomplete" if self.broken else "complete",
                "rows": 9,
                "reason": self.broken,
                **identity(),
            }
            for name in (waiting, *(f"{waiting}_rank{rank}" for rank in self.ranks)):
                write_json(self.store.state_path(name), state)
                if not self.broken:
                    shutil.copy(TRACE, self.store.trace_path(name))
            if self.broken == "gone":
                shutil.rmtree(self.store.directory)
            return 200, json.dumps({"text": "yes", "meta_info": {}}).encode()
        if path.endswith("/file"):
            file, (status, told) = self.service.file(name)
            return (status, json.dumps(told).encode()) if file is None else (200, file.read_bytes())
        if path == "/drafttrace/health":
            status, told = 200, {"supported": True, "sglang_version": "0.5.23", "hooks": []}
            told |= {"all_ranks": bool(self.ranks), "ranks": [0, *self.ranks]}
        elif method == "POST":
            status, told = self.service.start(body)
        elif method == "DELETE":
            status, told = self.service.delete(name)
        else:
            status, told = self.service.find(name)[1]
        return status, json.dumps(told).encode()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Guarded]]:
    server = Guarded(tmp_path / "store")

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            status, data = server.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *args: object) -> None:
            return

    web = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}", server
    web.shutdown()
    web.server_close()


def test_a_guarded_server_is_recorded_from_python(guarded: tuple[str, Guarded], tmp_path: Path) -> None:
    """The 403 named --token, and `drafttrace.record` had none."""
    url, server = guarded
    for wrong in (None, "wrong"):
        with pytest.raises(drafttrace.DrafttraceError, match=r"403.*in Python: api_key and token"):
            drafttrace.record(tmp_path / "t.h5", url=url, prompt="a", token=wrong)
    recorded = drafttrace.record(tmp_path / "t.h5", url=url, prompt="a", token=TOKEN)
    assert recorded.complete and recorded.path.read_bytes() == TRACE.read_bytes()
    assert server.service.list()[1]["traces"] == []  # not kept


def test_python_records_with_all_that_the_command_has(guarded: tuple[str, Guarded], tmp_path: Path) -> None:
    url, server = guarded
    asked: list[dict[str, Any]] = []
    for whole in (False, True):
        out = tmp_path / f"{whole}.h5"
        drafttrace.record(
            out, url=url, from_dump=DUMP, whole=whole, boundaries="all", boundary_rows=7, token=TOKEN, keep=whole
        )
        asked.append(server.asked["/generate"])
    assert server.asked["/drafttrace/traces"]["taps"] == {"boundaries": "all", "boundary_rows": 7}
    cut, sent = (body["input_ids"] for body in asked)
    assert sent[: len(cut)] == cut and len(cut) < len(sent) == 129
    assert len(server.service.list()[1]["traces"]) == 1  # the kept one
    with pytest.raises(drafttrace.DrafttraceError, match="cannot cover 0 rows"):
        drafttrace.record(tmp_path / "t.h5", url=url, prompt="a", boundary_rows=0, token=TOKEN)


def test_the_files_of_all_ranks_are_fetched_and_deleted(guarded: tuple[str, Guarded], tmp_path: Path) -> None:
    """Only the first rank's was, and the others filled the server's folder."""
    url, server = guarded
    server.ranks = (1, 3)
    out = tmp_path / "t.h5"
    recorded = drafttrace.record(out, url=url, prompt="a", token=TOKEN)
    others = [tmp_path / "t_rank1.h5", tmp_path / "t_rank3.h5"]
    assert list(recorded.ranks) == others and all(path.read_bytes() == TRACE.read_bytes() for path in others)
    assert recorded.to_json()["ranks"] == [str(path) for path in others]
    assert list(server.store.ids()) == []
    # Nothing of theirs is overwritten, and nothing is sent before that is known.
    out.unlink()
    server.asked.clear()
    with pytest.raises(drafttrace.DrafttraceError, match=r"another rank '.*t_rank1.h5' exists already"):
        drafttrace.record(out, url=url, prompt="a", token=TOKEN)
    server.ranks = ()
    with pytest.raises(drafttrace.DrafttraceError, match=r"t_rank1.h5' would be taken for another rank of"):
        drafttrace.record(out, url=url, prompt="a", token=TOKEN, force=True)
    assert not server.asked and not out.exists()


def test_a_trace_without_a_file_does_not_stay_on_the_server(guarded: tuple[str, Guarded], tmp_path: Path) -> None:
    url, server = guarded
    server.broken = "the disk is full; make room first."
    with pytest.raises(drafttrace.DrafttraceError, match=r"the disk is full; make room first; record it again\.$"):
        drafttrace.record(tmp_path / "t.h5", url=url, prompt="a", token=TOKEN)
    assert list(server.store.ids()) == []


def test_a_folder_that_went_is_told_by_record(guarded: tuple[str, Guarded], tmp_path: Path) -> None:
    url, server = guarded
    server.broken = "gone"
    with pytest.raises(drafttrace.DrafttraceError, match=r"507: The trace folder .* is gone.*on the server\.$"):
        drafttrace.record(tmp_path / "t.h5", url=url, prompt="a", token=TOKEN)
