"""The trace folder: names, states and budgets. It is the only thing that the processes of a server share.

``<id>.request.json`` what the client asked for; ``<id>.h5`` the trace; ``<id>.state.json`` what the scheduler says of
it; ``.status/*.json`` what each process says of itself. Every name is built from a checked id, so nothing outside the
folder can be named.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafttrace.hooks.config import STORED_ID, Settings, owners_of, parent_of, rank_of, rank_part

WAITING, RECORDING, COMPLETE, INCOMPLETE = "waiting", "recording", "complete", "incomplete"
_GONE = "the server process that was recording it is gone; the file holds every frame that it flushed"
_ENDED = "the server that it was asked of ended before a request with its rid began; ask for another one"
_ALONE = "nothing is known of it but its file, which was put here or outlived what stood beside it"


@dataclass(frozen=True)
class TraceState:
    """One trace as clients see it. bytes: size of the file; rows: handed to the writer so far; created: unix time."""

    id: str
    state: str
    bytes: int
    rows: int
    reason: str | None
    created: float

    @property
    def finished(self) -> bool:
        return self.state in (COMPLETE, INCOMPLETE)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace ``path`` in one step, so that a reader never sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(json.dumps(data, default=str), encoding="utf-8")
    os.replace(draft, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in ``path``; None where there is none or it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def birth(pid: int) -> str | None:
    """When a process was started, in the kernel's own unit; None where that cannot be known.

    Containers give the same numbers to the processes of every run: a number alone does not name a process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else None


def identity() -> dict[str, Any]:
    """What names this process in a file of the trace folder."""
    return {"pid": os.getpid(), "birth": _own_birth(os.getpid())}


@functools.cache
def _own_birth(pid: int) -> str | None:
    """As :func:`birth`, asked once in every process: it is said four times a second while a request is traced."""
    return birth(pid)


