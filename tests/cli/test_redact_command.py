"""`drafttrace redact`: a copy that says nothing of the text, and never a trace lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_command import run

from drafttrace.tracer.trace.reader import read_trace

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-kimi/as-trained.h5"
FIXED, DUMP = TRACE.with_name("fixed.h5"), TRACE.parent / "dump/data_0.pt"
PAIR = ROOT / "pairs/tiny-kimi"


def test_a_redacted_copy_still_tells_what_the_trace_told_by_itself(tmp_path: Path) -> None:
    before = json.loads(run("diff", TRACE, "--json", "-").stdout)
    done = run("redact", TRACE, tmp_path / "r.h5", "--drop-embeddings", "--json", tmp_path / "r.json")
    assert done.returncode == 0 and done.stdout.strip().endswith("without token ids and text"), done.stderr
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["output"] == str(tmp_path / "r.h5") and told["bytes"] == (tmp_path / "r.h5").stat().st_size
    after = run("diff", tmp_path / "r.h5", "--json", "-")
    assert [f["id"] for f in json.loads(after.stdout)["findings"]] == [f["id"] for f in before["findings"]]
    tokens = set(read_trace(TRACE).tokens.tolist())
    assert tokens.isdisjoint(read_trace(tmp_path / "r.h5").tokens.tolist())


def test_the_same_salt_keeps_two_copies_comparable(tmp_path: Path) -> None:
    (tmp_path / "salt").write_bytes(b"nobody guesses this")
    prints = []
    for name, salt in (
        ("a.h5", ["--salt-file", tmp_path / "salt"]),
        ("b.h5", ["--salt-file", tmp_path / "salt"]),
        ("c.h5", []),
    ):
        done = run("redact", FIXED, tmp_path / name, *salt, "--json", "-")
        prints.append(json.loads(done.stdout)["salt_fingerprint"])
    assert prints[0] == prints[1] != prints[2]
    assert run("diff", tmp_path / "a.h5", tmp_path / "b.h5").returncode == 0
    for one, two in (("a.h5", "c.h5"), ("a.h5", FIXED), (FIXED, "c.h5"), ("a.h5", DUMP)):
        mixed = run("diff", tmp_path / one, tmp_path / two)
        assert mixed.returncode == 2 and "same --salt-file" in mixed.stderr, mixed.stdout + mixed.stderr
        assert len(mixed.stderr.splitlines()) == 1


def test_no_command_takes_pseudonyms_for_tokens(tmp_path: Path) -> None:
    """A redacted trace was said to have a wrong vocabulary map: its ids lie beyond the vocabulary."""
    assert run("redact", TRACE, tmp_path / "r.h5", "-q").returncode == 0
    models = ("--draft", PAIR / "draft", "--target", PAIR / "target")
    for arguments in (
        ("replay", tmp_path / "r.h5", *models),
        ("reference", "--target", PAIR / "target", "--from", tmp_path / "r.h5", "-o", tmp_path / "states"),
        ("convert", tmp_path / "r.h5", tmp_path / "out.safetensors", "--to", "safetensors"),
        ("record", "--url", "http://127.0.0.1:9", "--from-dump", tmp_path / "r.h5", "-o", tmp_path / "t.h5"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and "is redacted" in done.stderr, (arguments[0], done.stderr)
        assert len(done.stderr.splitlines()) == 1
    seen = run("inspect", tmp_path / "r.h5", "--target", PAIR / "target", "--json", "-")
    assert seen.returncode == 0, seen.stdout
    told = json.loads(seen.stdout)
    assert told["text"] is None and "refuted" not in {check["verdict"] for check in told["checks"]}


@pytest.mark.parametrize(
    ("salt", "words"),
    [(None, "cannot be read"), (b"short", "has 5 bytes"), (b"x" * ((1 << 20) + 1), "more than 1 MiB")],
)
def test_a_salt_that_cannot_be_used(salt: bytes | None, words: str, tmp_path: Path) -> None:
    if salt is not None:
        (tmp_path / "salt").write_bytes(salt)
    done = run("redact", TRACE, tmp_path / "r.h5", "--salt-file", tmp_path / "salt")
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "r.h5").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "r.h5").write_text("mine")
    for out, words in ((tmp_path / "r.h5", "--force"), (TRACE, "the trace itself"), (tmp_path / "no/r.h5", "no")):
        done = run("redact", TRACE, out)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert (tmp_path / "r.h5").read_text() == "mine"
    forced = run("redact", TRACE, "/dev/null", "--force")
    assert forced.returncode == 2 and Path("/dev/null").is_char_device()
    assert run("redact", TRACE, tmp_path / "r.h5", "--force").returncode == 0
    missing = run("redact", tmp_path / "none.h5", tmp_path / "x.h5")
    assert missing.returncode == 2 and len(missing.stderr.splitlines()) == 1
