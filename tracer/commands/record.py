"""``drafttrace record``: send one request to a live server and keep what it computed."""

from __future__ import annotations

import contextlib
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from drafttrace.tracer import output
from drafttrace.tracer.client import Client, Generated, Health, Prompt, Sampling
from drafttrace.tracer.commands import asking
from drafttrace.tracer.commands.common import LIVE, Json, Quiet, Verbose, examples
from drafttrace.tracer.commands.fetching import check_places, fetch
from drafttrace.tracer.commands.prompts import prompt_of_dump, read_ids, read_messages, read_text
from drafttrace.tracer.commands.reading import (
    DumpFormat,
    HiddenSize,
    LastName,
    LastNorm,
    LayerIds,
    MaskName,
    SlotNames,
    TokensName,
    refuse_without_dump,
    said,
)
from drafttrace.tracer.commands.wirings import boundaries_of
from drafttrace.tracer.errors import DrafttraceError, OutputExists, ServerProblem
from drafttrace.tracer.printable import printable


@dataclass(frozen=True)
class Recorded:
    """What one ``record`` produced. ranks: the files of the other ranks, of a server with ``--all-ranks``."""

    path: Path
    trace_id: str
    bytes: int
    complete: bool
    reason: str | None
    rows: Mapping[str, Any] | int | None
    prompt: Prompt
    generated: Generated
    ranks: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        length = self.generated.accept_length
        said = "" if length is None else f", accept length {length:.2f}"
        whole = "" if self.complete else ", incomplete"
        return f"<Recorded {self.path}: {self.bytes / (1 << 20):.1f} MiB{said}{whole}>"

    def to_json(self) -> dict[str, Any]:
        """The machine form of the command."""
        return {
            "trace": str(self.path),
            "ranks": [str(path) for path in self.ranks],
            "id": self.trace_id,
            "bytes": self.bytes,
            "complete": self.complete,
            "reason": self.reason,
            "rows": self.rows,
            "prompt_tokens": self.generated.meta_info.get("prompt_tokens"),
            "completion_tokens": self.generated.meta_info.get("completion_tokens"),
            "accept_length": self.generated.accept_length,
            "text": self.generated.text,
        }


def new_corner() -> str:
    """A part of the prefix cache that no request has used."""
    return f"drafttrace-{secrets.token_hex(8)}"


def check_prompt(prompt: Prompt, sampling: Sampling, health: Health) -> None:
    """Raise DrafttraceError for what the server would refuse or silently cut."""
    limit = health.context_length
    if prompt.input_ids is None and limit is not None and sampling.max_new_tokens >= limit:
        raise DrafttraceError(
            f"--max-new-tokens {sampling.max_new_tokens} leaves no room for a prompt in the server's context length of "
            f"{limit}; lower it."
        )
    if prompt.messages is not None:
        if not prompt.messages:
            raise DrafttraceError("The list of messages is empty; give at least one.")
        return
    if prompt.input_ids is None:
        if not (prompt.text or ""):
            raise DrafttraceError("The prompt is empty; give at least one token.")
        if any("\ud800" <= char <= "\udfff" for char in prompt.text or ""):  # bytes of the command line
            raise DrafttraceError(
                "The prompt is not UTF-8 text; put it into a file and give that with --prompt-file."
            )
        return
    count = len(prompt.input_ids)
    if count == 0:
        raise DrafttraceError("The prompt is empty: it has 0 token ids; give at least one.")
    if health.vocab_size is not None and max(prompt.input_ids) >= health.vocab_size:
        where = next(i for i, token in enumerate(prompt.input_ids) if token >= health.vocab_size)
        raise DrafttraceError(
            f"The token {prompt.input_ids[where]} at position {where} is outside the served model's vocabulary of "
            f"{health.vocab_size}, so the prompt is of another tokenizer; dump again with that of the served model, "
            "or serve the model that the dump was made with."
        )
    if limit is not None and count + sampling.max_new_tokens > limit:
        raise DrafttraceError(
            f"The prompt of {count} tokens and {sampling.max_new_tokens} new ones exceed the server's context length "
            f"of {limit}; lower --max-new-tokens or use a shorter prompt."
        )


