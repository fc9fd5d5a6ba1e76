"""Where commands write: what is there already, and names that a terminal or a file cannot hold."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from drafttrace.tracer.errors import OutputExists
from drafttrace.tracer.output import write_bytes

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-kimi/fixed.h5"
DUMP = ROOT / "traces/tiny-kimi/dump/data_0.pt"


def run(*arguments: str | bytes | Path) -> subprocess.CompletedProcess[bytes]:
    """The command line as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", *arguments],
        capture_output=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
    )


def says(done: subprocess.CompletedProcess[bytes], *words: str) -> None:
    """Exit 2 and one sentence on stderr that holds all the words."""
    told = done.stderr.decode(errors="replace")
    assert done.returncode == 2, (done.returncode, done.stdout, told)
    assert told.startswith("drafttrace: ") and len(told.strip().splitlines()) == 1, told
    for word in words:
        assert word in told, (word, told)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Stands for /dev/null, which a test that fails must not break."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("record", "--url", "http://127.0.0.1:9", "--prompt", "x", "--force", "-o"),
        ("convert", DUMP, "--to", "trace", "--force"),
        ("reference", "--target", ROOT / "pairs/tiny-kimi/target", "--prompt", "x", "--force", "-o"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_device_is_never_replaced_by_a_file(arguments: tuple[str | Path, ...], pipe: Path) -> None:
    """``record -o /dev/null --force``, run by root, made /dev/null a trace."""
    says(run(*arguments, pipe), str(pipe), "device or pipe")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_is_no_reference_of_itself(tmp_path: Path) -> None:
    """It was a MATCH with exit code 0, whatever the server had done."""
    (tmp_path / "link.h5").symlink_to(TRACE)
    says(run("diff", TRACE, tmp_path / "link.h5"), "the same file", "REFERENCE")


def test_a_device_is_no_missing_file(pipe: Path) -> None:
    says(run("diff", TRACE, pipe), str(pipe), "device or pipe")


@pytest.mark.parametrize("option", ["--json", "--md", "--html"])
def test_a_report_never_replaces_a_trace(option: str, tmp_path: Path) -> None:
    """``record -o t.h5 --json t.h5`` left 228 bytes of JSON in the trace's place."""
    trace = tmp_path / "t.h5"
    shutil.copy(TRACE, trace)
    says(run("diff", trace, DUMP, option, trace), str(trace), "no report replaces")
    assert trace.read_bytes() == TRACE.read_bytes()


def test_a_report_replaces_a_report(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    for _ in range(2):
        assert run("diff", TRACE, DUMP, "--json", report).returncode == 0
    assert json.loads(report.read_text())["verdict"] == "match"


def test_a_path_that_is_not_utf_8_goes_into_reports(tmp_path: Path) -> None:
    """Half characters cannot be encoded: ``diff --json`` ended in a traceback."""
    name = os.fsencode(tmp_path) + b"/b\xff.h5"
    try:
        shutil.copy(TRACE, name)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    result, report, page = (tmp_path / f"r.{kind}" for kind in ("json", "md", "html"))
    done = run("diff", name, DUMP, "--json", result, "--md", report, "--html", page)
    assert done.returncode == 0, done.stderr
    assert os.fsencode(json.loads(result.read_text())["left"]["path"]) == name
    assert "b\\udcff.h5" in report.read_text() and "b\\udcff.h5" in page.read_text()
    assert json.loads(run("diff", name, DUMP, "--json", "-").stdout)["verdict"] == "match"
    assert run("inspect", name, "--json", "-").returncode == 0


@pytest.mark.parametrize("name", ["[red].h5", "[/red].h5"])
def test_a_path_that_looks_like_markup_is_printed_as_it_is(name: str, tmp_path: Path) -> None:
    trace = tmp_path / name
    trace.parent.mkdir(exist_ok=True)
    shutil.copy(TRACE, trace)
    for command in (("inspect", trace), ("diff", trace, DUMP)):
        done = run(*command)
        assert done.returncode == 0, done.stderr
        assert name in done.stdout.decode().replace("\n", "")


def piped(*arguments: str | Path, shell: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell line, where ``$DT`` is what was asked for."""
    words = shlex.join([sys.executable, "-m", "drafttrace.tracer.cli", *map(str, arguments)])
    return subprocess.run(["bash", "-c", shell.replace("$DT", words)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("trace", "code"), [("fixed.h5", 0), ("as-trained.h5", 1)])
def test_a_reader_that_leaves_early_changes_no_exit_code(
    trace: str, code: int, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``diff … | head -1`` exited with 1, a mismatch, where everything matched."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    for shell in ("$DT | head -1; echo ${PIPESTATUS[0]}", "$DT --json - | true; echo ${PIPESTATUS[0]}"):
        done = piped("diff", TRACE.with_name(trace), DUMP, shell=shell)
        assert done.stdout.splitlines()[-1] == str(code), (shell, done.stderr)
        assert done.stderr == ""


def test_closed_streams_are_no_bug() -> None:
    """Standard output closed: a traceback, and a plea to report the bug."""
    done = piped("diff", TRACE, DUMP, shell="$DT >&-; echo $?")
    assert (done.stdout, done.stderr) == ("0\n", "")
    both = piped("diff", TRACE, DUMP, shell="$DT >&- 2>&-; echo $?")
    assert (both.stdout, both.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("option", "name", "text"),
    [
        ("--json", "config.json", '{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64}'),
        ("--json", "list.json", "[1, 2]"),
        ("--md", "notes.md", "# Mine\n"),
        ("--html", "page.html", "<p>mine</p>"),
        ("--png", "picture.png", "no picture"),
    ],
)
def test_a_report_replaces_only_reports(option: str, name: str, text: str, tmp_path: Path) -> None:
    """``diff --json draft/config.json`` and ``--md notes.md`` replaced the files without a word."""
    (tmp_path / name).write_text(text)
    says(run("diff", TRACE, DUMP, option, tmp_path / name), name, "no report of drafttrace")
    assert (tmp_path / name).read_text() == text
    (tmp_path / name).write_text("")
    assert run("diff", TRACE, DUMP, option, tmp_path / name).returncode == 0
    assert run("diff", TRACE, DUMP, option, tmp_path / name).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_every_commands_json_replaces_its_own(tmp_path: Path) -> None:
    models = ("--target", ROOT / "pairs/tiny-kimi/target", "--draft", ROOT / "pairs/tiny-kimi/draft")
    for command in (
        ("inspect", TRACE),
        ("check", *models),
        ("replay", DUMP, *models),
        ("doctor",),
        ("redact", TRACE, tmp_path / "r.h5", "--force"),
    ):
        told = tmp_path / f"{command[0]}.json"
        codes = [run(*command, "--json", told, "--quiet") for _ in range(2)]
        assert codes[0].returncode == codes[1].returncode, codes[1].stderr
        assert json.loads(told.read_text())


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    """``--md X --json X`` left only one of the two."""
    says(run("diff", TRACE, DUMP, "--md", tmp_path / "x", "--json", tmp_path / "x"), "Two outputs")
    (tmp_path / "link").symlink_to(tmp_path / "y")
    says(run("diff", TRACE, DUMP, "--md", tmp_path / "y", "--html", tmp_path / "link"), "Two outputs")
    assert not (tmp_path / "x").exists()


def test_record_replaces_traces_only(tmp_path: Path) -> None:
    """``record --from-dump D -o D --force`` replaced the dump that it read, ``-o config.json --force`` any file."""
    dump, config = tmp_path / "data_0.pt", tmp_path / "config.json"
    shutil.copy(DUMP, dump)
    config.write_text("{}")
    record = ("record", "--url", "http://127.0.0.1:9", "--force", "--from-dump")
    says(run(*record, dump, "-o", dump), str(dump), "no trace")
    says(run(*record, dump, "-o", config), str(config), "no trace")
    says(run(*record, TRACE, "-o", TRACE), str(TRACE), "the dump that is read")
    with h5py.File(tmp_path / "dump.h5", "w") as plain:  # a dump in HDF5 is no trace either
        plain["ids"] = [1, 2, 3]
    says(run(*record, dump, "-o", tmp_path / "dump.h5"), "dump.h5", "no trace")
    says(run(*record, dump, "-o", "-"), "standard output")
    assert dump.read_bytes() == DUMP.read_bytes() and config.read_text() == "{}"
    assert not Path("-").exists()


def test_sglangs_options_without_the_dashes_are_told() -> None:
    """``serve --model-path X`` said only that there is no such option."""
    says(run("serve", "--model-path", "X"), "--model-path", "drafttrace serve -- --model-path X")


def test_a_failed_report_leaves_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk half a result stayed as ``.a.json.part``."""

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as stream:
            stream.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputExists, match="No space left"):
        write_bytes(tmp_path / "a.json", b"x" * 100)
    assert list(tmp_path.iterdir()) == []
