"""Faults of the draft's own passes: positions, the state that goes from step to step, its head and vocabulary map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from served_faults.switch import Switch


def change(switch: Switch, worker: Any, forward_batch: Any) -> None:
    """Called before a round of draft steps."""
    for name in switch.names():
        if name in STEPS:
            STEPS[name](forward_batch, switch.memory)


def change_weights(switch: Switch, worker: Any) -> None:
    """Called before the draft's extend: put its map and head right, then wrong as the switch says."""
    model = worker.draft_runner.model
    kept = getattr(worker, "served_faults_kept", None)
    if kept is None:
        ids, head, norm = worker.hot_token_id.clone(), model.lm_head.weight.data.clone(), model.model.fc_norm
        kept = worker.served_faults_kept = (ids, head, norm)
    worker.hot_token_id = model.hot_token_id = kept[0].clone()
    model.lm_head.weight.data.copy_(kept[1])
    model.model.fc_norm = kept[2]
    for name in switch.names():
        if name in WEIGHTS:
            WEIGHTS[name](worker, model)


def positions_off(batch: Any, memory: dict[str, Any]) -> None:
    batch.positions = batch.positions + 1


def recycled_normed(batch: Any, memory: dict[str, Any]) -> None:
    """The state that a round starts from goes through a norm once more."""
    state = batch.spec_info.hidden_states.float()
    normed = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + 1e-6)
    batch.spec_info.hidden_states = normed.to(batch.spec_info.hidden_states.dtype)


def recycled_stale(batch: Any, memory: dict[str, Any]) -> None:
    """A round starts from the state that the round before it started from."""
    before, memory["recycled"] = memory.get("recycled"), batch.spec_info.hidden_states
    if before is not None and before.shape == batch.spec_info.hidden_states.shape:
        batch.spec_info.hidden_states = before


def map_missing(worker: Any, model: Any) -> None:
    worker.hot_token_id = model.hot_token_id = torch.arange(len(worker.hot_token_id))


def head_of_target(worker: Any, model: Any) -> None:
    """The target's head in the draft's place, as far as it fits."""
    head = worker.target_worker.model_runner.model.lm_head.weight.data
    model.lm_head.weight.data.copy_(head[: len(model.lm_head.weight)])


def head_at_random(worker: Any, model: Any) -> None:
    """A head that no checkpoint filled."""
    model.lm_head.weight.data.normal_(generator=torch.Generator().manual_seed(3))


def fc_norm_skipped(worker: Any, model: Any) -> None:
    model.model.fc_norm = None


STEPS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "positions-off": positions_off,
    "recycled-normed": recycled_normed,
    "recycled-stale": recycled_stale,
}
WEIGHTS: dict[str, Callable[[Any, Any], None]] = {
    "map-missing": map_missing,
    "head-of-target": head_of_target,
    "head-at-random": head_at_random,
    "fc-norm-skipped": fc_norm_skipped,
}
