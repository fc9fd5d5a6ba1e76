"""Usage errors are one sentence with what happened, the value and the remedy: typer drew a box around them."""

from __future__ import annotations

import pytest

from drafttrace.tracer import cli
from drafttrace.tracer.usage_errors import PROGRAM


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command line prints on standard error for what cannot be used."""
    monkeypatch.setattr("sys.argv", [PROGRAM, *arguments])
    monkeypatch.setattr(cli.gc, "disable", lambda: None)  # the other tests of this process want it
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    return said.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("diff", "--jsn", "x"),
            "'--jsn' is no option of 'drafttrace diff'; give --json, or look at 'drafttrace diff --help'.",
        ),
        (("diff", "-z"), "'-z' is no option of 'drafttrace diff'; look at 'drafttrace diff --help'."),
        (
            ("--versoin",),
            "'--versoin' is no option of 'drafttrace'; give --version, or look at 'drafttrace --help'.",
        ),
        (("dif", "a"), "'dif' is no command of drafttrace; give diff, or look at 'drafttrace --help'."),
        (
            ("inspect",),
            "'drafttrace inspect' needs FILE, which is missing; give it, as in 'drafttrace inspect data_0.pt'.",
        ),
        (
            ("inspect", "a", "b"),
            "'drafttrace inspect' takes nothing after FILE, and 'b' is left over; leave it out, or put a name with spaces "
            "into quotes.",
        ),
        (
            ("check", "a"),
            "'drafttrace check' takes no argument, and 'a' is left over; say what it is with one of --trace, --dump, "
            "--target, --draft, leave it out, or put a name with spaces into quotes.",
        ),
        (
            ("doctor", "a"),
            "'drafttrace doctor' takes no argument, and 'a' is left over; leave it out, or put a name with spaces into "
            "quotes.",
        ),
        (("diff", "a", "--json"), "--json needs a value, and none follows it; give it as '--json FILE|-'."),
        (("diff", "--noise", "x"), "--noise needs 2 values, and fewer follow it; give it as '--noise A B'."),
        (
            ("diff", "a", "--quiet=1"),
            "--quiet takes no value, and one was given; leave out what follows its name.",
        ),
        (
            ("inspect", "a", "--sample", "1.5"),
            "'1.5' is no whole number of 0 or more, which --sample needs; give one.",
        ),
        (("watch", "--accept-drop", "3"), "'3' is no number from 0 to 1, which --accept-drop needs; give one."),
        (
            ("convert", "a", "b", "--to", "zip"),
            "'zip' is no value of --to; choose one of trace, safetensors, specforge, speculators-v1, speculators.",
        ),
        (
            ("convert", "a", "b", "--to", "trace", "--lose", "layer-ids", "--lose", "all"),
            "'all' is no value of --lose; choose one of layer-ids, loss-mask, last-state, boundaries, first-token, "
            "recording, sample-numbers, later-passes, other-fields, value-checks.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_usage_error_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert told(monkeypatch, capsys, *arguments) == f"drafttrace: {sentence}\n"


def test_a_missing_option_is_told_with_its_choices_and_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(monkeypatch, capsys, "convert", "a", "b")
    assert said.startswith("drafttrace: 'drafttrace convert' needs --to, which is missing; give one of trace, ")
    assert ", as in 'drafttrace convert " in said and said.count("\n") == 1


def test_every_command_tells_an_unknown_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in cli.COMMANDS:
        said = told(monkeypatch, capsys, command, "--no-such-thing")
        assert said.startswith("drafttrace: '--no-such-thing'") and said.count("\n") == 1, said
        assert f"'drafttrace {command}" in said and ";" in said
