"""Registers with SGLang's hook registry: after loading, around the target's forward, and before the draft's passes."""

from __future__ import annotations

import os
import sys
from typing import Any

from served_faults import draft, handover, recorder, slots
from served_faults.switch import Switch

_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"


def register() -> None:
    """Called by SGLang in each of its processes; only schedulers are touched."""
    path = os.environ.get("DRAFTTRACE_SERVED_FAULTS", "")
    if not path or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    switch = Switch(path)
    recorder.break_on_request(switch)

    def loaded(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        if not runner.is_draft_worker:
            slots.watch(switch, runner.model)

    def extend_prefill(worker: Any, batch: Any, target_hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        draft.change_weights(switch, worker)
        changed = handover.change(switch, worker, target_hidden_states)
        return (worker, batch, changed, *args), kwargs

    def extend_decode(worker: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        draft.change_weights(switch, worker)
        output = result.logits_output
        output.hidden_states = handover.change(switch, worker, output.hidden_states)

    def draft_forward(worker: Any, forward_batch: Any) -> None:
        draft.change(switch, worker, forward_batch)

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.load_model", loaded, HookType.AFTER)
    HookRegistry.register(f"{_WORKER}._draft_extend_for_prefill", extend_prefill, HookType.BEFORE)
    HookRegistry.register(f"{_WORKER}._draft_extend_for_decode", extend_decode, HookType.BEFORE)
    HookRegistry.register(f"{_WORKER}.draft_forward", draft_forward, HookType.BEFORE)
