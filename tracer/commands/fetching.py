"""Brings a finished trace here: the first rank's file, and those of the others where the server writes them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafttrace.tracer import output
from drafttrace.tracer.client import Client, Health, move_into_place
from drafttrace.tracer.errors import OutputExists, ServerProblem


def rank_path(out: Path, rank: int) -> Path:
    """Where the file of another rank goes: beside the first rank's, where ``diff`` looks for it."""
    return out.with_name(f"{out.stem}_rank{rank}{out.suffix}")


def check_places(out: Path, health: Health, *, force: bool) -> None:
    """Raise OutputExists for a file in the way of another rank's, or one that ``diff`` would take for one of this trace."""
    ranks = [rank for rank in health.raw.get("ranks") or () if rank] if health.raw.get("all_ranks") else []
    coming = {rank_path(out, rank) for rank in ranks}
    for path in sorted(coming):
        output.check_writable(path, force=force, what="trace of another rank")
    mine = re.compile(rf"{re.escape(out.stem)}_rank[0-9]+{re.escape(out.suffix)}")
    strays = sorted(path for path in out.parent.iterdir() if mine.fullmatch(path.name) and path not in coming)
    if strays:
        raise OutputExists(
            f"The file '{strays[0]}' would be taken for another rank of '{out}', and this server gives none of that name; "
            "move it away, or give another name for the trace."
        )


def fetch(
    client: Client, trace_id: str, state: Mapping[str, Any], out: Path, *, force: bool, ranks: bool, quiet: bool
) -> tuple[int, tuple[Path, ...]]:
    """Write the trace to ``out``, and with ``ranks`` those of the others beside it. Gives its bytes and their paths.

    Raises ServerProblem for what the server does not give (a trace of which it has nothing is deleted there) and
    OutputExists for what cannot be written here.
    """
    try:
        size = _fetch_one(client, trace_id, out, force=force, quiet=quiet)
    except ServerProblem:
        if not state.get("bytes"):
            with contextlib.suppress(ServerProblem):  # the first error is the one to tell
                client.delete(trace_id)
        raise
    others = []
    for rank in (state.get("ranks") or ()) if ranks else ():
        others.append(rank_path(out, rank))
        _fetch_one(client, f"{trace_id}_rank{rank}", others[-1], force=force, quiet=quiet)
    return size, tuple(others)


def _fetch_one(client: Client, trace_id: str, out: Path, *, force: bool, quiet: bool) -> int:
    part = out.with_name(f".{out.name}.{trace_id}.part")
    try:
        with part.open("wb") as stream, output.byte_progress(f"fetching {out.name}", quiet=quiet) as progress:
            size = client.download(trace_id, stream, progress=progress)
        if not move_into_place(part, out, force=force):
            raise OutputExists(
                f"The trace '{out}' appeared while this one was recorded, and is left alone; record again under "
                f"another name (the new one is still on the server as {trace_id})."
            )
    except OSError as error:
        raise OutputExists(
            f"The trace '{out}' cannot be written ({error.strerror}); make room, or choose another folder "
            f"(it is still on the server as {trace_id})."
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return size
