"""The runs of ``drafttrace watch``: a cold and a warm request, their traces, and what a run says."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from drafttrace.tracer import canary, interrupts
from drafttrace.tracer.canary import COLD, WARM, Run
from drafttrace.tracer.client import Client, Prompt, Sampling
from drafttrace.tracer.commands.record import new_corner, parse_taps, record_one
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.terminal import reader_left

if TYPE_CHECKING:
    from drafttrace.compare.thresholds import Noise, Thresholds
    from drafttrace.tracer.capture import Capture


@dataclass
class Repeats:
    """How far the server's answers to one request lie apart; None until two of them were compared."""

    noise: Noise | None = None


@dataclass(frozen=True)
class Canary:
    """What is repeated, where, and how it is judged. sampling: greedy, as many tokens as the first trace has.

    known: faults that the first trace has by itself. repeats: the server's own noise, measured once.
    most_kept: drifted traces that the folder may hold; a server that stays wrong must not fill the disk.
    """

    client: Client
    folder: Path
    first: Capture
    first_accept: float | None
    prompt: Prompt
    sampling: Sampling
    warm: bool
    most_drop: float
    thresholds: Thresholds
    token: str | None
    timeout: float
    keep_all: bool
    known: frozenset[str] = frozenset()
    most_kept: int = 20
    repeats: Repeats = field(default_factory=Repeats)

    def run(self, number: int) -> Iterator[Run]:
        """A cold request and, after it, a warm one; a request that fails is a run with a problem."""
        corner = new_corner()
        cold_ok = True
        for kind in (COLD, WARM) if self.warm else (COLD,):
            utc = now()
            trace = free_place(self.folder, utc, kind)
            try:
                run = self._one(number, utc, kind, trace, corner, cold_ok)
            except DrafttraceError as error:
                run = canary.failed(number, utc, kind, str(error))
            except Exception as error:  # a canary runs for months, and its metrics with it
                run = canary.failed(number, utc, kind, _bug(error))
            if trace.exists() and (self.keep_all or (run.drift and self._held() <= self.most_kept)):
                run = replace(run, trace=str(trace))
            else:
                trace.unlink(missing_ok=True)
            cold_ok = cold_ok and run.compared and not run.drift
            yield run

    def _held(self) -> int:
        """Traces of runs in the folder, the latest among them."""
        return sum(len([*self.folder.glob(f"*-{kind}.h5")]) for kind in (COLD, WARM))

    def _one(self, number: int, utc: str, kind: str, trace: Path, corner: str, cold_ok: bool) -> Run:
        from drafttrace.compare.diff import diff
        from drafttrace.tracer.open import open_capture

        self._record(trace, corner)
        taken = open_capture(str(trace))
        if kind == COLD and self.repeats.noise is None:
            self.repeats.noise = self._repeated(taken)
        result = diff(taken, self.first, thresholds=canary.bounds(self.thresholds), noise=self.repeats.noise)
        return canary.judged(
            number, utc, kind, result, self.first_accept, self.most_drop, cold_ok, self.known, self.repeats.noise
        )

    def _record(self, trace: Path, corner: str) -> None:
        record_one(
            self.client,
            self.prompt,
            self.sampling,
            trace,
            taps=parse_taps("none", None),  # the first trace has the layer sweep
            token=self.token,
            force=True,
            timeout=self.timeout,
            quiet=True,
            corner=corner,
        )

    def _repeated(self, cold: Capture) -> Noise | None:
        """The noise between a cold request and another one right after it; None where they cannot be compared.

        Not against the first trace: that may be of a server which is no more.
        """
        from drafttrace.compare.noise_pair import measure_noise
        from drafttrace.tracer.open import open_capture

        trace = free_place(self.folder, now(), "repeat")
        try:
            self._record(trace, new_corner())
            return measure_noise(cold, open_capture(str(trace)))
        except DrafttraceError:
            return None  # the run is judged by the limits of a diff, and the next one tries again
        finally:
            trace.unlink(missing_ok=True)


def _bug(error: Exception) -> str:
    """The problem of a run that ended in an error of our own."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return (
        f"drafttrace itself failed ({type(error).__name__}: {error}, at {place}); report it with the line of "
        "'drafttrace --version --verbose'."
    )


def free_place(folder: Path, utc: str, kind: str) -> Path:
    """Where a run's trace goes: a second run in the same second must not replace the first's."""
    second = utc.replace(":", "")
    names = itertools.chain([second], (f"{second}-{number}" for number in itertools.count(2)))
    return next(place for name in names if not (place := folder / f"{name}-{kind}.h5").exists())


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def canary_of(
    client: Client,
    folder: Path,
    place: Path,
    warm: bool,
    accept_drop: float,
    judged_by: Thresholds,
    token: str | None,
    timeout: float,
    keep_all: bool,
    keep: int,
) -> Canary:
    """The canary whose first trace is at ``place``. Raises DrafttraceError where that cannot be repeated."""
    from drafttrace.compare.acceptance import acceptance_of
    from drafttrace.compare.diff import diff
    from drafttrace.tracer.open import open_capture

    first = open_capture(str(place))
    ids, sampling = canary.repeated(first)
    already = diff(first, first, thresholds=judged_by)
    return Canary(
        client=client,
        folder=folder,
        first=first,
        first_accept=acceptance_of(first, None).observed,
        prompt=Prompt(input_ids=ids),
        sampling=sampling,
        warm=warm,
        most_drop=accept_drop,
        thresholds=judged_by,
        token=token,
        timeout=timeout,
        keep_all=keep_all,
        known=frozenset(canary.faults_of(already)),
        most_kept=keep,
    )


def repeat(canary_: Canary, every: float, count: int | None, told: Callable[[Run], None]) -> list[Run]:
    """Run the canary ``count`` times (None: until Ctrl-C), ``every`` seconds; a late run is not made up for."""
    runs: list[Run] = []
    number = 0
    try:
        while count is None or number < count:
            number += 1
            began = time.monotonic()
            for run in canary_.run(number):
                runs.append(run)
                told(run)
            if reader_left():
                break
            if count is None or number < count:
                time.sleep(max(0.0, began + every - time.monotonic()))
    except KeyboardInterrupt:
        interrupts.take()
    return runs
