"""The HTTP routes, mounted into the server's own application and therefore behind its API key.

Nothing outside the trace folder can be named: a path is only ever built from a checked id.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drafttrace.hooks.config import RID_PREFIX, STORED_ID, TRACE_ID, Settings, rank_part
from drafttrace.hooks.options import BadOptions, TapOptions
from drafttrace.hooks.store import RECORDING, WAITING, Store, TraceState

Health = Callable[[], dict[str, Any]]
Answer = tuple[int, dict[str, Any]]


class Service:
    """What the routes do, without HTTP: every method gives a status code and a JSON object."""

    def __init__(self, settings: Settings, store: Store, health: Health) -> None:
        self.settings = settings
        self.store = store
        self.health = health

    def start(self, body: Any) -> Answer:
        """Ask for a trace: ``{"taps": {...}, "id": optional, "token": optional}``."""
        if not isinstance(body, dict):
            return 400, _error('The body is no JSON object; send {"taps": {...}}.')
        wanted = self.settings.token
        if wanted is not None and not hmac.compare_digest(str(body.get("token", "")).encode(), wanted.encode()):
            return 403, _error(
                "This server wants a token to start a trace, and it is missing or wrong; send the one it was started with."
            )
        gone = self._folder_gone()
        if gone is not None:
            return gone
        known = self.health()
        if not known["supported"]:
            return 503, _error(f"The recorder is off: {known['reason']}")
        trace_id = body.get("id", None) or secrets.token_hex(8)
        if not isinstance(trace_id, str) or not TRACE_ID.fullmatch(trace_id):
            return 400, _error(f"The id {trace_id!r} cannot be used; give 1 to 64 letters, digits, '-' and '_'.")
        taps = body.get("taps") or {}
        try:
            if not isinstance(taps, dict):
                raise BadOptions(f"taps is {taps!r}; give an object.")
            TapOptions.parse(taps)
        except BadOptions as error:
            return 400, _error(str(error))
        refusal = self._over_budget()
        if refusal is not None:
            return 429, _error(refusal)
        taken = self._taken(trace_id)
        if taken is not None:
            return taken
        try:
            self.store.ask(trace_id, taps)
            # Another process of the server may have let one in that this one could be taken for.
            taken = self._kin(trace_id)
            if taken is not None:
                self.store.request_path(trace_id).unlink(missing_ok=True)
                return taken
        except FileExistsError:
            return 409, _error(f"There is a trace '{trace_id}' already; delete it or choose another id.")
        except OSError as error:
            return 507, _error(
                f"The trace folder {self.settings.directory} cannot be written ({error.strerror}); make room in it, or "
                "start the server with another --trace-dir."
            )
        return 200, {"id": trace_id, "rid": f"{RID_PREFIX}{trace_id}"}

    def _folder_gone(self) -> Answer | None:
        if self.store.directory.is_dir():
            return None
        return 507, _error(
            f"The trace folder {self.settings.directory} is gone, and what was in it; make it again on the server."
        )

    def _taken(self, trace_id: str) -> Answer | None:
        if self.store.known(trace_id):
            return 409, _error(f"There is a trace '{trace_id}' already; delete it or choose another id.")
        return self._kin(trace_id)

    def _kin(self, trace_id: str) -> Answer | None:
        """The recorder names the parts of a trace (ID_0 in a batch, ID_rank1): no other client may have such a name."""
        kin = self.store.relative(trace_id)
        if kin is None:
            return None
        part, whole = sorted((trace_id, kin), key=len, reverse=True)
        return 409, _error(
            f"The id '{trace_id}' cannot be used beside the trace '{kin}': '{part}' could be a part of '{whole}' (of a "
            f"batch, or of another rank); delete '{kin}' or choose another id."
        )

    def _over_budget(self) -> str | None:
        running = sum(
            1
            for state in self.store.states()
            if state.state in (WAITING, RECORDING) and not self.store.is_rank_part(state.id)
        )
        if running >= self.settings.max_traces:
            return (
                f"{running} traces wait or are being recorded, and {self.settings.max_traces} are allowed at once; "
                "finish or delete some."
            )
        used = self.store.used_bytes()
        if used >= self.settings.max_dir_bytes:
            return f"The trace folder holds {used} bytes of the {self.settings.max_dir_bytes} allowed; delete traces first."
        return None

    def list(self) -> Answer:
        """All traces."""
        keys = ("id", "state", "bytes", "created", "rows", "reason")
        return 200, {"traces": [{key: getattr(state, key) for key in keys} for state in self.store.states()]}

    def find(self, trace_id: str) -> tuple[TraceState | None, Answer]:
        """One trace, or the answer that says that there is none."""
        if not STORED_ID.fullmatch(trace_id):
            return None, (
                400,
                _error(f"The id {trace_id!r} is no trace id; give the one that the start of it answered."),
            )
        gone = self._folder_gone()
        if gone is not None:
            return None, gone
        state = self.store.state(trace_id)
        if state is None:
            return None, (
                404,
                _error(f"There is no trace '{trace_id}'; GET /drafttrace/traces lists those there are."),
            )
        keys = ("id", "state", "bytes", "rows", "reason")
        named = {rank: rank_part(trace_id, rank) for rank in self.store.ranks(trace_id)}
        ranks = [rank for rank, name in named.items() if self.store.trace_path(name).is_file()]
        return state, (200, {**{key: getattr(state, key) for key in keys}, "ranks": ranks})

    def file(self, trace_id: str, *, partial: bool = False) -> tuple[Path | None, Answer]:
        """The file of a trace, or the answer that says why there is none to give. partial: also of one that grows."""
        state, answer = self.find(trace_id)
        if state is None:
            return None, answer
        path = self.store.trace_path(trace_id)
        if not path.is_file():
            reason = (state.reason or "its request has not begun").rstrip(".")
            why = f"The trace '{trace_id}' is {state.state} and has no file: {reason}; record it again."
            return None, (409, _error(why))
        if not state.finished and not partial:
            return None, (409, _error(f"The trace '{trace_id}' is {state.state}; ask again, or add ?partial=1."))
        return path, answer

    def delete(self, trace_id: str) -> Answer:
        """Remove a trace's files."""
        state, answer = self.find(trace_id)
        if state is None:
            return answer
        self.store.delete(trace_id)
        return 200, {"id": trace_id, "deleted": True}


