"""Faults of the draft's own passes: positions, the state that goes from step to step, its head and vocabulary map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from served_faults.attention import Attention
from served_faults.switch import Switch


def change(switch: Switch, worker: Any, forward_batch: Any) -> None:
    """Called before a round of draft steps."""
    for name in switch.names():
        if name in STEPS:
            STEPS[name](forward_batch, switch.memory)


def change_weights(switch: Switch, worker: Any) -> None:
    """Called before the draft's extend: put its map, weights and attention right, then wrong as the switch says."""
    model = worker.draft_runner.model
    kept = getattr(worker, "served_faults_kept", None)
    if kept is None:
        kept = worker.served_faults_kept = Kept(worker, model)
    kept.put_right(worker, model)
    names = switch.names()
    kept.attention.put(window="draft-window" in names, base="draft-rope" in names)
    for name in names:
        if name in WEIGHTS:
            WEIGHTS[name](worker, model)


class Kept:
    """What the faults change, as it was loaded."""

    def __init__(self, worker: Any, model: Any) -> None:
        self._ids, self._fc_norm = worker.hot_token_id.clone(), model.model.fc_norm
        self._weights = {name: weight.data.clone() for name, weight in _changed(model).items()}
        self.attention = Attention(model)

    def put_right(self, worker: Any, model: Any) -> None:
        worker.hot_token_id = model.hot_token_id = self._ids.clone()
        model.model.fc_norm = self._fc_norm
        for name, weight in _changed(model).items():
            weight.data.copy_(self._weights[name])


def _changed(model: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that faults change."""
    return {
        name: weight
        for name, weight in model.named_parameters()
        if name in ("lm_head.weight", "model.norm.weight") or name.endswith((".o_proj.weight", ".down_proj.weight"))
    }


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


def head_permuted(worker: Any, model: Any) -> None:
    """The rows of the head in another order: each of the draft's ids has another one's score."""
    _permute_head(model, 1.0)


def head_partly_permuted(worker: Any, model: Any) -> None:
    """A part of them: the draft says many tokens still, and the accept length is that of a mediocre draft."""
    _permute_head(model, 0.5)


def _permute_head(model: Any, part: float) -> None:
    weight = model.lm_head.weight.data
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(5))
    moved = order[: int(part * len(weight))]
    weight[moved] = weight[moved.roll(1)].clone()


def final_norm_at_random(worker: Any, model: Any) -> None:
    """A final norm that no checkpoint filled: some channels count a hundred times as much as others."""
    weight = model.model.norm.weight.data
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(7))
    weight.copy_(torch.exp(1.5 * noise))


def layer_lost(worker: Any, model: Any) -> None:
    """What the draft's layer adds is lost on the way: attention and MLP put out nothing."""
    for name, weight in _changed(model).items():
        if name.endswith((".o_proj.weight", ".down_proj.weight")):
            weight.data.zero_()


def attention_lost(worker: Any, model: Any) -> None:
    """The draft's attention puts out nothing."""
    for name, weight in _changed(model).items():
        if name.endswith(".o_proj.weight"):
            weight.data.zero_()


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
    "head-permuted": head_permuted,
    "head-partly-permuted": head_partly_permuted,
    "final-norm-at-random": final_norm_at_random,
    "attention-lost": attention_lost,
    "layer-lost": layer_lost,
    "fc-norm-skipped": fc_norm_skipped,
}
