"""The recorder of one process: which requests are traced, and the frames of the batch that is running.

An engine's adapter drives it: ``open_batch``, then for every forward pass ``begin_frame`` / taps / ``end_frame``, then
``close_batch``; ``settle`` when the engine has processed the result, ``end`` when the request is over. Nothing here
raises into the engine: what goes wrong is counted, logged once, and marks the traces concerned as incomplete.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drafttrace.hooks.config import Settings, parent_of, trace_id_of
from drafttrace.hooks.frames import Batch, Frame, FrameRows, Span, is_boundary
from drafttrace.hooks.identity import RowGroup
from drafttrace.hooks.options import AUTO_ROWS, BadOptions, TapOptions
from drafttrace.hooks.place import Place
from drafttrace.hooks.plan import ModelFacts
from drafttrace.hooks.session import Session
from drafttrace.hooks.sink import WriterThread
from drafttrace.hooks.static import StaticTaps
from drafttrace.hooks.store import INCOMPLETE, Store, identity, write_json
from drafttrace.tracer.capture import Phase
from drafttrace.tracer.trace.schema import SOURCE_GRAPH_BUFFER

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("drafttrace")

_REMEMBERED = 4096  # request ids of traces that are over


@dataclass(frozen=True)
class Entry:
    """Where request number ``index`` of a forward pass stands: rows ``start .. stop`` of the batch."""

    rid: str
    start: int
    stop: int
    index: int = 0
    cached_prefix: int = 0


def graph_is_captured() -> bool:
    """Whether the current stream records a CUDA graph."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class _Aside:
    """Work for the writer thread that belongs to no trace."""

    def __init__(self, work: Callable[[], None], told: Callable[[str, BaseException], None]) -> None:
        self._work, self._told = work, told

    def run(self) -> None:
        self._work()

    def fail(self, error: BaseException) -> None:
        self._told("work beside the traces", error)


