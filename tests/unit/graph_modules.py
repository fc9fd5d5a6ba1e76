"""A target and a draft as the taps expect them, small, in plain torch: for tests of what a graph replay leaves behind."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from drafttrace.hooks.config import Settings
from drafttrace.hooks.plan import DraftFacts, ModelFacts
from drafttrace.hooks.recorder import Recorder
from drafttrace.hooks.sglang_engine.attach import Taps
from drafttrace.hooks.store import Store
from drafttrace.tracer.rows import DType

H, SLOTS, VOCAB = 16, 3, 64


class Head(nn.Module):
    """Stands where the engine's logits processor stands, with its arguments."""

    def forward(self, input_ids, hidden_states, lm_head, metadata, aux_hidden_states=None):  # type: ignore[no-untyped-def]
        return hidden_states @ lm_head.T


class Backbone(nn.Module):
    """Embedding, layers, norm; hands over what enters layers 0, 2 and 3."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, H)
        self.layers = nn.ModuleList(nn.Linear(H, H) for _ in range(4))
        self.norm = nn.LayerNorm(H)

    def forward(self, input_ids):  # type: ignore[no-untyped-def]
        hidden, aux = self.embed_tokens(input_ids), []
        for k, layer in enumerate(self.layers):
            if k in (0, 2, 3):
                aux.append(hidden)
            hidden = hidden + torch.tanh(layer(hidden))
        return self.norm(hidden), aux


class Target(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Backbone()
        self.lm_head = nn.Parameter(torch.randn(VOCAB, H))
        self.logits_processor = Head()

    def forward(self, input_ids):  # type: ignore[no-untyped-def]
        hidden, aux = self.model(input_ids)
        return self.logits_processor(input_ids, hidden, self.lm_head, None, aux), torch.cat(aux, -1)


class DraftBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, H)
        self.fc = nn.Linear(SLOTS * H, H, bias=False)

    def forward(self, input_ids, hidden):  # type: ignore[no-untyped-def]
        return torch.tanh(self.fc(hidden) + self.embed_tokens(input_ids))


class Draft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = DraftBackbone()
        self.lm_head = nn.Parameter(torch.randn(VOCAB, H))
        self.logits_processor = Head()

    def forward(self, input_ids, hidden):  # type: ignore[no-untyped-def]
        state = self.model(input_ids, hidden)
        return self.logits_processor(input_ids, state, self.lm_head, None, [state])


def recorder_of(folder: Path, **settings: int) -> Recorder:
    """A recorder in the state in which graphs are captured."""
    store = Store(folder)
    store.create()
    draft = DraftFacts(hidden=H, hidden_in=SLOTS * H, fc_in=SLOTS * H, fc_out=H, dtype=DType.FP32)
    facts = ModelFacts(4, H, SLOTS, DType.FP32, draft, {"wiring": {"boundaries": [0, 2, 3], "source": "default"}})
    return Recorder(Settings(folder, **settings), store, lambda: facts)


def tapped(recorder: Recorder, device: str = "cpu") -> tuple[Target, Draft]:
    """Both models with their taps on."""
    torch.manual_seed(0)
    target, draft = Target().to(device), Draft().to(device)
    for taps in (Taps(recorder, "target"), Taps(recorder, "draft")):
        taps.target(target, 4) if taps.side == "target" else taps.draft(draft)
        taps.attach()
    return target, draft