def check_taps(taps: Mapping[str, Any], health: Health) -> None:
    """Raise DrafttraceError for a boundary that the served target does not have."""
    asked, layers = taps.get("boundaries"), health.layers
    beyond = [k for k in asked if k > layers] if isinstance(asked, list) and layers is not None else []
    if beyond:
        raise DrafttraceError(
            f"The boundary B{beyond[0]} is not in the served target, which has B0 to B{layers}; give others with "
            "--boundaries."
        )


def record_one(
    client: Client,
    prompt: Prompt,
    sampling: Sampling,
    out: Path,
    *,
    taps: Mapping[str, Any],
    token: str | None = None,
    force: bool = False,
    keep_on_server: bool = False,
    timeout: float = 600.0,
    quiet: bool = False,
    corner: str | None = None,
    ranks: bool = False,
) -> Recorded:
    """Record one request into ``out``. Nothing is sent before the output is known to be writable.

    ranks: fetch the files of the other ranks, too, where the server writes them (``--all-ranks``).
    corner: the request's own part of the prefix cache (default: a new one, so that nothing of it is cached).
    """
    output.check_writable(out, force=force, what="trace")
    health = client.health()
    if health.hooks_missing:
        raise ServerProblem(
            f"A hook did not apply on the server at {client.url}: {health.hooks_missing[0]}; "
            f"run 'drafttrace doctor' there (SGLang {health.sglang_version})."
        )
    check_prompt(prompt, sampling, health)
    check_taps(taps, health)
    if ranks:
        check_places(out, health, force=force)
    trace_id, rid = client.start_trace(taps, token=token)
    try:
        with output.status("the server generates", quiet=quiet):
            generated = client.generate(
                prompt, sampling, rid=rid, extra_key=corner or new_corner(), timeout=timeout
            )
    except (ServerProblem, KeyboardInterrupt):
        with contextlib.suppress(ServerProblem):  # the first error is the one to tell
            client.delete(trace_id)
        raise
    state = client.wait_for_trace(trace_id)
    size, others = fetch(client, trace_id, state, out, force=force, ranks=ranks, quiet=quiet)
    if not keep_on_server:
        client.delete(trace_id)
    return Recorded(
        path=out,
        trace_id=trace_id,
        bytes=size,
        complete=state["state"] == "complete",
        reason=state.get("reason"),
        rows=state.get("rows"),
        prompt=prompt,
        generated=generated,
        ranks=others,
    )


def parse_taps(boundaries: str, rows: int | None) -> dict[str, Any]:
    """The ``taps`` object of the plugin's HTTP interface from the two options. Raises DrafttraceError for what is none."""
    if rows is not None and rows < 1:  # the command line refuses it by itself, Python does not
        raise DrafttraceError(f"The sweep cannot cover {rows} rows (boundary_rows); give 1 or more.")
    word = boundaries.strip().lower()
    chosen = word if word in {"auto", "all", "none"} else list(boundaries_of(boundaries, "boundaries"))
    return {"boundaries": chosen, "boundary_rows": rows}


def _show(recorded: Recorded, reference: str | None) -> None:
    from rich.markup import escape

    console = output.console()
    mib = recorded.bytes / (1 << 20)
    meta = recorded.generated.meta_info
    name = escape(printable(str(recorded.path)))
    console.print(
        f"[bold]{name}[/bold]  {mib:.1f} MiB, {meta.get('prompt_tokens', '?')} prompt tokens, "
        f"{meta.get('completion_tokens', '?')} generated"
    )
    if recorded.generated.accept_length is not None:
        console.print(
            f"accept length {recorded.generated.accept_length:.2f}, as the server counts it: tokens generated over rounds"
        )
    for path in recorded.ranks:
        console.print(f"another rank: {printable(str(path))}", markup=False)
    if not recorded.complete:
        console.print(f"[yellow]The trace is incomplete:[/yellow] {escape(printable(str(recorded.reason)))}")
    other = shlex.quote(reference) if reference is not None else "<training dump>"
    command = f"drafttrace diff {shlex.quote(str(recorded.path))} {other}"
    console.print(f"next: {printable(command)}", markup=False)


