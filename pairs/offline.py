"""What a draft is worth, measured without a server: step accuracies and simulated accept lengths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pairs.batches import padded
from pairs.chat import END_ID
from pairs.eagle3 import Eagle3
from pairs.targets import Target
from pairs.tokenizer import Encoded


@dataclass(frozen=True)
class StepScores:
    """Accuracy of one training-time-test step over the rows whose token x[t+1+s] the assistant speaks.

    `target` compares the draft's argmax with the target's own, `token` with the real token x[t+2+s]; both
    count a token outside the draft vocabulary as wrong. The `_covered` figures leave those rows out.
    """

    rows: int
    target: float | None
    target_covered: float | None
    token: float
    token_covered: float
    coverage: float


@torch.no_grad()
def greedy(target: Target, prompts: Sequence[list[int]], new_tokens: int) -> list[list[int]]:
    """The target's greedy replies, each ending with the end mark or after `new_tokens` tokens."""
    texts = [list(p) for p in prompts]
    alive = set(range(len(texts)))
    for _ in range(new_tokens):
        chosen = sorted(alive)
        if not chosen:
            break
        batch = padded([Encoded(texts[i], [1] * len(texts[i])) for i in chosen])
        last = target(batch.ids)[-1]
        ends = torch.tensor([len(texts[i]) - 1 for i in chosen])
        best = target.logits(last[torch.arange(len(chosen)), ends]).argmax(-1)
        for i, token in zip(chosen, best.tolist(), strict=True):
            texts[i].append(token)
            if token == END_ID:
                alive.discard(i)
    return [text[len(p) :] for text, p in zip(texts, prompts, strict=True)]


@torch.no_grad()
def boundaries_of(target: Target, ids: list[int]) -> list[Tensor]:
    """B(0)..B(n) of one text, each [length, hidden]."""
    return [b[0] for b in target(torch.tensor([ids]))]


def slots_of(boundaries: Sequence[Tensor], wiring: Sequence[int]) -> Tensor:
    """The fc input that this wiring makes, [length, slots * hidden]."""
    return torch.cat([boundaries[k] for k in wiring], dim=-1)


@torch.no_grad()
def proposals(draft: Eagle3, embed: Tensor, slots: Tensor, ids: list[int], steps: int) -> Tensor:
    """Step s of row t: the token that the draft names for position t+2+s, [steps, length]."""
    next_ids = F.pad(torch.tensor([ids[1:]]), (0, steps))
    logits = draft(slots.unsqueeze(0).float(), next_ids, embed, steps)
    return torch.stack([draft.draft_ids[step[0].argmax(-1)] for step in logits])


def accept_lengths(proposed: Tensor, ids: list[int], prompt: int) -> list[int]:
    """Tokens that each verify round of a topk-1 chain yields, the target's own token included.

    `proposed` comes from `proposals` over a text that is the target's greedy output, so the chain that
    serving drafts agrees with the text exactly as far as it is accepted.
    """
    steps, total = proposed.shape[0], len(ids)
    lengths = []
    known = prompt + 1  # prefill yields the first token
    while known < total:
        row = known - 2
        accepted = 0
        while (
            accepted < steps and known + accepted < total and int(proposed[accepted, row]) == ids[known + accepted]
        ):
            accepted += 1
        lengths.append(min(accepted + 1, total - known))
        known += accepted + 1
    return lengths


@torch.no_grad()
def step_scores(
    draft: Eagle3, embed: Tensor, samples: Sequence[tuple[Encoded, Tensor, Tensor | None]], steps: int
) -> list[StepScores]:
    """Scores over samples of (text, slots, the target's argmax per row or None)."""
    in_vocabulary = set(draft.draft_ids.tolist())
    tallies = [[0] * 5 for _ in range(steps)]
    has_target = all(best is not None for _, _, best in samples)
    for text, slots, best in samples:
        proposed = proposals(draft, embed, slots, text.ids, steps)
        for s, tally in enumerate(tallies):
            for t in range(len(text.ids) - 2 - s):
                if not text.mask[t + 1 + s]:
                    continue
                said, real = int(proposed[s, t]), text.ids[t + 2 + s]
                tally[0] += 1
                tally[1] += said == real
                tally[2] += real in in_vocabulary
                if best is not None:
                    wanted = int(best[t + 1 + s])
                    tally[3] += said == wanted
                    tally[4] += wanted in in_vocabulary
    return [
        StepScores(
            rows=rows,
            target=hit / rows if has_target else None,
            target_covered=hit / covered if has_target else None,
            token=right / rows,
            token_covered=right / known,
            coverage=known / rows,
        )
        for rows, right, known, hit, covered in tallies
    ]


def neighbour_distances(boundaries: Sequence[Tensor]) -> list[float]:
    """Median over rows of |B(k+1) - B(k)| / |B(k)|, for every k."""
    return [float(((b - a).norm(dim=-1) / a.norm(dim=-1)).median()) for a, b in itertools.pairwise(boundaries)]
