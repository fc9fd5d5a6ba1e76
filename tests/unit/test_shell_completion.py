"""The shell of ``--install-completion`` and ``--show-completion``."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.shell_completion import OPTIONS, SHELLS, settle_shell

SWITCH = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})


def around(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    """The shell that the program runs in."""

    class ShellDetectionFailure(EnvironmentError):
        pass

    def detect_shell() -> tuple[str, str]:
        if found is None:
            raise ShellDetectionFailure
        return found, f"/bin/{found}"

    module = SimpleNamespace(detect_shell=detect_shell, ShellDetectionFailure=ShellDetectionFailure)
    monkeypatch.setitem(sys.modules, "shellingham", module)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("words", [["{}", "klingon"], ["{}=klingon"], ["-v", "{}", "klingon"]], ids=" ".join)
def test_completion_for_an_unknown_shell_is_refused(option: str, words: list[str]) -> None:
    """`--install-completion nosuch` wrote bash's completion into the home folder, exit code 0."""
    with pytest.raises(DrafttraceError, match=rf"'klingon' is no shell that {option} knows; .*zsh, fish"):
        settle_shell([word.format(option) for word in words])


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_for_the_shell_that_is_named(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--show-completion zsh` printed what the shell around it needs."""
    around(monkeypatch, "bash")
    settle_shell(["--show-completion", shell])
    assert SWITCH in os.environ


def test_a_shell_around_without_completion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """From dash it printed "Shell dash not supported." and no shell that would be."""
    for found, told in (("dash", "The shell here is 'dash'"), (None, "No shell was found")):
        around(monkeypatch, found)
        with pytest.raises(
            DrafttraceError, match=rf"{told}.*name one of bash, zsh, .* behind --install-completion"
        ):
            settle_shell(["--install-completion"])
    around(monkeypatch, "zsh")
    settle_shell(["--install-completion", "-v"])
    assert SWITCH not in os.environ


def test_other_words_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    around(monkeypatch, None)
    settle_shell(["diff", "--show-completion", "klingon"])
    settle_shell(["--version", "--verbose"])
    settle_shell([])
    assert SWITCH not in os.environ
