"""Training of a draft on the hidden states of a trained target, with training-time test."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pairs.batches import Batch, bucketed
from pairs.corpus import conversations
from pairs.eagle3 import DraftShape, Eagle3
from pairs.optim import MuonAdam, schedule
from pairs.targets import Target
from pairs.tokenizer import VOCAB_SIZE, ChatTokenizer

STEP_DECAY = 0.8


@dataclass(frozen=True)
class DraftPlan:
    """Which boundaries the draft reads, and how it trains."""

    wiring: tuple[int, ...]
    steps: int
    ttt_steps: int = 6
    tokens: int = 2560
    matrix_rate: float = 0.012
    other_rate: float = 0.004
    warmup: int = 30
    seed: int = 23


@dataclass(frozen=True)
class Teaching:
    """What a draft learns from one batch: its input and the target's own logits."""

    slots: Tensor
    logits: Tensor
    batch: Batch


def draft_vocabulary(tokenizer: ChatTokenizer, size: int, seed: int = 31, talks: int = 4000) -> Tensor:
    """The ids that the assistant speaks most often, ascending; ties go to the lower id."""
    counts: Counter[int] = Counter()
    for talk in islice(conversations(seed), talks):
        encoded = tokenizer.encode(talk)
        counts.update(i for i, spoken in zip(encoded.ids, encoded.mask, strict=True) if spoken)
    by_frequency = sorted(range(VOCAB_SIZE), key=lambda i: (-counts[i], i))
    return torch.tensor(sorted(by_frequency[:size]))


@torch.no_grad()
def teach(target: Target, batch: Batch, wiring: tuple[int, ...]) -> Teaching:
    """One forward pass of the target."""
    boundaries = target(batch.ids)
    slots = torch.cat([boundaries[k] for k in wiring], dim=-1)
    return Teaching(slots, target.logits(boundaries[-1]), batch)


def teachings(target: Target, tokenizer: ChatTokenizer, plan: DraftPlan) -> Iterator[Teaching]:
    """An endless stream of batches with the target's states."""
    for batch in bucketed(tokenizer, plan.seed, plan.tokens):
        yield teach(target, batch, plan.wiring)


def shifted(x: Tensor, by: int) -> Tensor:
    """Row t of the result is row t + `by`; the tail is zero."""
    return torch.cat((x[:, by:], torch.zeros_like(x[:, :by])), dim=1)


def draft_loss(draft: Eagle3, embed: Tensor, lesson: Teaching, ttt_steps: int) -> tuple[Tensor, list[float]]:
    """Weighted soft cross-entropy over all steps, and the accuracy of each step against the target's argmax."""
    ids, mask = lesson.batch.ids, lesson.batch.mask
    next_ids = F.pad(ids[:, 1:], (0, ttt_steps))
    in_vocabulary = torch.zeros(lesson.logits.shape[-1]).index_fill(0, draft.draft_ids, 1.0)
    wanted = lesson.logits[..., draft.draft_ids].softmax(-1)
    covered = in_vocabulary[lesson.logits.argmax(-1)]
    total, right = torch.zeros(()), []
    for step, logits in enumerate(draft(lesson.slots, next_ids, embed, ttt_steps)):
        weight = shifted(mask * covered, 1 + step)
        labels = shifted(wanted, 1 + step)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), reduction="none").view(weight.shape)
        total = total + STEP_DECAY**step * (losses * weight).sum() / weight.sum()
        hits = (logits.argmax(-1) == labels.argmax(-1)).float() * weight
        right.append(float(hits.sum() / weight.sum()))
    return total, right


def train_draft(target: Target, tokenizer: ChatTokenizer, shape: DraftShape, plan: DraftPlan) -> Eagle3:
    """Train a draft for this target; the result already has its saved bf16 values."""
    torch.manual_seed(plan.seed)
    draft = Eagle3(shape, draft_vocabulary(tokenizer, shape.vocab))
    embed = target.embed.detach()
    optimiser = MuonAdam(draft.parameters(), plan.matrix_rate, plan.other_rate)
    begun = time.time()
    for step, lesson in zip(range(plan.steps), teachings(target, tokenizer, plan), strict=False):
        loss, right = draft_loss(draft, embed, lesson, plan.ttt_steps)
        loss.backward()
        nn.utils.clip_grad_norm_(draft.parameters(), 1.0, foreach=True)
        optimiser.step(schedule(step, plan.steps, plan.warmup))
        if step % 20 == 0 or step == plan.steps - 1:
            shares = " ".join(f"{x:.3f}" for x in right)
            progress = f"draft {step:5d}/{plan.steps} loss {float(loss.detach()):.3f} top-1 {shares}"
            print(f"{progress} {time.time() - begun:.0f}s", flush=True)
    draft.round_to_bf16()
    return draft
