"""Faults between target and draft: the target's states are right, what the draft is given is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from served_faults.switch import Switch

Memory = dict[str, Any]


def change(switch: Switch, worker: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The packed states ``[rows, K * H]`` that the draft's extend pass will be given."""
    for name in switch.names():
        if name in HANDOVER:
            count = int(worker.draft_runner.model.model.num_aux_hidden_states)
            states = [state.clone() for state in hidden.chunk(count, dim=-1)]
            made = HANDOVER[name](states, switch.memory)
            hidden = torch.cat([state.to(hidden.dtype) for state in made], dim=-1)
    return hidden


def swapped(states: list[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    return [states[0], states[2], states[1]]


def stale(states: list[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    """The draft's buffer is not refreshed after verify: it keeps the rows of the pass before."""
    before, memory["handed"] = memory.get("handed"), states
    return states if before is None or before[0].shape != states[0].shape else before


def shifted(states: list[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    """Every token is paired with the state of the token before it."""
    return [torch.cat((s[:1], s[:-1])) for s in states]


def normed(states: list[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    """An RMS norm of each slot that the draft was not trained with."""
    return [s.float() * torch.rsqrt(s.float().pow(2).mean(-1, keepdim=True) + 1e-6) for s in states]


def scaled(states: list[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    return [states[0].float() * 1.5, *states[1:]]


HANDOVER: dict[str, Callable[[list[torch.Tensor], Memory], list[torch.Tensor]]] = {
    "handover-swapped": swapped,
    "handover-stale": stale,
    "handover-shifted": shifted,
    "handover-normed": normed,
    "handover-scaled": scaled,
}
