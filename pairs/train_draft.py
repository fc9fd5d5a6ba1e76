"""Training of a draft on the hidden states of a trained target, with training-time test."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    pool: int = 40
    repeats: int = 3
    tokens: int = 2560
    matrix_rate: float = 0.012
    other_rate: float = 0.004
    warmup: int = 30
    seed: int = 23
    families: tuple[str, ...] | None = None  # kinds of text; None = all


@dataclass(frozen=True)
class Lesson:
    """What a draft learns from one batch."""

    slots: Tensor  # [rows, length, slots * hidden]
    ids: Tensor
    wanted: Tensor  # the target's own distribution over the draft vocabulary
    weight: Tensor  # 1 where the assistant speaks and the target's argmax is in the draft vocabulary


def draft_vocabulary(
    tokenizer: ChatTokenizer, size: int, families: Sequence[str] | None = None, seed: int = 31, talks: int = 4000
) -> Tensor:
    """The ids that the assistant speaks most often, ascending; ties go to the lower id."""
    counts: Counter[int] = Counter()
    for talk in islice(conversations(seed, families), talks):
        encoded = tokenizer.encode(talk)
        counts.update(i for i, spoken in zip(encoded.ids, encoded.mask, strict=True) if spoken)
    by_frequency = sorted(range(VOCAB_SIZE), key=lambda i: (-counts[i], i))
    return torch.tensor(sorted(by_frequency[:size]))


@torch.no_grad()
def teach(target: Target, batch: Batch, wiring: tuple[int, ...], draft_ids: Tensor) -> Lesson:
    """One forward pass of the target."""
    boundaries = target(batch.ids)
    logits = target.logits(boundaries[-1])
    return Lesson(
        slots=torch.cat([boundaries[k] for k in wiring], dim=-1),
        ids=batch.ids,
        wanted=logits[..., draft_ids].softmax(-1),
        weight=batch.mask * torch.isin(logits.argmax(-1), draft_ids),
    )


def lessons(target: Target, tokenizer: ChatTokenizer, plan: DraftPlan, draft_ids: Tensor) -> Iterator[Lesson]:
    """An endless stream of lessons; the target computes `pool` of them, which are then taught `repeats` times."""
    order = random.Random(plan.seed)
    batches = bucketed(tokenizer, plan.seed, plan.tokens, plan.families)
    while True:
        pool = [teach(target, batch, plan.wiring, draft_ids) for batch in islice(batches, plan.pool)]
        for _ in range(plan.repeats):
            order.shuffle(pool)
            yield from pool


def shifted(x: Tensor, by: int) -> Tensor:
    """Row t of the result is row t + `by`; the tail is zero."""
    return torch.cat((x[:, by:], torch.zeros_like(x[:, :by])), dim=1)


def draft_loss(draft: Eagle3, embed: Tensor, lesson: Lesson, ttt_steps: int) -> tuple[Tensor, list[float]]:
    """Weighted soft cross-entropy over all steps, and the accuracy of each step against the target's argmax."""
    next_ids = F.pad(lesson.ids[:, 1:], (0, ttt_steps))
    total, right = torch.zeros(()), []
    for step, logits in enumerate(draft(lesson.slots, next_ids, embed, ttt_steps)):
        weight, labels = shifted(lesson.weight, 1 + step), shifted(lesson.wanted, 1 + step)
        spoken = weight > 0  # the other rows count for nothing
        logits, labels = logits[spoken], labels[spoken]
        total = total + STEP_DECAY**step * F.cross_entropy(logits, labels)
        right.append(float((logits.argmax(-1) == labels.argmax(-1)).float().mean()))
    return total, right


def slot_scale(slots: Tensor, shape: DraftShape) -> Tensor:
    """What brings each slot to a root mean square of 1, one figure per slot, as a row over the whole fc input.

    Boundaries differ in size by orders of magnitude, and one learning rate cannot serve them all. The draft
    trains on scaled slots; its `fc` takes the scale over in the end.
    """
    each = slots.unflatten(-1, (shape.slots, shape.hidden)).square().mean((0, 1, 3)).rsqrt()
    return each.repeat_interleave(shape.hidden)


def train_draft(target: Target, tokenizer: ChatTokenizer, shape: DraftShape, plan: DraftPlan) -> Eagle3:
    """Train a draft for this target; the result already has its saved bf16 values."""
    torch.manual_seed(plan.seed)
    draft = Eagle3(shape, draft_vocabulary(tokenizer, shape.vocab, plan.families))
    embed = target.embed.detach()
    optimiser = MuonAdam(draft.parameters(), plan.matrix_rate, plan.other_rate)
    begun = time.time()
    stream = lessons(target, tokenizer, plan, draft.draft_ids)
    scale = torch.ones(shape.slots * shape.hidden)
    for step, lesson in zip(range(plan.steps), stream, strict=False):
        if step == 0:
            scale = slot_scale(lesson.slots, shape)
        loss, right = draft_loss(draft, embed, replace(lesson, slots=lesson.slots * scale), plan.ttt_steps)
        loss.backward()
        nn.utils.clip_grad_norm_(draft.parameters(), 1.0, foreach=True)
        optimiser.step(schedule(step, plan.steps, plan.warmup))
        if step % 20 == 0 or step == plan.steps - 1:
            shares = " ".join(f"{x:.3f}" for x in right)
            progress = f"draft {step:5d}/{plan.steps} loss {float(loss.detach()):.3f} top-1 {shares}"
            print(f"{progress} {time.time() - begun:.0f}s", flush=True)
    with torch.no_grad():
        draft.weights["fc"].mul_(scale)
    draft.round_to_bf16()
    return draft
