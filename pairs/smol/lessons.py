"""What the head learns from: stored states and the target's own distribution, batch by batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from pairs.smol.answers import KEPT, LAYERS, Talk, open_states


@dataclass(frozen=True)
class Sample:
    """One conversation as the head sees it. T rows: every token but the last, for which no state is stored.

    ids ``[T]``, mask ``[T]`` (1 on the answer), states: B(k) ``[T, H]`` by k, last ``[T, H]`` (after the final norm).
    """

    ids: list[int]
    mask: list[int]
    boundaries: dict[int, Tensor]
    last: Tensor
    prompt_length: int


@dataclass(frozen=True)
class Lesson:
    """A batch: ids, mask, best (the target's argmax) ``[rows, T]``, slots ``[rows, T, K*H]``, last ``[rows, T, H]``."""

    ids: Tensor
    mask: Tensor
    best: Tensor
    slots: Tensor
    last: Tensor


class Samples:
    """Stored conversations with their states (memory-mapped) the target's embedding, which is its head too,
    and its final norm."""

    def __init__(self, talks: Sequence[Talk], target: Path) -> None:
        self.talks = list(talks)
        tensors = load_file(target / "model.safetensors")
        self.embed, self.norm = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
        self._states = {name: torch.from_numpy(open_states(name)) for name in {t.states for t in self.talks}}

    def __len__(self) -> int:
        return len(self.talks)

    def sample(self, index: int) -> Sample:
        """Conversation ``index``; states are bf16."""
        talk = self.talks[index]
        stored = self._states[talk.states][talk.start : talk.start + talk.rows].view(torch.bfloat16)
        ids = talk.ids[: talk.rows]
        mask = [int(i >= talk.prompt_length) for i in range(talk.rows)]
        boundaries = {k: stored[:, i] for i, k in enumerate(KEPT) if k < LAYERS}
        boundaries[0] = self.embed[torch.tensor(ids)]
        return Sample(ids, mask, boundaries, stored[:, KEPT.index(LAYERS)], talk.prompt_length)

    @cached_property
    def best(self) -> list[Tensor]:
        """The target's argmax behind every row of every conversation, ``[T]`` each."""
        found = []
        for i in range(len(self)):
            sample = self.sample(i)
            # Greedy answers say themselves what the argmax was; only the prompt's rows are computed.
            said = torch.tensor(self.talks[i].ids[sample.prompt_length :])
            asked = F.linear(sample.last[: sample.prompt_length - 1], self.embed).argmax(-1)
            found.append(torch.cat((asked, said)))
        return found

    def vocabulary(self, size: int) -> tuple[Tensor, float]:
        """The ids that the answers use most, ascending (ties: the lower id), and the share of the answers they cover."""
        counts: Counter[int] = Counter()
        for talk in self.talks:
            counts.update(talk.ids[talk.prompt_length :])
        ranked = sorted(range(len(self.embed)), key=lambda i: (-counts[i], i))[:size]
        return torch.tensor(sorted(ranked)), sum(counts[i] for i in ranked) / max(1, counts.total())

    def channel_scale(self, wiring: Sequence[int], talks: int = 64) -> Tensor:
        """Root mean square of every channel of the fc input ``[K*H]``, row 0 left out: it is a hundred times larger."""
        parts = [self.slots(self.sample(i), wiring)[1:].float() for i in range(min(talks, len(self)))]
        return torch.cat(parts).square().mean(0).sqrt()

    @staticmethod
    def slots(sample: Sample, wiring: Sequence[int]) -> Tensor:
        """The fc input ``[T, K*H]`` that this wiring makes."""
        return torch.cat([sample.boundaries[k] for k in wiring], dim=-1)

    def lesson(self, indices: Sequence[int], wiring: Sequence[int]) -> Lesson:
        """The conversations ``indices`` as one batch, filled up with zeros on the right."""
        samples = [self.sample(i) for i in indices]
        length = max(len(s.ids) for s in samples)

        def filled(rows: Sequence[Tensor]) -> Tensor:
            out = rows[0].new_zeros(len(rows), length, *rows[0].shape[1:])
            for target, row in zip(out, rows, strict=True):
                target[: len(row)] = row
            return out

        return Lesson(
            ids=filled([torch.tensor(s.ids) for s in samples]),
            mask=filled([torch.tensor(s.mask, dtype=torch.float32) for s in samples]),
            best=filled([self.best[i] for i in indices]),
            slots=filled([self.slots(s, wiring) for s in samples]),
            last=filled([s.last for s in samples]),
        )

    def epoch(self, seed: int, rows: int, wiring: Sequence[int]) -> Iterator[Lesson]:
        """All conversations once, in batches of ``rows`` that are about equally long, in random order."""
        rng = random.Random(seed)
        order = sorted(range(len(self)), key=lambda i: (self.talks[i].rows, rng.random()))
        batches = [order[i : i + rows] for i in range(0, len(order), rows)]
        rng.shuffle(batches)
        for batch in batches:
            yield self.lesson(batch, wiring)
