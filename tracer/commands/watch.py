"""``drafttrace watch``: one prompt again and again; says when the server is no longer what it was."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer import canary, interrupts, output, prometheus
from drafttrace.tracer.canary import COLD, WARM, Run
from drafttrace.tracer.client import Client, Prompt, Sampling
from drafttrace.tracer.commands import asking
from drafttrace.tracer.commands.common import LIVE, Quiet, Verbose, examples
from drafttrace.tracer.commands.prompts import prompt_of_dump, read_ids, read_text, refuse_another
from drafttrace.tracer.commands.reading import (
    DumpFormat,
    HiddenSize,
    LastName,
    LastNorm,
    LayerIds,
    MaskName,
    Said,
    SlotNames,
    TokensName,
    refuse_without_dump,
    said,
)
from drafttrace.tracer.commands.record import new_corner, parse_taps, record_one
from drafttrace.tracer.errors import DrafttraceError, OutputExists
from drafttrace.tracer.terminal import reader_left

if TYPE_CHECKING:
    from drafttrace.compare.thresholds import Noise, Thresholds
    from drafttrace.tracer.capture import Capture

FIRST = "first.h5"


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
        from drafttrace.compare.diff import measure_noise
        from drafttrace.tracer.open import open_capture

        trace = free_place(self.folder, now(), "repeat")
        try:
            self._record(trace, new_corner())
            return measure_noise(cold, open_capture(str(trace)))
        except DrafttraceError:
            return None  # the run is judged by the limits of a diff, and the next one tries again
        finally:
            trace.unlink(missing_ok=True)


def free_place(folder: Path, utc: str, kind: str) -> Path:
    """Where a run's trace goes: a second run in the same second must not replace the first's."""
    second = utc.replace(":", "")
    names = itertools.chain([second], (f"{second}-{number}" for number in itertools.count(2)))
    return next(place for name in names if not (place := folder / f"{name}-{kind}.h5").exists())


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def source_of(
    prompt: str | None, prompt_file: Path | None, ids: Path | None, dump: str | None, format: str | None, told: Said
) -> Prompt | None:
    """The prompt that the options name; None where they name none. format, told: what the dump does not say."""
    refuse_without_dump(dump, format, told)
    given = [value for value in (prompt, prompt_file, ids, dump) if value is not None]
    if len(given) > 1:
        raise DrafttraceError(
            f"{len(given)} prompts were given; give one of --prompt, --prompt-file, --input-ids, --from-dump."
        )
    if prompt is not None:
        return Prompt(text=prompt)
    if prompt_file is not None:
        return Prompt(text=read_text(prompt_file, "prompt"))
    if ids is not None:
        return Prompt(input_ids=read_ids(ids))
    return None if dump is None else prompt_of_dump(dump, format=format, dump=told)


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


def watch(
    first: Annotated[
        Path | None,
        typer.Argument(
            metavar="FIRST", help="The first trace: its prompt is repeated (default: first.h5 in --dir)."
        ),
    ] = None,
    url: asking.Url = asking.ADDRESS,
    every: Annotated[
        str, typer.Option("--every", metavar="10m", help="Time from run to run: 30s, 10m, 1h.")
    ] = "10m",
    count: Annotated[int | None, typer.Option("--count", min=1, help="Stop after so many runs.")] = None,
    prompt: asking.Text = None,
    prompt_file: asking.TextFile = None,
    input_ids: asking.InputIds = None,
    from_dump: asking.FromDump = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            min=1,
            help="Tokens to generate for a new first trace (default: 64).",
            rich_help_panel=asking.PROMPT,
        ),
    ] = None,
    dump_format: DumpFormat = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    last_norm: LastNorm = None,
    mask: MaskName = None,
    folder: Annotated[
        Path, typer.Option("--dir", help="Where the first trace and those that drifted are kept.")
    ] = Path("drafttrace-canary"),
    warm: Annotated[
        bool, typer.Option("--warm/--no-warm", help="After each cold request the same one with its prompt cached.")
    ] = True,
    accept_drop: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="The part of the first accept length that may be lost.")
    ] = 0.25,
    threshold: Annotated[
        list[str] | None, typer.Option("--threshold", metavar="NAME=VALUE", help="Judge by this bound. Repeatable.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="[HOST:]PORT", help="Serve the last values at /metrics, for Prometheus."),
    ] = None,
    keep: Annotated[
        int, typer.Option("--keep", min=0, help="Drifted traces to keep at most, the first ones.")
    ] = 20,
    keep_all: Annotated[
        bool, typer.Option("--keep-all", help="Keep every trace, not only those that drifted.")
    ] = False,
    token: asking.Token = None,
    api_key: asking.ApiKey = None,
    timeout: asking.Timeout = 600.0,
    json_out: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Append one JSON object per run.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Repeat one prompt, compare every answer with the first trace, and say when the server drifts.

    One line per run: the slots' distance to the first trace and the accept length. A run drifts when the states differ
    ([bold]decay[/bold]; [bold]cold-warm[/bold] where only the request with a cached prompt differs), or when the accept
    length falls. States differ when they are further off than the server's own repeats: twice the distance between two
    requests right after each other, or 0.035 where that is less (--threshold match). Ctrl-C ends it.
    The options of the prompt record the first trace, where there is none yet.

    Exit code: 0 nothing drifted, 1 something did, 2 no run could be compared.
    """
    from drafttrace.compare.thresholds import parse_thresholds

    seconds, judged_by = canary.seconds_of(every), parse_thresholds(tuple(threshold or ()))
    dump = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, None)
    source = source_of(prompt, prompt_file, input_ids, from_dump, dump_format, dump)
    client = Client(url, api_key=api_key)
    place = first or folder / FIRST
    known = place.exists()
    if known:
        refuse_another(place, source)
    elif first is not None and source is None:
        raise DrafttraceError(f"The first trace '{first}' is not there; give a prompt to record it with.")
    values = prometheus.Metrics()
    server = prometheus.serve(values, metrics) if metrics is not None else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExists(
            f"The folder '{folder}' cannot be made ({error.strerror}); give another --dir."
        ) from None
    if not known:
        chosen = source or Prompt(text=canary.PROMPT)
        taps = parse_taps("auto", None)
        new = Sampling(max_new_tokens=max_new_tokens or 64)
        try:
            record_one(client, chosen, new, place, taps=taps, token=token, timeout=timeout, quiet=quiet)
        except DrafttraceError:
            if not any(folder.iterdir()):  # nothing came of it
                folder.rmdir()
            raise
    watched = _canary(client, folder, place, warm, accept_drop, judged_by, token, timeout, keep_all, keep)
    for told in canary.about_first(watched.first, watched.first_accept, max_new_tokens if known else None):
        print(told, file=sys.stderr, flush=True)
    if not quiet and json_out != "-":
        sizes = f"{len(watched.prompt.input_ids or ())} prompt tokens, {watched.sampling.max_new_tokens} new ones"
        made = canary.origin_of(watched.first) if known else " (just recorded)"
        print(f"{now()}  first trace {place}{made}, {sizes}", flush=True)
        if server is not None:
            print(f"{now()}  metrics at http://{server.server_name}:{server.server_port}/metrics", flush=True)
    try:
        raise typer.Exit(canary.exit_code(_run_all(watched, seconds, count, values, json_out, quiet)))
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _canary(
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
    from drafttrace.compare.acceptance import acceptance_of
    from drafttrace.compare.diff import diff
    from drafttrace.tracer.open import open_capture

    first = open_capture(str(place))
    ids, new = canary.prompt_of(first)
    already = diff(first, first, thresholds=judged_by)
    return Canary(
        client=client,
        folder=folder,
        first=first,
        first_accept=acceptance_of(first, None).observed,
        prompt=Prompt(input_ids=ids),
        sampling=Sampling(max_new_tokens=new),
        warm=warm,
        most_drop=accept_drop,
        thresholds=judged_by,
        token=token,
        timeout=timeout,
        keep_all=keep_all,
        known=frozenset(canary.faults_of(already)),
        most_kept=keep,
    )


def _run_all(
    watched: Canary,
    seconds: float,
    count: int | None,
    values: prometheus.Metrics,
    json_out: str | None,
    quiet: bool,
) -> list[Run]:
    def told(run: Run) -> None:
        values.add(run)
        if json_out == "-":
            output.write_json(json.dumps(run.to_json()) + "\n")
        elif json_out is not None:
            _append(Path(json_out), json.dumps(run.to_json()) + "\n")
        if json_out != "-" and (not quiet or run.drift):
            print(run.line(), flush=True)

    return repeat(watched, seconds, count, told)


def _append(path: Path, line: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(line)
    except OSError as error:
        raise OutputExists(
            f"The output '{path}' cannot be written ({error.strerror}); give another --json."
        ) from None


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=LIVE,
        epilog=examples(
            (
                "drafttrace watch --url http://127.0.0.1:30000 --every 10m",
                "a canary; the first run is the yardstick",
            ),
            ("drafttrace watch trace.h5 --every 1h --json canary.jsonl", "repeat the prompt of a trace"),
            ("drafttrace watch trace.h5 --every 10m --metrics 9464", "and let Prometheus ask"),
            ("drafttrace watch trace.h5 --count 1", "once, for a health check: exit code 0, 1 or 2"),
        ),
    )(watch)
