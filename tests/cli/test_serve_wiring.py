"""``drafttrace serve --wiring``: what cannot work is refused in one sentence, and no server is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGET, DRAFT = ROOT / "pairs/tiny-kimi/target", ROOT / "pairs/tiny-kimi/draft"
LAYERS = json.loads((TARGET / "config.json").read_text())["num_hidden_layers"]
SERVED = "drafttrace-test: SGLang was started"


EAGLE3 = ("--speculative-algorithm", "EAGLE3")
BOTH = ("--model-path", str(TARGET), "--speculative-draft-model-path", str(DRAFT))


def serve(folder: Path, wiring: str, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """``drafttrace serve`` with an ``sglang`` first on the path that only says that it was started.

    The hub cache is ``folder/hub``.
    """
    package = folder / "site/sglang"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(f"print({SERVED!r})")
    given = arguments or (*BOTH, *EAGLE3)
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "serve", "--trace-dir", folder / "traces"]
    return subprocess.run(
        [*map(str, command), "--wiring", wiring, "--", *map(str, given)],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": str(folder / "site"),
            "NO_COLOR": "1",
            "HF_HUB_CACHE": str(folder / "hub"),
            **env,
        },
    )


@pytest.mark.parametrize(
    ("wiring", "words"),
    [
        ("B0,B3", "gives 2 slots"),
        ("B0,B3,B31,B59", "name 3 boundaries"),
        (f"B0,B3,B{LAYERS + 1}", f"name boundaries from B0 to B{LAYERS}"),
        ("B0,B3,B3", "names B3 twice"),
        ("embed,0,3", "names B0 twice"),
        ("B0,,B3", "'' is no boundary"),
        ("", "'' is no boundary"),
        ("B-1,B3,B31", "'B-1' is no boundary"),
        ("0x3,B1,B2", "'0x3' is no boundary"),
        ("three of them", "'three of them' is no boundary"),
    ],
)
def test_a_wiring_that_cannot_work_is_refused_before_any_server(tmp_path: Path, wiring: str, words: str) -> None:
    """Counts and ranges were told only by a server that had loaded both models, in a traceback, with exit code 137."""
    done = serve(tmp_path, wiring)
    assert done.returncode == 2 and words in done.stderr, (done.returncode, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert SERVED not in done.stdout and not (tmp_path / "traces").exists()


def test_a_draft_of_another_width_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    config = json.loads((TARGET / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "hidden_size": 100}))
    done = serve(tmp_path, "B0,B3,B31", "--model-path", target, f"--speculative-draft-model-path={DRAFT}")
    assert done.returncode == 2 and "its slots are 96 wide" in done.stderr and SERVED not in done.stdout


def test_a_draft_of_another_target_is_called_that(tmp_path: Path) -> None:
    """Its fc of 384 columns made it "name 4 boundaries", which would not have helped."""
    other = ROOT / "pairs/tiny-llama/draft"
    done = serve(tmp_path, "B0,B3,B31", "--model-path", TARGET, "--speculative-draft-model-path", other, *EAGLE3)
    assert done.returncode == 2 and "This draft is for another target: its slots are 128 wide" in done.stderr
    assert "boundaries" not in done.stderr and SERVED not in done.stdout


def test_a_wiring_that_works_and_folders_that_are_not_here_reach_the_server(tmp_path: Path) -> None:
    done = serve(tmp_path, f"B{LAYERS},embed,3")
    assert done.returncode == 0 and SERVED in done.stdout, done.stderr
    assert done.stderr == ""
    hub = serve(tmp_path, "B0,B3,B9999", "--model-path", "some-org/some-model", *EAGLE3)
    assert hub.returncode == 0 and SERVED in hub.stdout, hub.stderr
    assert (
        "could not be checked before the start, because the target 'some-org/some-model' is no folder here and not in "
        "the hub cache" in hub.stderr
    )
    assert "the plugin checks the wiring when the models are loaded" in hub.stderr


@pytest.mark.parametrize("config", [("--config", "c.yaml"), ("--config=c.yaml",)])
def test_a_config_file_is_said_to_be_unchecked(tmp_path: Path, config: tuple[str, ...]) -> None:
    """With the models in SGLang's --config, the early check was left out without a word."""
    done = serve(tmp_path, "B0,B3,B9999", *config)
    assert done.returncode == 0 and SERVED in done.stdout, done.stderr
    first, second = done.stderr.strip().splitlines()
    assert "because the target is named in 'c.yaml' and the draft is named in 'c.yaml'" in first
    assert "whether 'c.yaml' asks for EAGLE3" in second and "Traceback" not in done.stderr
    # what the command line says itself is checked all the same
    wrong = serve(tmp_path, "B0,B3,B9999", *config, *BOTH, *EAGLE3)
    assert wrong.returncode == 2 and "names B9999" in wrong.stderr and SERVED not in wrong.stdout


