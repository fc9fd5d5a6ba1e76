"""Ctrl-C ends a command wherever it arrives: one that came inside a finalizer, or in HDF5, was lost."""

from __future__ import annotations

import contextlib
import gc
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
from convert_dumps import specforge

from drafttrace.tracer import cli, interrupts
from drafttrace.tracer.errors import DrafttraceError

POINTS = 25


@pytest.fixture(autouse=True)
def told_of_ctrl_c() -> Iterator[None]:
    """A run of the tests in the background has Ctrl-C ignored."""
    before, report = signal.signal(signal.SIGINT, signal.default_int_handler), sys.unraisablehook
    yield
    interrupts.take()
    signal.signal(signal.SIGINT, before)
    sys.unraisablehook = report


def press() -> None:
    signal.raise_signal(signal.SIGINT)


class Finalizer:
    """Ctrl-C arrives when this goes."""

    def __del__(self) -> None:
        press()


def as_before() -> bool:
    """Whether nothing is left of what a command sets up for Ctrl-C."""
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    return handlers == (signal.default_int_handler, signal.SIG_DFL) and not any(
        signal.getitimer(signal.ITIMER_REAL)
    )


def work(seconds: float = 5.0) -> NoReturn:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)
    pytest.fail("the command went on")


def in_a_finalizer() -> None:
    Finalizer()
    work()


def in_a_finalizer_at_the_end() -> None:
    Finalizer()


def in_garbage() -> None:
    one: Any = Finalizer()
    one.itself = one
    del one
    gc.collect()
    work()


def in_a_clause_that_takes_everything() -> None:
    with contextlib.suppress(BaseException):
        press()
    work()


def in_its_place_another_error() -> None:
    try:
        press()
    except BaseException:
        raise DrafttraceError("The file 'x.h5' is damaged; copy it again.") from None


def plainly() -> None:
    press()
    work()


@pytest.mark.parametrize(
    "lose",
    [
        plainly,
        in_a_finalizer,
        in_a_finalizer_at_the_end,
        in_garbage,
        in_a_clause_that_takes_everything,
        in_its_place_another_error,
    ],
)
def test_ctrl_c_that_is_lost_comes_again(
    lose: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "command_of", lambda _app: lambda **_options: lose())
    monkeypatch.setattr(cli, "keep_values", lambda command: command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130 and as_before()
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_command_that_understands_ctrl_c_ends_as_it_likes() -> None:
    with interrupts.certain():
        try:
            press()
        except KeyboardInterrupt:
            interrupts.take()
        time.sleep(0.02)
    assert as_before()


_TERMINATED = """
import os, signal
from drafttrace.tracer import interrupts
with interrupts.certain():
    try:
        with interrupts.terminated_too():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
    except KeyboardInterrupt:
        interrupts.take()
        print("taken back", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_sigterm_is_ctrl_c_where_a_command_says_so() -> None:
    """`systemctl stop` of a watch left its running trace on the server. (A process of its own: it may end by it.)"""
    done = subprocess.run([sys.executable, "-c", _TERMINATED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "taken back True\n"), done.stderr


def test_where_ctrl_c_is_ignored_it_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts.certain():
        press()
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rung() -> Iterator[list[float]]:
    """When the alarm of whoever calls the command rang."""
    times: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: times.append(time.monotonic()))
    yield times
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_the_alarm_of_the_caller_rings_during_a_command(rung: list[float]) -> None:
    """A time limit set by whoever called was swallowed, though no Ctrl-C came."""
    handler = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 10)
    with interrupts.certain():
        time.sleep(0.2)
        assert len(rung) == 1
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL)[1] == 10


def test_the_alarm_of_the_caller_is_given_back_after_a_lost_ctrl_c(rung: list[float]) -> None:
    handler, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    with pytest.raises(SystemExit), interrupts.certain():
        in_a_finalizer()
    assert signal.getsignal(signal.SIGALRM) is handler and not rung
    time.sleep(0.6)
    assert len(rung) == 1 and 0.3 < rung[0] - began < 0.55


def test_an_alarm_that_the_shell_set_ends_the_command() -> None:
    code = "import time; from drafttrace.tracer import interrupts\nwith interrupts.certain(): time.sleep(20)"
    began = time.monotonic()

    def limit() -> None:  # as `perl -e 'alarm 1; exec @ARGV'` does
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 1)

    ended = subprocess.run([sys.executable, "-c", code], preexec_fn=limit, timeout=30, check=False)
    assert ended.returncode == -signal.SIGALRM and time.monotonic() - began < 10


class AtCall:
    """Presses Ctrl-C at the call of number ``at``, whatever function it is."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if "interrupts" in frame.f_code.co_filename:
            return
        self.count += 1
        if self.count == self.at:
            press()


OPTIONS = ("--to", "trace", "--lose", "loss-mask")


def convert(source: Path, out: Path, at: int | None) -> tuple[object, int]:
    """Exit code and calls of ``drafttrace convert`` with Ctrl-C at one of them."""
    sys.argv = ["drafttrace", "convert", str(source), str(out), *OPTIONS]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = AtCall(at)
    sys.settrace(watcher)
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code, watcher.count
    finally:
        sys.settrace(None)
    return None, watcher.count


def convert_at_every_call(source: Path, folder: Path) -> None:
    convert(source, folder / "first", None)  # imports
    code, calls = convert(source, folder / "whole", None)
    assert code in {None, 0} and (folder / "whole").is_dir()
    for number, at in enumerate(
        [*range(2, calls, max(1, calls // POINTS)), *range(2, 40, 3), *range(calls - 40, calls, 5)]
    ):
        out = folder / f"out{number}"
        code, _calls = convert(source, out, at)
        over = at > calls - 80 and code in {None, 0} and out.is_dir()  # it came when all was done
        assert code == 130 or over, (at, calls, code)
        assert as_before(), at
        if number % 10 == 5 and not out.is_dir():  # the same command goes on from there
            assert convert(source, out, None)[0] in {None, 0}


@pytest.mark.slow
def test_ctrl_c_ends_a_conversion_at_every_call(tmp_path: Path) -> None:
    """Once in seven tries the command went on, or ended with another exit code.

    In a process of its own: a Ctrl-C that comes again after the command's end is a failure here, not the end of the tests.
    """
    source = specforge(tmp_path / "dump", range(2))
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; from pathlib import Path; import test_interrupts as tests; "
        f"tests.convert_at_every_call(Path({str(source)!r}), Path({str(tmp_path)!r})); print('all ended')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout.split()[-2:]) == (0, ["all", "ended"]), ended.stderr[-3000:]


@pytest.mark.slow
def test_ctrl_c_ends_a_conversion_at_any_time(tmp_path: Path) -> None:
    source = specforge(tmp_path / "dump", range(200))
    command = [sys.executable, "-c", "from drafttrace.tracer.cli import main; main()"]
    for number in range(12):
        out = tmp_path / f"out{number}"
        with subprocess.Popen(
            [*command, "convert", source, out, *OPTIONS],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A run of the tests in the background has Ctrl-C ignored, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process:
            began = time.monotonic()
            while not list(tmp_path.glob(f".{out.name}.unfinished")) and process.poll() is None:
                time.sleep(0.002)
            time.sleep(0.013 * number)
            process.send_signal(signal.SIGINT)
            told, _nothing = process.communicate(timeout=20)
            assert (process.returncode, told) == (130, b"") or out.is_dir(), (number, time.monotonic() - began)