class Recorder:
    """Sessions and frames of one process. ``active`` is the one thing that taps look at when nothing is traced.

    starting: graphs are captured only while the server starts. scope: what kind of forward pass runs then.
    """

    def __init__(
        self, settings: Settings, store: Store, facts: Callable[[], ModelFacts], *, place: Place | None = None
    ) -> None:
        self.active = False
        self.settings = settings
        self.store = store
        self.place = place or Place()
        self.thread = WriterThread(settings.queue_bytes, apart=settings.writer_process, told=self.count)
        self.sessions: dict[str, Session] = {}
        self.errors = 0
        self.last_error: str | None = None
        self.frame: Frame | None = None
        self.starting = True
        self.scope = ""
        self.static = StaticTaps(settings.graph_bytes)
        self._facts = facts
        self._batches: dict[str, Batch] = {}
        self._seen: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def sweeping(self) -> bool:
        """Whether the running batch holds rows of a layer sweep."""
        return any(batch.session.sweeps for batch in self._batches.values())

    def slots(self) -> int:
        """Slots that the target hands over."""
        return self._facts().slots

    # Requests

    def session(self, rid: str, prompt: Sequence[int]) -> Session | None:
        """The session of a request id; None where nobody asked for a trace of that name, or another process has it."""
        if not self.place.records:
            return None
        found = self.sessions.get(rid)
        if found is not None:
            return found
        trace_id = trace_id_of(rid)
        request = self.store.request_of(trace_id) if trace_id is not None else None
        if trace_id is None or request is None:
            return None
        if self._seen.get(rid) == request.get("created"):  # over already; overlap scheduling runs one step too many
            return None
        if len(self._seen) > _REMEMBERED:
            self._seen.clear()
        self._seen[rid] = request.get("created")
        session = self._start(trace_id, rid, request, prompt)
        if session is not None:
            self.sessions[rid] = session
        return session

    def _start(self, trace_id: str, rid: str, request: Mapping[str, Any], prompt: Sequence[int]) -> Session | None:
        refusal = self.place.refusal
        try:
            options = TapOptions.parse(request.get("taps") or {})
        except BadOptions as error:
            refusal = str(error)
        if not self.place.rank and self.store.trace_path(trace_id).exists():
            # Another request with this id has its file already: leave both file and state alone.
            logger.error("drafttrace: a second request names the trace %s; it is not recorded", trace_id)
            return None
        if len(self.sessions) >= self.settings.max_traces:
            refusal = (
                f"{self.settings.max_traces} traces are being recorded already; raise DRAFTTRACE_MAX_TRACES or wait"
            )
        if refusal is not None:
            self.refuse(trace_id, refusal)
            return None
        session = Session(
            trace_id,
            rid,
            options=options,
            facts=self._facts(),
            settings=self.settings,
            store=self.store,
            thread=self.thread,
            prompt=prompt,
            place=self.place,
            asked=request.get("created"),
        )
        if parent_of(trace_id) is not None:
            session.announce()
        return session

    def refuse(self, trace_id: str, reason: str) -> None:
        """Tell the client why there will be no trace."""
        if self.place.rank or not self.place.records:
            return
        try:
            write_json(self.store.state_path(trace_id), {"state": INCOMPLETE, "reason": reason, **identity()})
        except OSError as error:
            self.fail("refuse", error)

    # One scheduler step

    def open_batch(self, requests: Mapping[str, Sequence[int]], *, verifies: bool) -> None:
        """A scheduler step begins. requests: request id -> prompt ids. verifies: whether it is a verify round."""
        self._batches = {}
        for rid, prompt in requests.items():
            session = self.session(rid, prompt)
            if session is None:
                continue
            if verifies:
                session.round += 1
            self._batches[rid] = Batch(session)
        self.active = bool(self._batches)

    def begin_frame(
        self,
        side: str,
        phase: Phase,
        entries: Sequence[Entry],
        *,
        position: torch.Tensor,
        token_id: torch.Tensor,
        step: int = -1,
        branches: int = 1,
    ) -> Frame | None:
        """A forward pass begins. position, token_id: ``[rows of the batch]``. None where it holds no traced rows."""
        spans = []
        live = int(position.shape[0])
        for entry in entries:
            batch = self._batches.get(entry.rid)
            if batch is None or entry.stop <= entry.start:
                continue
            session = batch.session
            if side == "draft" and not session.layout.draft:
                continue
            rows = FrameRows(
                side=side,
                group=RowGroup(phase, step, entry.start, branches),
                rows=entry.stop - entry.start,
                round=session.round if phase not in (Phase.PREFILL, Phase.DRAFT_EXTEND_PREFILL) else -1,
                frame=session.frames,
                position=position[entry.start : entry.stop].clone(),
                token_id=token_id[entry.start : entry.stop].clone(),
                live_rows=live,
                padded_rows=live,
                cached_prefix=entry.cached_prefix,
                rank=self.place.rank,
            )
            session.frames += 1
            session.plan_sweep(rows)
            batch.frames.append(rows)
            spans.append(Span(session, entry.start, entry.stop, entry.index, rows))
        self.frame = Frame(side, spans, live_rows=live) if spans else None
        return self.frame

    def tap(self, side: str, name: str, tensor: torch.Tensor) -> None:
        """A tap fired with ``tensor`` ``[batch rows, width]``: in an eager pass, or while a graph is captured."""
        frame = self.frame
        if frame is None:
            if self.starting and self.scope and graph_is_captured():
                self.static.write(self.scope, name, tensor, AUTO_ROWS if is_boundary(name) else None)
            return
        if frame.side != side:
            return
        try:
            frame.take(name, tensor)
        except Exception as error:
            self.fail(f"the tap {name}", error, frame)

    def take_static(self, scope: str, *, padded: int | None = None) -> bool:
        """After a graph's replay: fill the frame from the static buffers of ``scope``; whether there was any."""
        frame = self.frame
        if frame is None:
            return False
        found = False
        for name in self.static.names(scope):
            size = self.static.size(scope, name, frame.live_rows) if padded is None else padded
            rows = self.static.read(scope, name, frame.live_rows, size, padding=1)
            if rows is not None:
                frame.take(name, rows, SOURCE_GRAPH_BUFFER)
                frame.padded_rows = max(frame.padded_rows, size or 0)
                found = True
        return found

    def end_frame(self, *, graph: bool = False, padded_rows: int | None = None) -> None:
        """The forward pass is over: book which taps fired."""
        frame, self.frame = self.frame, None
        if frame is None:
            return
        for span in frame.spans:
            span.rows.graph = graph
            span.rows.padded_rows = max(padded_rows or 0, frame.padded_rows, span.rows.live_rows)
            span.session.count_frame(span.rows)
            span.rows.to_host()  # here, on the stream that computed them

    def verdict(self, rid: str, nodes: torch.Tensor | None, count: torch.Tensor) -> None:
        """The verifier's answer for one request of the running batch: accepted path (batch rows) and its length.

        Without a path (an engine that does not tell it) the rows' acceptance stays unknown.
        """
        batch = self._batches.get(rid)
        if batch is not None and nodes is not None:
            batch.say(nodes.clone(), count.clone())

    def close_batch(self) -> None:
        """The scheduler step is over: its rows wait until the engine has processed the result."""
        for batch in self._batches.values():
            batch.session.pending.append(batch)
        self._batches = {}
        self.active = False
        self.frame = None

    def settle(self, rid: str, total: int, accepted: int | None) -> None:
        """The engine has processed the oldest waiting step. total: tokens of prompt and output by now."""
        session = self.sessions.get(rid)
        if session is None or session.ended or not session.pending:
            return
        batch = session.pending.popleft()
        batch.total = total
        if accepted is not None:
            session.accept_counts.append(accepted)
        session.commit(batch)

    def end(self, rid: str, tokens: Sequence[int], prompt_length: int, request: Mapping[str, Any]) -> None:
        """The request is over."""
        session = self.sessions.pop(rid, None)
        if session is not None:
            session.end(tokens, prompt_length, request)

    def abandon(self, rid: str, reason: str) -> None:
        """The request ends without a result (aborted in the queue, refused)."""
        session = self.sessions.get(rid)
        trace_id = trace_id_of(rid)
        if session is not None:
            session.problem(reason)
            self.end(
                rid, session.prompt, len(session.prompt), {"finish_reason": {"type": "abort", "message": reason}}
            )
        elif trace_id is not None and self._waits(trace_id):
            self.refuse(trace_id, reason)

    def _waits(self, trace_id: str) -> bool:
        asked = self.store.request_of(trace_id) is not None
        return asked and not self.store.state_path(trace_id).exists()

    def aside(self, work: Callable[[], None]) -> None:
        """Have the writer thread do ``work`` when it comes to it; here and now where there is none."""
        if not self.thread.put(_Aside(work, self.count), 0):
            work()

    def stop(self) -> None:
        """The process ends in good order: end every trace and wait for the writer."""
        for rid in list(self.sessions):
            self.abandon(rid, "the server was stopped before the request was finished")
        self.thread.close()

    def fail(self, where: str, error: BaseException, frame: Frame | None = None) -> None:
        """Something of ours went wrong. Logged once; the traces in the batch become incomplete."""
        self.count(where, error)
        sessions = [span.session for span in frame.spans] if frame else [b.session for b in self._batches.values()]
        for session in sessions:
            session.problem(f"an error inside the recorder: {self.last_error}")

    def count(self, where: str, error: BaseException) -> None:
        """Something of ours went wrong on any thread: for the health route; in the log once."""
        with self._lock:
            self.errors += 1
            first = self.errors == 1
            self.last_error = f"{where}: {str(error) or type(error).__name__}"
        if first:
            logger.error("drafttrace: %s (further errors are only counted)", self.last_error, exc_info=error)