def record(
    out: Annotated[Path, typer.Option("-o", "--output", help="The trace to write (HDF5).")] = Path("trace.h5"),
    url: asking.Url = asking.ADDRESS,
    prompt: asking.Text = None,
    prompt_file: asking.TextFile = None,
    messages: asking.Messages = None,
    input_ids: asking.InputIds = None,
    from_dump: asking.FromDump = None,
    whole: asking.Whole = False,
    max_new_tokens: asking.MaxNewTokens = 64,
    temperature: asking.Temperature = 0.0,
    boundaries: Annotated[
        str,
        typer.Option(
            help="Boundaries of the target to sweep: auto (all, on the first rows), all, none, or a list like B3,B31."
        ),
    ] = "auto",
    boundary_rows: Annotated[int | None, typer.Option(min=1, help="Rows that the sweep covers (auto: 64).")] = None,
    dump_format: DumpFormat = None,
    hidden_size: HiddenSize = None,
    layer_ids: LayerIds = None,
    slots: SlotNames = None,
    tokens: TokensName = None,
    last: LastName = None,
    last_norm: LastNorm = None,
    mask: MaskName = None,
    token: asking.Token = None,
    api_key: asking.ApiKey = None,
    keep: asking.Keep = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing trace.")] = False,
    timeout: asking.Timeout = 600.0,
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Record what the server computes for one request.

    Give exactly one of --prompt, --prompt-file, --messages, --input-ids, --from-dump.
    """
    given = [value for value in (prompt, prompt_file, messages, input_ids, from_dump) if value is not None]
    if len(given) != 1:
        raise DrafttraceError(
            f"{len(given)} prompts were given; give exactly one of --prompt, --prompt-file, --messages, --input-ids, "
            "--from-dump."
        )
    dump = said(hidden_size, layer_ids, slots, tokens, last, last_norm, mask, None)
    refuse_without_dump(from_dump, dump_format, dump)
    output.refuse_stdout(out, "A trace")
    output.refuse_twice(out, json_out)
    output.check_writable(out, force=force, what="trace")
    if prompt is not None:
        source = Prompt(text=prompt)
    elif prompt_file is not None:
        source = Prompt(text=read_text(prompt_file, "prompt"))
    elif messages is not None:
        source = Prompt(messages=read_messages(messages))
    elif input_ids is not None:
        source = Prompt(input_ids=read_ids(input_ids))
    else:
        from drafttrace.tracer.open import split_spec

        source = prompt_of_dump(str(from_dump), whole=whole, format=dump_format, dump=dump)
        if out.exists() and out.samefile(split_spec(str(from_dump))[0]):
            raise OutputExists(f"The trace '{out}' would replace the dump that is read; give another name.")
    recorded = record_one(
        Client(url, api_key=api_key),
        source,
        Sampling(max_new_tokens=max_new_tokens, temperature=temperature),
        out,
        taps=parse_taps(boundaries, boundary_rows),
        token=token,
        force=force,
        keep_on_server=keep,
        timeout=timeout,
        quiet=quiet,
        ranks=True,
    )
    output.emit(json_out, recorded.to_json, lambda: _show(recorded, from_dump), quiet=quiet)
    if not recorded.complete:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=LIVE,
        epilog=examples(
            (
                "drafttrace record --from-dump data_0.pt -o trace.h5",
                "the prompt of a training sample",
            ),
            (
                "drafttrace record --url http://gpu-box:30000 --prompt 'Tell me a story.' -o trace.h5",
                "a server elsewhere",
            ),
            (
                "drafttrace record --messages chat.json --max-new-tokens 256 -o trace.h5",
                "through the chat template",
            ),
        ),
    )(record)
