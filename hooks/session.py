"""One traced request: what is wanted, what came, what went wrong, and how its file ends."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from drafttrace.hooks import store as states
from drafttrace.hooks.config import Settings, rank_part
from drafttrace.hooks.frames import Batch, FrameRows, is_boundary
from drafttrace.hooks.options import TapOptions
from drafttrace.hooks.place import Place
from drafttrace.hooks.plan import ModelFacts, expected_taps, hashed_names, layout_of
from drafttrace.hooks.ranks import RankLog, Report, collect
from drafttrace.hooks.sink import WriterThread
from drafttrace.hooks.store import Store, identity, write_json
from drafttrace.hooks.writer_link import OpenFile
from drafttrace.tracer.capture import Phase, Probe

_RANKS_WAIT = 5.0  # seconds that the first rank waits for the others at the end of a request
_RANK_FILES_WAIT = 20.0  # and where they finish files of their own before they report
_STATE_EVERY = 0.5  # seconds between two updates of the state that clients poll


class Session:
    """A traced request on this process. The scheduler thread calls everything but what ``_write`` and ``_end`` do."""

    def __init__(
        self,
        trace_id: str,
        rid: str,
        *,
        options: TapOptions,
        facts: ModelFacts,
        settings: Settings,
        store: Store,
        thread: WriterThread,
        prompt: Sequence[int],
        place: Place | None = None,
        asked: float | None = None,
    ) -> None:
        """asked: when the trace was asked for: another one of the same id may be asked for before this one is over."""
        self.place = place or Place()
        rank, ranks = self.place.rank, self.place.ranks
        self.id = trace_id
        self.rid = rid
        self.options = options
        self.facts = facts
        self.rank = rank
        self.owner = trace_id  # the trace whose first rank merges this rank's hashes
        self.writes = rank == 0 or settings.all_ranks
        if rank:
            self.id = rank_part(trace_id, rank)  # with --all-ranks, each rank has a file of its own
        self._merges = tuple(range(1, ranks)) if rank == 0 else ()
        self.layout = layout_of(facts, options, tuple(range(ranks)) if self._merges else ())
        self._log = RankLog(hashed_names(facts)) if ranks > 1 else None
        self.prompt = list(prompt)
        self.round = -1
        self.frames = 0
        self.cached_prefix: int | None = None
        self.pending: collections.deque[Batch] = collections.deque()
        self.events: list[dict[str, Any]] = []
        self.accept_counts: list[int] = []
        self.reason: str | None = None
        self.ended = False
        self._settings = settings
        self._store = store
        self._thread = thread
        self._names = {spec.name for spec in (*self.layout.target, *self.layout.draft)}
        self._boundaries = [spec.name for spec in self.layout.target if spec.is_boundary]
        self._sweep_left = options.sweep_rows
        self._probes = {name: [0, 0, 0, 0] for name in sorted(self._names)}
        self._expected: dict[tuple[str, Phase, bool], tuple[str, ...]] = {}
        self._file: OpenFile | None = None
        self._rows = 0
        self._budget = settings.max_trace_bytes
        self._last_state = 0.0
        self._created = time.time()
        self._asked = asked

    def wants(self, name: str) -> bool:
        """Whether this trace records the tap."""
        return name in self._names

    def admits(self, name: str, rows: FrameRows, nbytes: int) -> bool:
        """Whether rows of a tap can be kept at all: a forward pass that can never fit the queue is not even copied."""
        if rows.nbytes + nbytes <= self._thread.limit:
            return True
        self._probes[name][3] += rows.rows
        self.problem(
            f"one forward pass of {rows.rows} rows is larger than the queue ({self._thread.limit} bytes); raise "
            "DRAFTTRACE_QUEUE_BYTES (drafttrace serve --queue-mib), lower --chunked-prefill-size or record fewer taps"
        )
        return False

    @property
    def sweeps(self) -> bool:
        """Whether target rows to come still belong to a layer sweep."""
        return bool(self._boundaries) and self._sweep_left != 0

    def plan_sweep(self, rows: FrameRows) -> None:
        """Give the next target rows their share of the sweep's row budget."""
        if rows.side != "target" or not self._boundaries:
            return
        rows.sweep = rows.rows if self._sweep_left is None else min(rows.rows, self._sweep_left)
        if self._sweep_left is not None:
            self._sweep_left -= rows.sweep

    def announce(self) -> None:
        """Say that this trace is being recorded, before the writer thread comes to it.

        Nobody asked for a part of a batch by its own name: until its file is there nothing else tells that it exists.
        """
        self._write_state(states.RECORDING, None)

    def problem(self, reason: str) -> None:
        """The trace will be incomplete; the first reason is the one that is told."""
        if self.reason is None:
            self.reason = reason

    def note(self, kind: str, **facts: Any) -> None:
        """Something worth knowing that is no error: a prefix hit, a retraction, a chunk."""
        self.events.append({"event": kind, "frame": self.frames, **facts})

    def count_frame(self, rows: FrameRows) -> None:
        """Book which taps should have fired in these rows and which did."""
        kind = (rows.side, rows.group.phase, rows.graph)
        expected = self._expected.get(kind)
        if expected is None:
            expected = expected_taps(self.layout, rows.side, rows.group.phase, graph=rows.graph)
            self._expected[kind] = expected
        if rows.sweep and not rows.graph:
            expected += tuple(self._boundaries)
        elif rows.sweep:
            self._end_sweep(rows)
        for name in expected:
            self._probes[name][0] += 1
        for name, part in rows.parts.items():
            probe = self._probes[name]
            probe[1] += 1
            probe[2] += part.tensor.shape[0]

    def _end_sweep(self, rows: FrameRows) -> None:
        """A graph does not run the layers' hooks: what its buffers held is the end of the sweep."""
        held = min((part.tensor.shape[0] for name, part in rows.parts.items() if is_boundary(name)), default=0)
        if held < rows.sweep and self._sweep_left != 0:
            self._sweep_left = 0
            self.note("sweep_ended", rows=held, reason="the rows after these were computed by a CUDA graph")

    def commit(self, batch: Batch) -> None:
        """Hand a finished scheduler step to the writer thread, or count what had to be dropped."""
        if not batch.frames:
            return
        nbytes = batch.nbytes
        self._budget -= nbytes
        if self._budget < 0:
            self.problem(
                f"the trace reached its limit of {self._settings.max_trace_bytes} bytes; raise "
                "DRAFTTRACE_MAX_TRACE_BYTES (drafttrace serve --max-trace-mib) or record fewer taps"
            )
            self._drop(batch)
        elif not self._send_now(batch, nbytes) and not self._thread.put(_Write(self, batch), nbytes):
            self.problem(
                f"the queue to the writer was full ({self._thread.waiting_bytes} of {self._thread.limit} bytes); "
                "raise DRAFTTRACE_QUEUE_BYTES (drafttrace serve --queue-mib) or record fewer taps"
            )
            self._drop(batch)

    def _send_now(self, batch: Batch, nbytes: int) -> bool:
        """Whether a small step went to the writer process here and now.

        To wake the thread for it costs the scheduler several times as much: it takes the interpreter at the scheduler's
        next operation. The thread has its turn where something could be waited for, and whenever the state is due.
        """
        file = self._file
        due = time.monotonic() - self._last_state >= _STATE_EVERY
        if file is None or due or self._log is not None or not self._thread.idle:
            return False
        if not file.takes_now(nbytes) or not batch.arrived:
            return False
        try:
            file.append(batch.on_host())
            self._rows += batch.row_count
        except Exception as error:
            _Write(self, batch).fail(error)
        return True

    def end(self, tokens: Sequence[int], prompt_length: int, request: Mapping[str, Any]) -> None:
        """The request is over: write what is known only now. Later rows of it are not recorded."""
        if self.ended:
            return
        self.ended = True
        self.pending.clear()
        facts = {**request, "accept_counts": self.accept_counts, "rounds": self.round + 1, "events": self.events}
        facts["cached_prefix"] = self.cached_prefix or 0
        facts["place"] = self.place.to_json()
        if not self._thread.put(_End(self, list(tokens), prompt_length, facts), 0):
            self._write_state(states.INCOMPLETE, "the writer thread is gone")

    def probes(self) -> list[Probe]:
        """The counts of every tap so far."""
        return [Probe(name, *counts) for name, counts in self._probes.items()]

    def _drop(self, batch: Batch) -> None:
        for frame in batch.frames:
            for name, part in frame.parts.items():
                self._probes[name][3] += part.tensor.shape[0]

    # What follows runs on the writer thread.

    def _open(self) -> OpenFile:
        if self._file is None:
            path = self._store.trace_path(self.id)
            self._file = self._thread.files.open(path, self.layout, self.rid, self.facts.about, self.prompt)
        return self._file

    def _write(self, batch: Batch) -> None:
        step = batch.on_host()
        if self._log is not None:
            self._log.append(step)
        if not self.writes or (self._file is None and not self._wanted()):
            return
        if self._store.used_bytes(max_age=1.0) + batch.nbytes > self._settings.max_dir_bytes:
            self.problem(
                f"the trace folder reached its limit of {self._settings.max_dir_bytes} bytes; delete traces or raise "
                "DRAFTTRACE_MAX_DIR_BYTES (drafttrace serve --max-dir-mib)"
            )
            self._drop(batch)
            return
        self._open().append(step)
        self._rows += batch.row_count
        if time.monotonic() - self._last_state >= _STATE_EVERY:
            self._write_state(states.RECORDING, None)

    def _wanted(self) -> bool:
        """Whether the trace is still the one that was asked for: not deleted, and no other one of its name since."""
        request = self._store.request_of(self.owner)
        return request is not None and request.get("created") == self._asked

    def _end(self, tokens: list[int], prompt_length: int, request: dict[str, Any]) -> None:
        try:
            if self.writes and (self._file is not None or self._wanted()):
                self._finish(tokens, prompt_length, request)
        except Exception as error:
            self.problem(f"writing failed: {_words(error)}")
            if self._file is not None:  # an open file keeps its room on a full disk, deleted or not
                with contextlib.suppress(Exception):
                    self._file.close()
            raise
        finally:  # after this rank's own file: the first rank's trace says what became of it
            if self._log is not None and self.rank and self._wanted():
                path = self._store.rank_path(self.owner, self.rank)
                self._log.save(path, asked=self._asked, problem=self.reason)

    def _finish(self, tokens: list[int], prompt_length: int, request: dict[str, Any]) -> None:
        file = self._open()
        self._merge_ranks(file)
        written = file.written
        self._rows = written.rows
        if written.problem is not None:  # what the writer process could not write is told here, and nowhere before
            self.problem(f"writing failed: {written.problem}")
        for name, rows in written.lost.items():
            self._probes[name][3] += rows
        for name, rows in written.dropped.items():
            self._probes[name][3] += rows
            self.problem(f"{rows} rows of {name} did not connect to the rows before them and were dropped")
        reason = "; ".join(filter(None, (self.reason or self._silent(), self.place.gap))) or None
        file.finish(
            reason=reason,
            tokens=tokens,
            prompt_length=prompt_length,
            request={**request, "incomplete_reason": reason},
            probes=self.probes(),
        )
        self.reason = reason
        self._write_state(states.COMPLETE if reason is None else states.INCOMPLETE, reason)

    def _merge_ranks(self, file: OpenFile) -> None:
        """Put the hashes of all ranks into the first rank's file."""
        if self._log is None or not self._merges:
            return
        paths = {rank: self._store.rank_path(self.id, rank) for rank in self._merges}
        patience = _RANK_FILES_WAIT if self._settings.all_ranks else _RANKS_WAIT
        found = collect(paths, patience, asked=self._asked)
        for rank, report in {0: Report(*self._log.tables()), **found}.items():
            file.append_rank(rank, report.rows, report.hashes)
            if report.problem is not None:
                self.problem(f"rank {rank}: {report.problem}")
        missing = sorted(set(self._merges) - set(found))
        if missing:
            self.problem(f"rank {missing[0]} did not report its row hashes within {patience:.0f} seconds")

    def _silent(self) -> str | None:
        """The tap that fired less often than it should have, in words."""
        for name, (expected, fired, _, dropped) in self._probes.items():
            if dropped:
                return f"{dropped} rows of {name} were dropped"
            if name in ("fc_in", "fc_out") and not fired:
                continue  # the server never called fc: its fault, not the trace's, and the probe says so
            if fired < expected:
                return f"the tap {name} fired {fired} times where {expected} were expected"
        return None

    def _failed(self, error: BaseException, *, last: bool = False) -> None:
        """last: the job that ends the file failed. Until then the file grows and shrinks, and nobody may fetch it."""
        self._thread.told("writing a trace", error)
        self.problem(f"writing failed: {_words(error)}")
        if last:
            self._write_state(states.INCOMPLETE, self.reason)

    def _write_state(self, state: str, reason: str | None) -> None:
        if not self.writes:
            return
        self._last_state = time.monotonic()
        if not self._wanted():
            return  # deleted while it was recorded: nobody wants to hear of it any more
        data = {"state": state, "reason": reason, "rows": self._rows, "created": self._created, **identity()}
        try:
            write_json(self._store.state_path(self.id), data)
        except OSError as error:
            self.problem(f"the trace folder cannot be written ({error.strerror})")


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


class _Write:
    """Writes one batch."""

    def __init__(self, session: Session, batch: Batch) -> None:
        self._session, self._batch = session, batch

    def run(self) -> None:
        self._session._write(self._batch)

    def fail(self, error: BaseException) -> None:
        self._session._drop(self._batch)
        self._session._failed(error)


class _End:
    """Ends the file."""

    def __init__(self, session: Session, tokens: list[int], prompt_length: int, request: dict[str, Any]) -> None:
        self._session, self._arguments = session, (tokens, prompt_length, request)

    def run(self) -> None:
        self._session._end(*self._arguments)

    def fail(self, error: BaseException) -> None:
        self._session._failed(error, last=True)
