"""``drafttrace watch``: one prompt again and again; says when the server is no longer what it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
from drafttrace.tracer.commands.record import parse_taps, record_one
from drafttrace.tracer.commands.watching import Canary, canary_of, now, repeat
from drafttrace.tracer.errors import DrafttraceError, OutputExists

if TYPE_CHECKING:
    from http.server import HTTPServer

FIRST = "first.h5"


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
    if json_out not in (None, "-"):
        output.check_appendable(Path(str(json_out)))
    values = prometheus.Metrics((COLD, WARM) if warm else (COLD,))
    server = prometheus.serve(values, metrics) if metrics is not None else None
    with interrupts.terminated_too(), _closed(server):
        with _made(folder):
            if not known:
                _record_first(client, source, max_new_tokens, place, token, timeout)
            watched = canary_of(client, folder, place, warm, accept_drop, judged_by, token, timeout, keep_all, keep)
        for told in canary.about_first(watched.first, watched.first_accept, max_new_tokens if known else None):
            print(told, file=sys.stderr, flush=True)
        if not quiet and json_out != "-":
            _tell_begin(watched, place, known, server)
        runs = _run_all(watched, seconds, count, values, json_out, quiet)
    raise typer.Exit(canary.exit_code(runs))


@contextmanager
def _closed(server: HTTPServer | None) -> Iterator[None]:
    """The metrics' server ends with the block, however that ends."""
    try:
        yield
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder is there; what was made for it goes away again, as far as it is empty, where the block fails."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExists(
            f"The folder '{folder}' cannot be made ({error.strerror}); give another --dir."
        ) from None
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for place in made:
                place.rmdir()
        raise


def _record_first(
    client: Client,
    source: Prompt | None,
    max_new_tokens: int | None,
    place: Path,
    token: str | None,
    timeout: float,
) -> None:
    """Record the first trace."""
    chosen = source or Prompt(text=canary.PROMPT)
    taps = parse_taps("auto", None)
    # The canary's own prompt is answered past the end of the text: a model that has little to say draws no draft.
    new = Sampling(max_new_tokens=max_new_tokens or 64, ignore_eos=source is None)
    record_one(client, chosen, new, place, taps=taps, token=token, timeout=timeout, quiet=True)


def _tell_begin(watched: Canary, place: Path, known: bool, server: HTTPServer | None) -> None:
    """The lines before the first run."""
    sizes = f"{len(watched.prompt.input_ids or ())} prompt tokens, {watched.sampling.max_new_tokens} new ones"
    made = canary.origin_of(watched.first) if known else " (just recorded)"
    print(f"{now()}  first trace {place}{made}, {sizes}", flush=True)
    if server is not None:
        print(f"{now()}  metrics at http://{server.server_name}:{server.server_port}/metrics", flush=True)


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