def test_an_unreadable_draft_config_is_said_to_be_unchecked(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text("{")
    done = serve(
        tmp_path,
        "B0,B3",
        "--model-path",
        TARGET,
        "--speculative-draft-model-path",
        draft,
        "--speculative-algo=eagle3",
    )
    assert done.returncode == 0 and SERVED in done.stdout, done.stderr
    assert "the draft cannot be read" in done.stderr and "no valid JSON" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "no effect without speculative decoding; add --speculative-algorithm EAGLE3"),
        (("--speculative-algorithm", "EAGLE"), "no effect under --speculative-algorithm EAGLE,"),
        (("--speculative-algorithm=NGRAM",), "no effect under --speculative-algorithm NGRAM,"),
        ((*EAGLE3, "--speculative-algo", "nextn"), "no effect under --speculative-algorithm nextn,"),
    ],
)
def test_a_wiring_without_eagle3_is_refused_before_any_server(
    tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    """SGLang started and the wiring did nothing."""
    done = serve(tmp_path, "B0,B3,B31", *BOTH, *more)
    assert done.returncode == 2 and words in done.stderr and SERVED not in done.stdout, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def fetched(cache: Path, name: str, folder: Path, commit: str = "c0ffee", ref: str | None = "main") -> None:
    """``folder`` as the hub's library leaves it in its cache: files are links into blobs."""
    repository = cache / f"models--{name.replace('/', '--')}"
    for path in folder.iterdir():
        (repository / "blobs").mkdir(parents=True, exist_ok=True)
        (repository / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
        blob = repository / "blobs" / f"{commit}-{path.name}"
        blob.write_bytes(path.read_bytes())
        (repository / "snapshots" / commit / path.name).symlink_to(Path("../../blobs") / blob.name)
    if ref is not None:
        (repository / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(commit)


HUB = ("--model-path", "org/target", "--speculative-draft-model-path", "org/draft", *EAGLE3)


def test_names_of_the_hub_are_checked_in_the_hub_cache(tmp_path: Path) -> None:
    """A name of the hub was left to the server, although its config and its weights lay on this machine."""
    cache = tmp_path / "hub"
    fetched(cache, "org/target", TARGET)
    fetched(cache, "org/draft", DRAFT)
    for wiring, words in (("B0,B3,B9999", "names B9999"), ("B0,B3", "gives 2 slots")):
        done = serve(tmp_path, wiring, *HUB)
        assert done.returncode == 2 and words in done.stderr and SERVED not in done.stdout, done.stderr
        assert "hub cache: 'org/target' in" in done.stderr and "snapshots/c0ffee" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    right = serve(tmp_path, "B0,B3,B31", *HUB)
    assert right.returncode == 0 and SERVED in right.stdout and right.stderr == "", right.stderr


def test_the_revision_that_is_served_is_the_one_that_is_checked(tmp_path: Path) -> None:
    cache, wide = tmp_path / "hub", tmp_path / "wide"
    wide.mkdir()
    config = json.loads((TARGET / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 12}))
    fetched(cache, "org/target", TARGET)
    fetched(cache, "org/target", wide, "beef", "refs-of/pr-1")
    fetched(cache, "org/draft", DRAFT)
    assert serve(tmp_path, "B0,B3,B31", *HUB).returncode == 0
    for revision in ("refs-of/pr-1", "beef"):  # a branch, and a commit
        done = serve(tmp_path, "B0,B3,B31", *HUB, "--revision", revision)
        assert done.returncode == 2 and "the target has 12 layers" in done.stderr, done.stderr
    unknown = serve(tmp_path, "B0,B3,B31", *HUB, "--revision=v9")
    assert unknown.returncode == 0 and "'org/target' is no folder here and not in the hub cache" in unknown.stderr
    out = serve(tmp_path, "B0,B3,B31", *HUB, "--revision=../../../..")
    assert out.returncode == 0 and "not in the hub cache" in out.stderr


def test_a_half_fetched_draft_is_left_to_the_server_and_said(tmp_path: Path) -> None:
    cache, part = tmp_path / "hub", tmp_path / "part"
    part.mkdir()
    (part / "config.json").write_bytes((DRAFT / "config.json").read_bytes())
    fetched(cache, "org/target", TARGET)
    fetched(cache, "org/draft", part)
    done = serve(tmp_path, "B0,B3", *HUB)
    assert done.returncode == 0 and SERVED in done.stdout, done.stderr
    assert "because the draft cannot be read" in done.stderr and "the plugin checks the wiring" in done.stderr
    # the weights are where the server is told to put them, the config in the usual cache
    fetched(tmp_path / "downloads", "org/draft", DRAFT)
    wrong = serve(tmp_path, "B0,B3", *HUB, "--download-dir", tmp_path / "downloads")
    assert wrong.returncode == 2 and "gives 2 slots" in wrong.stderr, wrong.stderr


def test_another_hub_is_not_looked_up_in_this_ones_cache(tmp_path: Path) -> None:
    fetched(tmp_path / "hub", "org/target", TARGET)
    done = serve(tmp_path, "B0,B3,B9999", *HUB, SGLANG_USE_MODELSCOPE="true")
    assert done.returncode == 0 and "could not be checked before the start" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ("--dir", "X", "--", *BOTH),
            "'--dir' before '--' is no option of 'drafttrace serve'; write it after '--' if it is",
        ),
        (("--dir", "X", "--", *BOTH), " --dir X', or give --trace-dir."),
        (("--tokn=x", "--", *BOTH), "'--tokn' before '--' is no option of 'drafttrace serve'; write"),
        (("--tokn=x", "--", *BOTH), ", or give --token."),
        (("--tp", "2", "--", *BOTH), "if it is SGLang's, as in 'drafttrace serve -- --model-path"),
        (("stray", "--", *BOTH), "'stray' before '--' is no option"),
        (("--dir", "X", "--"), "'--dir' before '--'"),
    ],
)
def test_an_option_before_the_dashes_that_is_not_ours_does_not_go_to_sglang(
    given: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """``serve --dir X -- ...`` started SGLang with '--dir X', and traces went elsewhere."""
    done = subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", "serve", *given], capture_output=True, text=True, timeout=120,
        cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert list(tmp_path.iterdir()) == []
