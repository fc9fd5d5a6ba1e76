"""Forward passes that a CUDA graph replays: what kind they are while they are captured, and their rows afterwards.

The target's decode graph passes through ``ModelRunner.forward``; the draft's two graph runners do not: their
``execute`` is framed here. All draft steps of a round are one graph, with one scope of static buffers per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from drafttrace.hooks.recorder import Entry, Recorder
from drafttrace.hooks.sglang_engine import heads
from drafttrace.hooks.sglang_engine.attach import PREFILL
from drafttrace.tracer.capture import Phase
from drafttrace.tracer.trace.schema import SOURCE_PYTHON_SEAM

VERIFY, DECODE, DRAFT_EXTEND = "target/verify", "target/decode", "draft/extend"

Entries = Callable[[Sequence[str], int], list[Entry]]


def scope_of(side: str, mode: Any, step: int) -> str:
    """The static buffers that a forward pass of this kind uses."""
    if side == "target":
        if mode.is_target_verify():
            return VERIFY
        return DECODE if mode.is_decode() else PREFILL
    return draft_step(step) if mode.is_decode() else DRAFT_EXTEND


def draft_step(step: int) -> str:
    """The scope of one draft step."""
    return f"draft/decode/{step}"


class Passes:
    """Follows the forward passes of both models: their scope while graphs are captured, and the draft's step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._step = 0

    def watch(self, side: str, backbone: nn.Module) -> RemovableHandle:
        """Attach to the backbone: SGLang calls the outer model's ``forward`` directly, past its hooks."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            recorder = self._recorder
            if recorder.frame is None and not recorder.starting:
                return
            try:
                self._before(side, (*args, *kwargs.values()))
            except Exception as error:
                recorder.fail("the hook on the model", error, recorder.frame)

        return backbone.register_forward_pre_hook(before, with_kwargs=True)

    def _before(self, side: str, values: tuple[Any, ...]) -> None:
        batch = next((value for value in values if hasattr(value, "forward_mode")), None)
        if batch is None:
            return
        recorder = self._recorder
        if recorder.starting:
            recorder.scope = scope_of(side, batch.forward_mode, self._step)
            if side == "draft" and batch.forward_mode.is_decode():
                self._step += 1
                recorder.tap(side, "token_id", batch.input_ids)
        hidden = getattr(getattr(batch, "spec_info", None), "hidden_states", None)
        if side == "draft" and hidden is not None:
            recorder.tap(side, "hidden_in", hidden)

    def restart(self) -> None:
        """A round of draft steps begins."""
        self._step = 0


def record_draft_extend(
    recorder: Recorder, runner: Any, batch: Any, out: Any, entries: Entries, model: Any
) -> None:
    """After the draft-extend graph: one frame, its logits only for the last accepted row of each request."""
    rows = len(batch.input_ids)
    frame = recorder.begin_frame(
        "draft",
        Phase.DRAFT_EXTEND_VERIFY,
        entries(batch.rids, rows // len(batch.rids)),
        position=batch.positions[:rows],
        token_id=batch.input_ids,
    )
    if frame is None:
        return
    padded = int(runner.bs) * (rows // len(batch.rids))
    if not recorder.take_static(DRAFT_EXTEND, padded=padded):
        frame.take("hidden_in", batch.spec_info.hidden_states, SOURCE_PYTHON_SEAM)
    heads.draft_topk(frame, out.next_token_logits, getattr(model, "hot_token_id", None))
    recorder.end_frame(graph=True, padded_rows=padded)


def record_draft_steps(recorder: Recorder, runner: Any, batch: Any, entries: Entries, branches: int) -> None:
    """After the graph of all draft steps: one frame per step, as far as the taps wrote to static buffers."""
    live = len(batch.rids) * branches
    padded = int(runner.bs) * branches
    step = 0
    while (ids := recorder.static.read(draft_step(step), "token_id", live, padded)) is not None:
        frame = recorder.begin_frame(
            "draft",
            Phase.DRAFT_DECODE,
            entries(batch.rids, branches),
            position=batch.positions[:live] + step,
            token_id=ids,
            step=step,
            branches=branches,
        )
        if frame is None:
            return
        recorder.take_static(draft_step(step), padded=padded)
        recorder.end_frame(graph=True, padded_rows=padded)
        step += 1
