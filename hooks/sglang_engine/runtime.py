"""The hooks on SGLang's own functions: they follow a batch through target, verifier and draft.

Each is registered with SGLang's hook registry by name (see versions.py). Whatever happens in here, the original
function runs and its result is returned unchanged.
"""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from drafttrace.hooks.config import RID_PREFIX, Settings
from drafttrace.hooks.identity import extend_ranges, stride_range
from drafttrace.hooks.plan import ModelFacts
from drafttrace.hooks.recorder import Entry, Recorder
from drafttrace.hooks.sglang_engine import facts as facts_of
from drafttrace.hooks.sglang_engine import graphs, heads, override
from drafttrace.hooks.sglang_engine.attach import Taps, argument, backbone_of
from drafttrace.hooks.sglang_engine.status import hook_report
from drafttrace.hooks.sglang_engine.versions import SCHEDULER_HOOKS, HookSpec
from drafttrace.hooks.store import Store
from drafttrace.tracer.boundary import WrongWiring
from drafttrace.tracer.capture import Phase

logger = logging.getLogger("drafttrace")

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_NO_IDS = "the request gives embeddings in place of token ids, so its rows have no identity; send token ids or text"


class SchedulerHooks:
    """One scheduler process. ``fired`` counts how often each hook ran."""

    def __init__(self, settings: Settings, store: Store, version: str) -> None:
        self.settings = settings
        self.store = store
        self.version = version
        self.fired: collections.Counter[str] = collections.Counter()
        self.recorder = Recorder(settings, store, self._facts)
        self.target: Any = None
        self.draft: Any = None
        self.taps: dict[str, Taps] = {}
        self.failed: dict[str, str] = {}
        self._known: ModelFacts | None = None
        self._step = 0
        self._attached = False
        self._report: list[dict[str, Any]] | None = None
        self._passes = graphs.Passes(self.recorder)

    def hook(self, spec: HookSpec) -> Callable[..., Any]:
        """The function that SGLang's registry is given for a hook. However SGLang passes arguments, nothing raises.

        The one exception is on purpose: a wiring that cannot work stops the server before it serves.
        """
        body: Callable[..., Any] = getattr(self, spec.name)
        if spec.kind == "around":
            return lambda original, *args, **kwargs: body(original, args, kwargs)

        def aside(*args: Any, **kwargs: Any) -> None:
            try:
                body(*args, **kwargs)
            except WrongWiring:
                raise
            except Exception as error:
                self.recorder.fail(spec.name, error)

        return aside

    def _facts(self) -> ModelFacts:
        if self._known is None:
            spec = getattr(self.target.server_args, "speculative_algorithm", None)
            self._known = facts_of.model_facts(
                self.target,
                self.draft,
                version=self.version,
                algorithm=None if spec is None else str(spec),
                override=self.settings.wiring,
            )
        return self._known

    # Loading

    def load_model(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        """After the weights are there, before graphs are captured: attach the taps."""
        self.fired["load_model"] += 1
        side = "draft" if runner.is_draft_worker else "target"
        try:
            self.recorder.place = facts_of.place()
            taps = Taps(self.recorder, side)
            if side == "draft":
                self.draft = runner
                taps.draft(runner.model)
            else:
                self.target = runner
                taps.target(runner.model, facts_of.layers_of(runner.model_config))
            taps.plan(partial(self._passes.watch, side, backbone_of(runner.model)))
            taps.attach()
            self.taps[side] = taps
        except Exception as error:
            self.failed[side] = f"the taps of the {side} could not be attached: {error}"
            logger.exception("drafttrace: %s", self.failed[side])

    def init_attention_backends(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        """SGLang has chosen the boundaries, graphs are not captured yet."""
        self.fired["init_attention_backends"] += 1
        self._override(runner)

    def init_device_graphs(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        """The same moment in older SGLang."""
        self.fired["init_device_graphs"] += 1
        self._override(runner)

    def _override(self, runner: Any) -> None:
        if self.settings.wiring is not None and not runner.is_draft_worker:
            # On purpose outside any try: a wrong wiring is refused before serving starts.
            override.install(runner, self.draft, self.settings.wiring, facts_of.layers_of(runner.model_config))

    def run_event_loop(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Serving begins: say what this process is. It ends: end the traces."""
        self.fired["run_event_loop"] += 1
        self.recorder.starting = False
        self._detach()
        self.publish()
        try:
            return original(*args, **kwargs)
        finally:
            try:
                self.recorder.stop()
            except Exception as error:
                self.recorder.fail("stop", error)

    def publish(self) -> None:
        """Write the status that the HTTP side reports."""
        try:
            self.store.write_status(f"scheduler-{os.getpid()}", self._status())
        except Exception as error:
            self.recorder.count("the status file", error)

    def _status(self) -> dict[str, Any]:
        from drafttrace.hooks.sglang_engine.status import scheduler_status

        if self._report is None:  # serving begins: SGLang has applied its hooks, and applies no others later
            self._report = hook_report(SCHEDULER_HOOKS, self.fired, f"scheduler {os.getpid()}")
        return scheduler_status(self, [{**hook, "fired": int(self.fired[hook["name"]])} for hook in self._report])

    # One scheduler step

    def run_batch(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """The one check that an idle recorder costs: does a request in the batch carry the prefix?

        Torch hooks go on with the first traced batch and off when no traced request is left: to put on those of every
        layer takes as long as a small model's round.
        """
        recorder = self.recorder
        try:
            batch = argument(args, kwargs, 1, "batch")
            traced = [req for req in batch.reqs if req.rid.startswith(RID_PREFIX)]
            if traced:
                self.fired["run_batch"] += 1
                self._step = 0
                recorder.open_batch(self._admit(traced), verifies=bool(batch.forward_mode.is_decode()))
                if recorder.active:
                    self._attach()
            elif self._attached and not recorder.sessions:
                self._detach()
        except Exception as error:
            recorder.fail("run_batch", error)
        if not recorder.active:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            try:
                recorder.close_batch()
            except Exception as error:
                recorder.fail("close_batch", error)

    def _attach(self) -> None:
        self._attached = True
        for taps in self.taps.values():
            taps.attach(sweep=self.recorder.sweeping)

    def _detach(self) -> None:
        self._attached = False
        for taps in self.taps.values():
            taps.detach()

    def _admit(self, reqs: Sequence[Any]) -> dict[str, Sequence[int]]:
        admitted: dict[str, Sequence[int]] = {}
        for req in reqs:
            if getattr(req, "input_embeds", None) is not None:
                self.recorder.abandon(req.rid, _NO_IDS)
            else:
                admitted[req.rid] = req.origin_input_ids
        return admitted

    def forward(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """One forward pass of the target or of the draft."""
        recorder = self.recorder
        if not recorder.active:
            return original(*args, **kwargs)
        self.fired["forward"] += 1
        runner, batch = argument(args, kwargs, 0, "self"), argument(args, kwargs, 1, "forward_batch")
        try:
            self._begin(runner, batch)
        except Exception as error:
            recorder.fail("begin_frame", error)
        out = None
        try:
            out = original(*args, **kwargs)
            return out
        finally:
            try:
                self._end(runner, batch, out)
            except Exception as error:
                recorder.fail("end_frame", error)

    def _begin(self, runner: Any, batch: Any) -> None:
        side = "draft" if runner.is_draft_worker else "target"
        mode = batch.forward_mode
        if mode.is_idle() or batch.rids is None or batch.input_ids is None:
            return
        phase, entries, branches = self._rows(side, mode, batch)
        step = -1
        if phase is Phase.DRAFT_DECODE:
            step, self._step = self._step, self._step + 1
        self.recorder.begin_frame(
            side, phase, entries, position=batch.positions, token_id=batch.input_ids, step=step, branches=branches
        )

    def _rows(self, side: str, mode: Any, batch: Any) -> tuple[Phase, list[Entry], int]:
        """Phase of a forward pass, where each request's rows stand in it, and the branches of a draft tree."""
        rids = batch.rids
        if mode.is_target_verify():
            phase, stride = Phase.VERIFY, int(batch.spec_info.draft_token_num)
        elif mode.is_draft_extend_v2():
            phase, stride = Phase.DRAFT_EXTEND_VERIFY, len(batch.input_ids) // len(rids)
        elif mode.is_decode():
            phase = Phase.DRAFT_DECODE if side == "draft" else Phase.DECODE
            stride = len(batch.input_ids) // len(rids)
        else:
            phase = Phase.DRAFT_EXTEND_PREFILL if side == "draft" else Phase.PREFILL
            ranges = extend_ranges([int(n) for n in batch.extend_seq_lens_cpu])
            prefix = batch.extend_prefix_lens_cpu or [0] * len(rids)
            entries = [
                Entry(rid, start, stop, i, self._cached(rid, int(prefix[i])))
                for i, (rid, (start, stop)) in enumerate(zip(rids, ranges, strict=False))
                if rid in self.recorder.sessions
            ]
            return phase, entries, 1
        return phase, self._strided(rids, stride), stride if phase is Phase.DRAFT_DECODE else 1

    def _strided(self, rids: Sequence[str], stride: int) -> list[Entry]:
        """Where the traced requests stand in a batch in which every request has ``stride`` rows."""
        return [
            Entry(rid, *stride_range(i, stride), i, self._cached(rid, None))
            for i, rid in enumerate(rids)
            if rid in self.recorder.sessions
        ]

    def draft_forward(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """A round of draft steps, eager or while its graph is captured."""
        self.fired["draft_forward"] += 1
        self._step = 0
        self._passes.restart()
        return original(*args, **kwargs)

    def draft_graph(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """All draft steps of a round, replayed by one graph."""
        out = original(*args, **kwargs)
        if self.recorder.active:
            self.fired["draft_graph"] += 1
            try:
                runner, batch = argument(args, kwargs, 0, "self"), argument(args, kwargs, 1, "forward_batch")
                branches = int(self.target.server_args.speculative_eagle_topk or 1)
                graphs.record_draft_steps(self.recorder, runner, batch, self._strided, branches)
            except Exception as error:
                self.recorder.fail("draft_graph", error)
        return out

    def draft_extend_graph(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Draft extend after verify, replayed by a graph."""
        out = original(*args, **kwargs)
        if self.recorder.active:
            self.fired["draft_extend_graph"] += 1
            try:
                runner, batch = argument(args, kwargs, 0, "self"), argument(args, kwargs, 1, "forward_batch")
                graphs.record_draft_extend(self.recorder, runner, batch, out, self._strided, self.draft.model)
            except Exception as error:
                self.recorder.fail("draft_extend_graph", error)
        return out

    def _cached(self, rid: str, prefix: int | None) -> int:
        """Tokens of the request that the prefix cache supplied: the prefix of its first chunk."""
        session = self.recorder.sessions.get(rid)
        if session is None:
            return 0
        if session.cached_prefix is None and prefix is not None:
            session.cached_prefix = prefix
            if prefix:
                session.note("prefix_gap", rows=prefix, reason="the prefix cache held these tokens; nothing ran")
        return session.cached_prefix or 0

    def _end(self, runner: Any, batch: Any, out: Any) -> None:
        frame = self.recorder.frame
        if frame is None:
            return
        graph = bool(getattr(out, "can_run_graph", False))
        logits = getattr(out, "logits_output", None)
        if logits is not None:
            if frame.side == "draft":
                heads.draft_topk(frame, logits.next_token_logits, getattr(runner.model, "hot_token_id", None))
            elif graph:
                self.recorder.take_static(graphs.scope_of(frame.side, batch.forward_mode, 0))
                heads.seam_slots(frame, logits.hidden_states)
        self.recorder.end_frame(graph=graph)

    def verify(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """The verifier's answer: which nodes of each request's tree hold."""
        result = original(*args, **kwargs)
        if self.recorder.active:
            self.fired["verify"] += 1
            try:
                worker, batch = argument(args, kwargs, 0, "self"), argument(args, kwargs, 1, "batch")
                for i, req in enumerate(batch.reqs):
                    if req.rid in self.recorder.sessions:
                        nodes = heads.accepted_nodes(result, i, int(getattr(worker, "topk", 1)))
                        self.recorder.verdict(req.rid, nodes, result.accept_lens[i])
            except Exception as error:
                self.recorder.fail("verify", error)
        return result

    # Results

    def process_batch_result(self, value: Any, *args: Any, **kwargs: Any) -> None:
        """Tokens are in the requests' outputs now: let the rows go to the writer, and end what is finished."""
        if not self.recorder.sessions:
            return
        batch, result = argument(args, kwargs, 1, "batch"), argument(args, kwargs, 2, "result")
        for i, req in enumerate(batch.reqs):
            if req.rid in self.recorder.sessions:
                self._settle(batch, result, i, req)
        if not self.recorder.sessions:
            self._detach()

    def _settle(self, batch: Any, result: Any, i: int, req: Any) -> None:
        self.fired["process_batch_result"] += 1
        output = req.output_ids_through_stop if hasattr(req, "output_ids_through_stop") else req.output_ids
        total = len(req.origin_input_ids) + len(output)
        lens = getattr(result, "accept_lens", None)
        accepted = int(lens[i]) if lens is not None and batch.forward_mode.is_decode() else None
        self.recorder.settle(req.rid, total, accepted)
        if req.finished():
            self._finish(req, list(output))

    def _finish(self, req: Any, output: list[int]) -> None:
        session = self.recorder.sessions[req.rid]
        reason = req.finished_reason.to_json() if req.finished_reason is not None else None
        if isinstance(reason, dict) and reason.get("type") == "abort":
            session.problem(f"the request was aborted: {reason.get('message') or 'by the client or the server'}")
        prompt = list(req.origin_input_ids)
        request = {
            "rid": req.rid,
            "finish_reason": reason,
            "sampling": heads.sampling(req.sampling_params),
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
            "output_ids": output,
            "spec_verify_ct": getattr(req, "spec_verify_ct", None),
            "spec_accepted_tokens": getattr(req, "spec_num_correct_drafts", None),
            "retractions": getattr(req, "retraction_count", 0),
            "stream": bool(getattr(req, "stream", False)),
        }
        self.recorder.end(req.rid, prompt + output, len(prompt), request)
        self.recorder.aside(self.publish)

    def reset_for_retract(self, req: Any, *args: Any, **kwargs: Any) -> None:
        """The server takes a request back into the queue: its rows will be computed once more."""
        session = self.recorder.sessions.get(req.rid)
        if session is not None:
            self.fired["reset_for_retract"] += 1
            session.note("retracted", output_tokens=len(req.output_ids))

    def send_abort_output(self, value: Any, *args: Any, **kwargs: Any) -> None:
        """A request is gone before it was finished."""
        req = argument(args, kwargs, 2, "req")
        if req.rid.startswith(RID_PREFIX):
            self.fired["send_abort_output"] += 1
            self.recorder.abandon(req.rid, "the request was aborted while it waited")