def alive(said: Mapping[str, Any]) -> bool:
    """Whether the process that wrote ``said`` (with :func:`identity`) still runs."""
    pid, born = said.get("pid"), said.get("birth")
    if not isinstance(pid, int):
        return False
    if born is not None and (now := birth(pid)) is not None and now != born:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class Store:
    """The trace folder of one server. wait_seconds: how long an asked-for trace counts as waiting for its request."""

    def __init__(self, directory: Path, wait_seconds: float = Settings.wait_seconds) -> None:
        self.directory = directory
        self._wait_seconds = wait_seconds
        self.status_directory = directory / ".status"
        self._used = (float("-inf"), 0)
        self._said: dict[str, dict[str, Any]] = {}

    def create(self) -> bool:
        """Make the folder; whether there was none. Raises OSError where that is impossible."""
        is_new = not self.directory.exists()
        self.status_directory.mkdir(parents=True, exist_ok=True)
        return is_new

    def remove_empty(self) -> None:
        """Take the folder away again where nothing was ever written into it: the server did not come up."""
        with contextlib.suppress(OSError):
            self.status_directory.rmdir()
            self.directory.rmdir()

    def request_path(self, trace_id: str) -> Path:
        return self.directory / f"{_checked(trace_id)}.request.json"

    def state_path(self, trace_id: str) -> Path:
        return self.directory / f"{_checked(trace_id)}.state.json"

    def trace_path(self, trace_id: str) -> Path:
        return self.directory / f"{_checked(trace_id)}.h5"

    def rank_path(self, trace_id: str, rank: int) -> Path:
        """Where rank ``rank`` (not the first) keeps its hashes until the trace is finished."""
        return self.directory / f"{_checked(trace_id)}.rank{int(rank)}.npz"

    def known(self, trace_id: str) -> bool:
        """Whether the id is taken."""
        return self.request_path(trace_id).exists() or self.trace_path(trace_id).exists()

    def state(self, trace_id: str) -> TraceState | None:
        """What stands in the folder about ``trace_id``; None for an id that nobody asked for."""
        request = read_json(self.request_path(trace_id))
        said = read_json(self.state_path(trace_id))
        path = self.trace_path(trace_id)
        size = path.stat().st_size if path.exists() else 0
        if request is None and said is None:
            return TraceState(trace_id, INCOMPLETE, size, 0, _ALONE, path.stat().st_mtime) if size else None
        created = float((request or said or {}).get("created", 0.0)) or (path.stat().st_mtime if size else 0.0)
        if said is None:
            parts = ", ".join(self.parts(trace_id))
            why = f"the request was a batch; each part has a trace of its own: {parts}" if parts else None
            why = why or self._lapsed(request or {}, created, size)
            return TraceState(trace_id, INCOMPLETE if why else WAITING, size, 0, why, created)
        state, reason = str(said.get("state", RECORDING)), said.get("reason")
        if state == RECORDING and not alive(said):
            state, reason = INCOMPLETE, _GONE
        return TraceState(trace_id, state, size, int(said.get("rows", 0)), reason, created)

    def _lapsed(self, request: Mapping[str, Any], created: float, size: int) -> str | None:
        """Why nobody needs to wait for a trace any more whose request has not begun, in words; None while one has to."""
        if "pid" in request and not alive(request):
            return _GONE if size else _ENDED
        if time.time() - created <= self._wait_seconds:
            return None
        return (
            f"no request with its rid began within {self._wait_seconds:.0f} seconds, so it does not wait any longer; if "
            "the server refused the request, its answer said why (a request that still comes is recorded)"
        )

    def ids(self) -> Iterator[str]:
        """Every trace id in the folder."""
        names = set()
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.directory):
                name = entry.name.partition(".")[0]
                if STORED_ID.fullmatch(name):
                    names.add(name)
        yield from sorted(names)

    def states(self) -> list[TraceState]:
        return [state for state in map(self.state, self.ids()) if state is not None]

    def used_bytes(self, max_age: float = 0.0) -> int:
        """Bytes of all files in the folder, counted at most ``max_age`` seconds ago."""
        now = time.monotonic()
        if now - self._used[0] <= max_age:
            return self._used[1]
        total = 0
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.directory):
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        self._used = (now, total)
        return total

    def delete(self, trace_id: str) -> bool:
        """Remove all files of a trace, those of its other ranks and of a batch's parts with it; whether there was one."""
        found = False
        paths: list[Path] = []
        owners = (_checked(trace_id), *self.parts(trace_id))
        for name in (*owners, *(rank_part(owner, rank) for owner in owners for rank in self.ranks(owner))):
            paths += [self.request_path(name), self.trace_path(name), self.state_path(name)]
            paths += self.directory.glob(f"{name}.rank*.npz")
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                found = True
        return found

    def request_of(self, trace_id: str) -> dict[str, Any] | None:
        """What a client asked for under this id or, for a part of a batch, under the id that it is a part of."""
        name: str | None = trace_id
        while name is not None:
            request = read_json(self.request_path(name))
            if request is not None:
                return request
            name = parent_of(name)
        return None

    def parts(self, trace_id: str) -> list[str]:
        """The traces of a batch (several prompts, or n > 1) that was sent under one id."""
        return [
            name
            for name in self.ids()
            if _is_batch_part(name, _checked(trace_id)) and self.has_state(name) and not self._asked_for(name)
        ]

    def ranks(self, trace_id: str) -> list[int]:
        """The other ranks that have a file of their own of this trace, or have begun one (``--all-ranks``)."""
        named = {said: name for name in self.ids() if (said := rank_of(name)) is not None}
        return sorted(
            rank for (owner, rank), name in named.items() if owner == trace_id and not self._asked_for(name)
        )

    def is_rank_part(self, name: str) -> bool:
        """Whether this is another rank's file of a trace, and no trace that a client asked for."""
        return rank_of(name) is not None and not self._asked_for(name)

    def _asked_for(self, name: str) -> bool:
        return self.request_path(name).exists()

    def relative(self, trace_id: str) -> str | None:
        """A trace in the folder whose parts ``trace_id`` would be one of, or which would be one of its own parts."""
        above = (name for name in owners_of(trace_id) if self._asked_for(name))
        return next(above, None) or next((name for name in self.ids() if trace_id in owners_of(name)), None)

    def has_state(self, trace_id: str) -> bool:
        """Whether a scheduler has said anything of this trace."""
        return self.state_path(trace_id).exists()

    def ask(self, trace_id: str, taps: Mapping[str, Any]) -> None:
        """Write down that a client wants this trace. Raises FileExistsError where the id is taken."""
        data = {"id": trace_id, "taps": dict(taps), "created": time.time(), **identity()}
        path = self.request_path(trace_id)
        with open(path, "x", encoding="utf-8") as file:
            json.dump(data, file)

    def write_status(self, name: str, data: Mapping[str, Any]) -> None:
        """What this process says of itself. Raises OSError where the trace folder is gone."""
        self.status_directory.mkdir(exist_ok=True)
        write_json(self.status_directory / f"{name}.json", {**data, **identity(), "written": time.time()})

    def statuses(self) -> list[dict[str, Any]]:
        """What the living processes say of themselves, in the order of their names.

        A process that is alive and whose words are gone (somebody emptied the folder) is taken at its last words.
        """
        with contextlib.suppress(OSError):
            for path in self.status_directory.glob("*.json"):
                data = read_json(path)
                if data is not None:
                    self._said[path.stem] = data
        self._said = {name: data for name, data in self._said.items() if alive(data)}
        return [self._said[name] for name in sorted(self._said)]

    def forget_the_dead(self) -> None:
        """Drop what processes that are gone said of themselves."""
        with contextlib.suppress(OSError):
            for path in self.status_directory.glob("*.json"):
                data = read_json(path)
                if data is None or not alive(data):
                    path.unlink(missing_ok=True)


def _is_batch_part(name: str, trace_id: str) -> bool:
    parent = parent_of(name)
    while parent is not None and parent != trace_id:
        parent = parent_of(parent)
    return parent is not None


def _checked(trace_id: str) -> str:
    if not STORED_ID.fullmatch(trace_id):
        raise ValueError(f"'{trace_id}' is no trace id")
    return trace_id
