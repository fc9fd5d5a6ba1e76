"""LEFT and REFERENCE the wrong way round: the same verdict, cause and remedy as the right way round, and it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_command import run

import drafttrace
from drafttrace.tracer.trace.redact import redact

KIMI = Path(__file__).resolve().parents[2] / "traces/tiny-kimi"
TRACE, FIXED, DUMP = KIMI / "as-trained.h5", KIMI / "fixed.h5", KIMI / "dump/data_0.pt"
SAID = "given the other way round"


def told(*arguments: str | Path) -> dict[str, object]:
    done = run("diff", *arguments, "--json", "-")
    assert not done.stderr, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    assert result["exit_code"] == done.returncode
    return result


@pytest.mark.parametrize("trace", [TRACE, FIXED])
def test_exchanged_sides_do_not_give_the_opposite_remedy(trace: Path) -> None:
    """`diff data_0.pt trace.h5` advised the wiring that was wrong, at 0.98, and lost the accept length."""
    right, wrong = told(trace, DUMP), told(DUMP, trace)
    for key in ("verdict", "findings", "acceptance", "alignment"):
        assert wrong[key] == right[key], key
    assert wrong["left"]["path"] == str(trace) and SAID in wrong["left"]["notes"][0]  # type: ignore[index]
    assert SAID not in json.dumps(right)


def test_formats_go_with_their_files() -> None:
    assert told(DUMP, TRACE, "--left-format", "SPEC-V1")["findings"] == told(TRACE, DUMP)["findings"]


def test_a_redacted_recording_is_still_one(tmp_path: Path) -> None:
    redact(TRACE, tmp_path / "r.h5", salt=b"0123456789abcdef")
    assert drafttrace.open(tmp_path / "r.h5").about["server_args"] is not None
    done = run("diff", DUMP, tmp_path / "r.h5")
    assert "Make the server capture [B2" not in done.stdout


def test_in_python_paths_and_captures_are_told_apart() -> None:
    right = drafttrace.diff(TRACE, DUMP).findings[0].remedy
    for dump, trace in (
        (DUMP, TRACE),
        (drafttrace.open(DUMP), drafttrace.open(TRACE)),
        (DUMP, drafttrace.open(TRACE)),
    ):
        result = drafttrace.diff(dump, trace)
        assert result.findings[0].remedy == right and SAID in result.left.notes[0]


def test_two_recordings_and_a_converted_dump_stay_as_they_are(tmp_path: Path) -> None:
    assert not drafttrace.diff(TRACE, FIXED).left.path.endswith("fixed.h5")
    drafttrace.convert(DUMP, tmp_path / "dump.h5", "trace", lose=["loss-mask", "layer-ids"])
    result = drafttrace.diff(DUMP, tmp_path / "dump.h5")
    assert result.left.path == str(DUMP) and SAID not in "".join(result.left.notes)
