"""Bad input to the command line: one sentence, exit code 2, nothing lost, nothing written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command line as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1", **(env or {})},
    )


def says(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit 2 and one sentence on stderr that holds all the words."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("drafttrace: ")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def dead_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


class Answers(BaseHTTPRequestHandler):
    """A web server that is no SGLang server, or one without the plugin: what it answers is set per test."""

    status = 404
    body = b'{"detail":"Not Found"}'

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def web() -> Iterator[tuple[str, type[Answers]]]:
    handler = type("Handler", (Answers,), {})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()


def test_record_without_a_server(tmp_path: Path) -> None:
    url = dead_url()
    says(run("record", "--url", url, "--prompt", "x", "-o", tmp_path / "t.h5"), "No answer from", url, "check")
    assert not list(tmp_path.iterdir())


def test_record_from_a_server_without_the_plugin(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, _ = web
    says(
        run("record", "--url", url, "--prompt", "x", "-o", tmp_path / "t.h5"),
        "without the drafttrace plugin",
        "serve",
    )
    assert not list(tmp_path.iterdir())


def test_record_from_something_that_is_no_sglang(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = web
    handler.status, handler.body = 200, b"<html>hello</html>"
    says(run("record", "--url", url, "--prompt", "x", "-o", tmp_path / "t.h5"), "no JSON", "SGLang")


def test_record_when_a_hook_did_not_apply(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = web
    hook = {
        "name": "verify",
        "target": "EAGLEWorkerV2.verify",
        "applied": False,
        "fired": 0,
        "error": "no such class",
    }
    handler.status, handler.body = 200, json.dumps({"supported": True, "hooks": [hook]}).encode()
    says(
        run("record", "--url", url, "--prompt", "x", "-o", tmp_path / "t.h5"),
        "hook did not apply",
        "EAGLEWorkerV2.verify",
        "no such class",
        "doctor",
    )


@pytest.mark.parametrize(
    ("status", "what"), [(503, "Wait until the server is ready"), (500, "Look for the reason in the server's log")]
)
def test_record_from_a_server_that_cannot_answer(
    status: int, what: str, web: tuple[str, type[Answers]], tmp_path: Path
) -> None:
    """It said `answered 503: ...`, and not what to do."""
    url, handler = web
    handler.status, handler.body = status, b'{"error": "not now"}'
    says(run("record", "--url", url, "--prompt", "x", "-o", tmp_path / "t.h5"), str(status), "not now.", what)


def test_record_when_the_plugin_is_off(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = web
    answer = {"supported": False, "reason": "SGLang 0.4.1 has no plugin framework"}
    handler.status, handler.body = 200, json.dumps(answer).encode()
    says(run("record", "--url", url, "--prompt", "x", "-o", tmp_path / "t.h5"), "is off", "0.4.1")


def healthy(handler: type[Answers], **more: object) -> None:
    handler.status = 200
    handler.body = json.dumps({"supported": True, "hooks": [], "target": {"vocab_size": 100}, **more}).encode()


def test_record_of_a_prompt_longer_than_the_context(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = web
    healthy(handler, context_length=16)
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([5] * 40))
    out = tmp_path / "t.h5"
    says(
        run("record", "--url", url, "--input-ids", ids, "-o", out), "40 tokens", "context length of 16", "--max-new"
    )
    assert not out.exists()


def test_record_of_a_text_with_more_new_tokens_than_the_context_holds(
    web: tuple[str, type[Answers]], tmp_path: Path
) -> None:
    url, handler = web
    healthy(handler, context_length=16)
    out = tmp_path / "t.h5"
    says(run("record", "--url", url, "--prompt", "x", "-o", out), "--max-new-tokens 64", "length of 16", "lower it")
    assert not out.exists()


def test_record_of_an_empty_prompt(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = web
    healthy(handler)
    ids = tmp_path / "ids.json"
    ids.write_text("[]")
    says(run("record", "--url", url, "--input-ids", ids, "-o", tmp_path / "t.h5"), "prompt is empty")
    says(run("record", "--url", url, "--prompt", "", "-o", tmp_path / "t.h5"), "prompt is empty")


def test_record_of_ids_from_another_tokenizer(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = web
    healthy(handler, context_length=4096)
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2, 128009]")
    says(
        run("record", "--url", url, "--input-ids", ids, "-o", tmp_path / "t.h5"),
        "128009",
        "position 2",
        "vocabulary of 100",
        "another tokenizer",
    )


def test_record_of_a_boundary_that_the_target_does_not_have(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    """``--boundaries B99`` on 16 layers was left out of the trace without a word."""
    url, handler = web
    healthy(handler, target={"n": 16})
    out = tmp_path / "t.h5"
    done = run("record", "--url", url, "--prompt", "x", "--boundaries", "B16,B17", "-o", out)
    says(done, "B17", "B0 to B16", "--boundaries")
    assert not out.exists()


def test_record_of_a_prompt_that_is_no_text(web: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = web
    healthy(handler)
    says(run("record", "--url", url, "--prompt", os.fsdecode(b"a\xff"), "-o", tmp_path / "t.h5"), "not UTF-8")


@pytest.mark.parametrize("seconds", ["-1", "0", "nan"])
def test_record_waits_for_some_time(seconds: str, tmp_path: Path) -> None:
    """A negative time was told as a server that does not answer."""
    done = run("record", "--url", dead_url(), "--prompt", "x", "--timeout", seconds, "-o", tmp_path / "t.h5")
    assert done.returncode == 2 and "--timeout" in done.stderr and "No answer" not in done.stderr


@pytest.mark.parametrize("text", ["hello", "[1, 'a']", "[[1]]", "[-4]", "{"])
def test_ids_file_without_ids(text: str, tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(text)
    says(run("record", "--url", dead_url(), "--input-ids", ids, "-o", tmp_path / "t.h5"), str(ids))


@pytest.mark.parametrize("text", ["hello", "[1]", "{}", '{"messages": [1]}'])
def test_messages_file_without_messages(text: str, tmp_path: Path) -> None:
    file = tmp_path / "messages.json"
    file.write_text(text)
    says(run("record", "--url", dead_url(), "--messages", file, "-o", tmp_path / "t.h5"), str(file))


def test_record_wants_one_prompt(tmp_path: Path) -> None:
    out = tmp_path / "t.h5"
    says(run("record", "--url", dead_url(), "-o", out), "0 prompts", "exactly one")
    says(
        run("record", "--url", dead_url(), "--prompt", "a", "--input-ids", "b", "-o", out),
        "2 prompts",
        "exactly one",
    )


def test_record_never_overwrites_without_force(tmp_path: Path) -> None:
    out = tmp_path / "t.h5"
    out.write_bytes(b"precious")
    says(run("record", "--url", dead_url(), "--prompt", "x", "-o", out), "exists already", "--force")
    assert out.read_bytes() == b"precious"


def test_record_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    says(run("record", "--url", dead_url(), "--prompt", "x", "-o", tmp_path / "no" / "t.h5"), "does not exist")


def test_record_onto_a_folder(tmp_path: Path) -> None:
    says(run("record", "--url", dead_url(), "--prompt", "x", "-o", tmp_path), "is a folder")


def test_record_into_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    # /proc refuses new files even to root, which a folder's mode bits do not
    says(run("record", "--url", dead_url(), "--prompt", "x", "-o", "/proc/t.h5"), "cannot be written", "folder")


def test_an_address_that_is_none(tmp_path: Path) -> None:
    says(
        run("record", "--url", "ftp://127.0.0.1", "--prompt", "x", "-o", tmp_path / "t.h5"),
        "ftp://127.0.0.1",
        "http",
    )


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(
    web: tuple[str, type[Answers]], tmp_path: Path
) -> None:
    url, _ = web
    done = run("record", "--url", url, "--prompt", "x", "-o", tmp_path / "t.h5", env={"http_proxy": dead_url()})
    says(done, "without the drafttrace plugin")


def test_serve_without_sglang_arguments(tmp_path: Path) -> None:
    says(run("serve", "--trace-dir", tmp_path), "no SGLang arguments", "--model-path")


def test_serve_with_a_wiring_that_is_none(tmp_path: Path) -> None:
    done = run("serve", "--trace-dir", tmp_path, "--wiring", "B0,x", "--", "--model-path", "m")
    says(done, "wiring", "'x' is no boundary")


def test_serve_into_a_folder_that_cannot_be_made() -> None:
    says(
        run("serve", "--trace-dir", "/proc/none/traces", "--", "--model-path", "m"), "cannot be made", "--trace-dir"
    )


def test_usage_errors_exit_with_2() -> None:
    done = run("diff")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_package_that_is_missing_is_named() -> None:
    """Without torch (`pip install --no-deps`), `replay` ended in a traceback that called it a bug."""
    pair = Path(__file__).resolve().parents[2] / "pairs/tiny-kimi"
    arguments = ["replay", "--draft", pair / "draft", "--target", pair / "target", pair / "dump/data_0.pt"]
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom drafttrace.tracer.cli import main\n"
        f"sys.argv = {['drafttrace', *map(str, arguments)]!r}\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    says(done, "The package torch is not installed", "pip install torch")
