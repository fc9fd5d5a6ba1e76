"""Training of the tiny targets."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pairs.batches import Batch, bucketed
from pairs.optim import MuonAdam, schedule
from pairs.targets import Target, rms_norm
from pairs.tokenizer import VOCAB_SIZE, ChatTokenizer


@dataclass(frozen=True)
class TargetPlan:
    """How long, how fast and on which text a target trains."""

    steps: int
    tokens: int = 2560
    matrix_rate: float = 0.012
    other_rate: float = 0.006
    warmup: int = 30
    seed: int = 11
    families: tuple[str, ...] | None = None  # kinds of text; None = all
    flat: float = 0.25  # share of the steps before the learning rate falls
    echo_steps: int = 0  # begin with this many steps of text that repeats itself: copying is learnt first
    middle: int = 0  # boundary that must already know the next two tokens; 0 = none
    least_change: float = 0.0  # smallest relative change that each layer shall make


class Lookahead(nn.Module):
    """Throw-away heads on a middle boundary: the next token and, as in DeepSeek-V3's own training, the one after."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(hidden))
        self.heads = nn.ParameterList(
            [nn.Parameter(torch.randn(VOCAB_SIZE, hidden) * hidden**-0.5) for _ in range(2)]
        )

    def loss(self, middle: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy of both heads."""
        normed = rms_norm(middle, self.norm)
        losses = [token_loss(F.linear(normed, head), batch, ahead) for ahead, head in enumerate(self.heads, 1)]
        return torch.stack(losses).mean()


def token_loss(logits: Tensor, batch: Batch, ahead: int = 1, other_weight: float = 0.1) -> Tensor:
    """Cross-entropy of the token `ahead` positions later; tokens that the assistant does not speak count less."""
    labels = batch.ids[:, ahead:]
    weights = batch.mask[:, ahead:] * (1 - other_weight) + other_weight
    losses = F.cross_entropy(logits[:, :-ahead].flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def layer_changes(boundaries: list[Tensor]) -> Tensor:
    """Mean relative L2 change that each layer makes, [n]."""
    pairs = itertools.pairwise(boundaries)
    return torch.stack([((b - a).norm(dim=-1) / a.detach().norm(dim=-1).clamp_min(1e-6)).mean() for a, b in pairs])


@torch.no_grad()
def growth(boundaries: list[Tensor]) -> float:
    """How much longer the residual stream is at its end than after the first layer."""
    return float(boundaries[-1].norm(dim=-1).mean() / boundaries[1].norm(dim=-1).mean())


@torch.no_grad()
def accuracy(logits: Tensor, batch: Batch) -> float:
    """Share of the assistant's tokens that the argmax names."""
    right = (logits[:, :-1].argmax(-1) == batch.ids[:, 1:]).float() * batch.mask[:, 1:]
    return float(right.sum() / batch.mask[:, 1:].sum())


def train_target(target: Target, ahead: Lookahead, tokenizer: ChatTokenizer, plan: TargetPlan) -> dict[str, float]:
    """Train both in place; returns the last loss and accuracy, and the seconds it took."""
    torch.manual_seed(plan.seed)
    parameters = [*target.parameters(), *(ahead.parameters() if plan.middle else [])]
    optimiser = MuonAdam(parameters, plan.matrix_rate, plan.other_rate)
    begun, loss, right = time.time(), float("nan"), 0.0
    echoes = bucketed(tokenizer, plan.seed + 1, plan.tokens, families=["echo"])
    stream = itertools.chain(
        itertools.islice(echoes, plan.echo_steps), bucketed(tokenizer, plan.seed, plan.tokens, plan.families)
    )
    for step, batch in zip(range(plan.steps), stream, strict=False):
        boundaries = target(batch.ids)
        logits = target.logits(boundaries[-1])
        main = token_loss(logits, batch)
        total = main
        if plan.middle:
            total = total + 0.3 * ahead.loss(boundaries[plan.middle], batch)
        changes = layer_changes(boundaries)
        if plan.least_change:
            total = total + 5.0 * (plan.least_change - changes).clamp_min(0).square().sum()
        total.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimiser.step(schedule(step, plan.steps, plan.warmup, plan.flat))
        loss = float(main.detach())
        if step % 20 == 0 or step == plan.steps - 1:
            right = accuracy(logits, batch)
            print(
                f"target {step:5d}/{plan.steps} loss {loss:.3f} top-1 {right:.3f}"
                f" least change {float(changes.detach().min()):.3f} grown {growth(boundaries):.1f}x"
                f" {time.time() - begun:.0f}s",
                flush=True,
            )
    return {"loss": loss, "accuracy": right, "seconds": time.time() - begun}
