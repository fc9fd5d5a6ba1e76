"""Model names of the hub are found in its cache, wherever its variables put it, and nothing else is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drafttrace.compare.audit.check import check
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.hub_cache import cached_snapshots, is_hub_name
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.served_paths import folder_of, served_path

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "pairs/tiny-kimi"
VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "SGLANG_USE_MODELSCOPE")


def fetched(cache: Path, name: str, folder: Path, commit: str = "c0ffee") -> Path:
    """A snapshot of ``folder`` in a hub cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    shutil.copytree(folder, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    return snapshot


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "value", "place"),
    [
        (None, "", ".cache/huggingface/hub"),
        ("XDG_CACHE_HOME", "x", "x/huggingface/hub"),
        ("HF_HOME", "h", "h/hub"),
        ("HUGGINGFACE_HUB_CACHE", "old", "old"),
        ("HF_HUB_CACHE", "new", "new"),
    ],
)
def test_the_cache_is_where_the_hubs_own_library_has_it(
    nothing_set: pytest.MonkeyPatch, tmp_path: Path, variable: str | None, value: str, place: str
) -> None:
    if variable is not None:
        nothing_set.setenv(variable, f"~/{value}")
    snapshot = fetched(tmp_path / place, "org/draft", PAIR / "draft")
    assert cached_snapshots("org/draft") == (snapshot,)
    assert cached_snapshots("org/draft", revision="c0ffee") == (snapshot,)
    assert cached_snapshots("org/draft", revision="v2") == cached_snapshots("org/other") == ()


@pytest.mark.parametrize("text", ["/a/b", "./a", "a/b/c", "../a", "a/..", "a b/c", "", "s3://a/b", "a/b\n", "~/a"])
def test_what_is_no_hub_name_is_never_looked_up(text: str) -> None:
    assert not is_hub_name(text) and cached_snapshots(text) == ()


def test_hub_names_are_written_with_and_without_an_owner() -> None:
    assert is_hub_name("gpt2") and is_hub_name("org/Model-7B_v1.5")


def with_arguments(**arguments: str) -> Capture:
    from dataclasses import replace

    capture = open_capture(str(PAIR / "dump/data_0.pt"))
    return replace(capture, about={**capture.about, "server_args": arguments})


def test_a_trace_served_by_hub_name_finds_its_folders(nothing_set: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its target and draft lay in the hub cache, and the user was asked for their folders."""
    cache = tmp_path / ".cache/huggingface/hub"
    trace = with_arguments(model_path="org/target", speculative_draft_model_path="org/draft")
    with pytest.raises(DrafttraceError, match="no folder on this machine and not in its hub cache"):
        folder_of(None, [trace], "draft")
    snapshot = fetched(cache, "org/draft", PAIR / "draft")
    assert folder_of(None, [trace], "draft") == snapshot and served_path(trace, "draft") == str(snapshot)
    newer = with_arguments(speculative_draft_model_path="org/draft", speculative_draft_model_revision="v2")
    with pytest.raises(DrafttraceError, match="not in its hub cache"):
        folder_of(None, [newer], "draft")


def test_check_takes_hub_names(nothing_set: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / ".cache/huggingface/hub"
    fetched(cache, "org/target", PAIR / "target")
    with pytest.raises(DrafttraceError, match=r"'org/draft' is no folder here, and the hub cache .* no snapshot"):
        check(Path("org/target"), Path("org/draft"))
    fetched(cache, "org/draft", PAIR / "draft")
    by_name = check(Path("org/target"), Path("org/draft"))
    by_folder = check(PAIR / "target", PAIR / "draft")
    assert [f.id for f in by_name.findings] == [f.id for f in by_folder.findings] != []


def test_a_cache_without_a_named_main_is_not_said_to_hold_nothing(
    nothing_set: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fetched by its commit, a model has a snapshot and no refs/main: "holds no snapshot of it", it said."""
    cache = tmp_path / ".cache/huggingface/hub"
    only = fetched(cache, "org/draft", PAIR / "draft")
    repository = only.parents[1]
    (repository / "refs/main").unlink()
    result = check(PAIR / "target", Path("org/draft"))  # the only one is taken, and named
    assert f"The draft 'org/draft' is {only} of the hub cache." in result.notes
    assert cached_snapshots("org/draft") == (only,) and cached_snapshots("org/draft", revision="v2") == ()

    shutil.copytree(only, repository / "snapshots/decade")
    with pytest.raises(
        DrafttraceError, match=r"no revision of it is named.*refs/main.*c0ffee.*decade.*--draft"
    ) as said:
        check(PAIR / "target", Path("org/draft"))
    assert "holds no snapshot" not in str(said.value) and cached_snapshots("org/draft") == ()

    (repository / "refs/main").write_text("abcdef")
    with pytest.raises(
        DrafttraceError, match=r"refs/main names no snapshot that is there .*c0ffee.*fetch it again"
    ):
        check(PAIR / "target", Path("org/draft"))
    (repository / "refs/main").write_text("decade")
    (repository / "snapshots/decade/config.json").unlink()
    with pytest.raises(DrafttraceError, match=r"its snapshot .*decade has no config\.json; .* fetch it whole"):
        check(PAIR / "target", Path("org/draft"))
    nothing_set.setenv("SGLANG_USE_MODELSCOPE", "true")
    with pytest.raises(DrafttraceError, match="would ask another hub"):
        check(PAIR / "target", Path("org/draft"))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["check", "--target", "", "--draft", str(PAIR / "draft")], "--target"),
        (["check", "--target", str(PAIR / "target"), "--draft="], "--draft"),
        (["check", "--target", str(PAIR / "target"), "--draft", str(PAIR / "draft"), "--md", ""], "--md"),
        (["replay", "a.h5", "--target", ""], "--target"),
        (["reference", "--prompt", "Bob", "-o", "", "--target", "x"], "--output"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_an_empty_path_is_not_the_working_folder(words: list[str], name: str) -> None:
    """It said ". has no config.json"."""
    done = subprocess.run([sys.executable, "-m", "drafttrace.tracer.cli", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"drafttrace: {name} is empty; give a path") and done.stderr.count("\n") == 1