def add_routes(app: Any, service: Service) -> None:
    """Mount ``/drafttrace/...`` into a FastAPI application."""
    from fastapi import Request
    from fastapi.responses import FileResponse, JSONResponse

    def reply(answer: Answer) -> JSONResponse:
        return JSONResponse(answer[1], status_code=answer[0])

    def health() -> JSONResponse:
        return JSONResponse(service.health())

    async def start(request: Request) -> JSONResponse:
        try:
            body = await request.json()
        except ValueError:
            body = None
        return reply(service.start(body))

    def traces() -> JSONResponse:
        return reply(service.list())

    def trace(trace_id: str) -> JSONResponse:
        return reply(service.find(trace_id)[1])

    def file(trace_id: str, partial: int = 0) -> Any:
        path, answer = service.file(trace_id, partial=bool(partial))
        if path is None:
            return reply(answer)
        return FileResponse(path, media_type="application/x-hdf5", filename=path.name)

    def delete(trace_id: str) -> JSONResponse:
        return reply(service.delete(trace_id))

    # FastAPI reads these annotations, which are strings here and name things of this function.
    start.__annotations__["request"] = Request
    routes: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("GET", "/drafttrace/health", health),
        ("POST", "/drafttrace/traces", start),
        ("GET", "/drafttrace/traces", traces),
        ("GET", "/drafttrace/traces/{trace_id}", trace),
        ("GET", "/drafttrace/traces/{trace_id}/file", file),
        ("DELETE", "/drafttrace/traces/{trace_id}", delete),
    )
    for method, path, handler in routes:
        app.add_api_route(path, handler, methods=[method], include_in_schema=False, response_model=None)


def _error(sentence: str) -> dict[str, str]:
    return {"error": sentence}
