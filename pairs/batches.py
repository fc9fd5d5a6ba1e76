"""Training batches: conversations of about one length, one to a row."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairs.corpus import conversations
from pairs.tokenizer import ChatTokenizer, Encoded


@dataclass(frozen=True)
class Batch:
    """Token ids and assistant mask, both [rows, length]."""

    ids: Tensor
    mask: Tensor


def bucketed(
    tokenizer: ChatTokenizer, seed: int, tokens: int, families: Sequence[str] | None = None, pool: int = 24
) -> Iterator[Batch]:
    """An endless stream of batches of about `tokens` tokens, each of conversations of about one length.

    Drawn from pools of `pool` batches, so that little is padding; one conversation is one row.
    """
    order = random.Random(seed)
    talks = conversations(seed, families)
    while True:
        waiting: list[Encoded] = []
        while sum(len(e.ids) for e in waiting) < pool * tokens:
            waiting.append(tokenizer.encode(next(talks)))
        waiting.sort(key=lambda e: len(e.ids))
        batches: list[list[Encoded]] = [[]]
        for sample in waiting:
            if (len(batches[-1]) + 1) * len(sample.ids) > tokens:
                batches.append([])
            batches[-1].append(sample)
        order.shuffle(batches)
        yield from map(padded, batches)


def padded(samples: list[Encoded]) -> Batch:
    """Samples as the rows of one batch, filled up on the right with token 0 and mask 0."""
    length = max(len(s.ids) for s in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    mask = torch.zeros(len(samples), length)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        mask[row, : len(sample.mask)] = torch.tensor(sample.mask, dtype=torch.float32)
    return Batch(ids, mask)
