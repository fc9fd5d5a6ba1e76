"""What the environment and the client may ask for, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafttrace.hooks.config import BadSetting, Settings, trace_id_of
from drafttrace.hooks.options import AUTO_ROWS, BadOptions, TapOptions

BASE = {"DRAFTTRACE": "1", "DRAFTTRACE_DIR": "/tmp/traces"}


def test_nothing_is_on_unless_asked_for() -> None:
    assert not Settings.wanted({}) and not Settings.wanted({"DRAFTTRACE": "0"})
    assert Settings.wanted(BASE)


def test_the_environment_of_serve_is_understood() -> None:
    settings = Settings.from_environment(
        {**BASE, "DRAFTTRACE_QUEUE_BYTES": "1000", "DRAFTTRACE_WIRING": "B0,3,31", "DRAFTTRACE_TOKEN": "secret"}
    )
    assert settings.directory == Path("/tmp/traces")
    assert (settings.queue_bytes, settings.wiring, settings.token) == (1000, (0, 3, 31), "secret")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DRAFTTRACE_DIR", "", "DRAFTTRACE_DIR is not set"),
        ("DRAFTTRACE_QUEUE_BYTES", "-5", "DRAFTTRACE_QUEUE_BYTES='-5'"),
        ("DRAFTTRACE_MAX_TRACES", "many", "DRAFTTRACE_MAX_TRACES='many'"),
        ("DRAFTTRACE_WIRING", "B0,x", "'x' is no boundary"),
    ],
)
def test_bad_settings_are_told_with_their_value(name: str, value: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        Settings.from_environment({**BASE, name: value})


@pytest.mark.parametrize(
    ("rid", "expected"),
    [
        ("drafttrace-abc_1-2", "abc_1-2"),
        ("drafttrace-", None),
        ("drafttrace-../../etc/passwd", None),
        ("drafttrace-" + "a" * 65, None),
        ("drafttrace-a\n", None),
        ("other", None),
        (["drafttrace-a"], None),
        (7, None),
    ],
)
def test_only_a_checked_id_names_a_trace(rid: object, expected: str | None) -> None:
    assert trace_id_of(rid) == expected


def test_the_default_sweep_is_bounded() -> None:
    options = TapOptions.parse({})
    assert options.sweep(3) == (0, 1, 2, 3) and options.sweep_rows == AUTO_ROWS
    assert TapOptions.parse({"boundaries": "all"}).sweep_rows is None
    assert TapOptions.parse({"boundaries": "none"}).sweep(3) == ()
    assert TapOptions.parse({"boundaries": [9, 1, 1]}).sweep(3) == (1,)


@pytest.mark.parametrize(
    "taps",
    [
        {"boundaries": "some"},
        {"boundaries": [-1]},
        {"boundaries": []},
        {"boundary_rows": 0},
        {"topk": 0},
        {"embed": 1},
        {"layers": 3},
        {"boundaries": [True]},
    ],
)
def test_taps_that_make_no_sense_are_refused(taps: dict[str, object]) -> None:
    with pytest.raises(BadOptions):
        TapOptions.parse(taps)
