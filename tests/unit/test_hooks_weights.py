"""What a trace tells about the weights of the server: names, shapes, and what the draft shares with the target."""

from __future__ import annotations

import torch
from torch import nn

from drafttrace.hooks.sglang_engine.weights import audit


class _Target(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 4, dtype=torch.bfloat16)
        self.layers = nn.ModuleList([nn.LayerNorm(4), nn.Linear(4, 4)])
        self.layers[0].norm = nn.LayerNorm(4)
        self.norm = nn.LayerNorm(4)
        self.lm_head = nn.Linear(4, 10, bias=False)


class _Draft(nn.Module):
    def __init__(self, target: _Target, own_head: bool) -> None:
        super().__init__()
        self.embed_tokens = target.embed_tokens
        self.fc = nn.Linear(12, 4, bias=False)
        self.lm_head = nn.Linear(4, 10, bias=False) if own_head else target.lm_head
        self.register_buffer("d2t", torch.zeros(6, dtype=torch.int64))


def test_what_the_draft_shares_is_told_from_what_is_its_own() -> None:
    target = _Target()
    for own_head in (True, False):
        held = audit(target, _Draft(target, own_head))["draft"]["held"]
        assert held["fc.weight"] == {"shape": [4, 12], "dtype": "float32", "shared_with": None}
        assert held["embed_tokens.weight"]["shared_with"] == "embed_tokens.weight"
        assert held["lm_head.weight"]["shared_with"] == (None if own_head else "lm_head.weight")
        assert held["d2t"]["dtype"] == "int64"


def test_of_the_target_only_what_stands_outside_its_layers_is_listed_and_everything_is_counted() -> None:
    target = _Target()
    told = audit(target, None)
    assert set(told) == {"target"}
    assert set(told["target"]["held"]) == {"embed_tokens.weight", "lm_head.weight", "norm.weight"}
    assert told["target"]["bytes"] == sum(p.numel() * p.element_size() for p in target.parameters())


def test_a_tied_head_counts_once_and_empty_tensors_share_nothing() -> None:
    target = _Target()
    untied = audit(target, None)["target"]["bytes"] - target.lm_head.weight.numel() * 4
    target.lm_head.weight = nn.Parameter(target.embed_tokens.weight)  # another parameter in the same memory
    target.embed_tokens.register_buffer("empty", torch.zeros(0))
    draft = nn.Module()
    draft.register_buffer("empty", torch.zeros(0))
    told = audit(target, draft)
    assert told["draft"]["held"]["empty"]["shared_with"] is None
    assert told["target"]["bytes"] == untied
