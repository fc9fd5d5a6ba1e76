"""Texts behind one another: everything that works row by row is then one operation for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch

from drafttrace.compare.replay.loading import Replayer, step_tokens
from drafttrace.compare.replay.model import Reading
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.replay.texts import Key, Text
from drafttrace.tracer.capture import Ints

ROWS = 2048
"""Rows from which on a longer pack gains nothing: an operation's own cost is small beside its work by then."""


@dataclass(frozen=True)
class Pack:
    """The first ``rows[i]`` rows of each text, R in all; either every text has a last state or none."""

    texts: tuple[Text, ...]
    rows: tuple[int, ...]

    @property
    def total(self) -> int:
        """R."""
        return sum(self.rows)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where each text begins and ends in the rows."""
        return tuple(pairwise(accumulate(self.rows, initial=0)))

    def states(self, key: Key) -> torch.Tensor:
        """The states of a key ``[R, width]``."""
        return _joined([torch.from_numpy(text.state(key, rows)) for text, rows in self._each()])

    def reading(self, replayer: Replayer, steps: int, switches: Switches) -> Reading:
        """What each step reads: token t+1+s, moved by the token shift."""
        shift = switches.token_shift
        tokens = [[step_tokens(text.tokens, s, rows, shift) for text, rows in self._each()] for s in range(steps)]
        return replayer.reading(np.stack([np.concatenate(step) for step in tokens]), switches)

    def label(self, replayer: Replayer, switches: Switches) -> torch.Tensor:
        """See :meth:`Replayer.draft_ids` ``[R]``."""
        found: list[Ints] = [replayer.draft_ids(text, rows, switches) for text, rows in self._each()]
        return torch.from_numpy(np.concatenate(found))

    def soft(self, replayer: Replayer, switches: Switches) -> torch.Tensor | None:
        """The target's log-probabilities at each row's next position, over the draft vocabulary ``[R, V]``.

        None without last states. The row without a successor repeats itself; it counts nowhere.
        """
        found = [
            text.final[np.minimum(np.arange(rows) + 1, len(text.final) - 1)]
            for text, rows in self._each()
            if text.final is not None
        ]
        return replayer.soft_targets(np.concatenate(found), switches) if len(found) == len(self.texts) else None

    def _each(self) -> Iterator[tuple[Text, int]]:
        return zip(self.texts, self.rows, strict=True)


def packs_of(texts: Sequence[Text], most: int = ROWS) -> Iterator[Pack]:
    """The texts, in their order, in packs of about ``most`` rows; a longer text is one of its own."""
    held: list[Text] = []
    for text in texts:
        fits = sum(one.rows for one in held) + text.rows <= most
        if held and not (fits and (held[0].final is None) == (text.final is None)):
            yield Pack(tuple(held), tuple(one.rows for one in held))
            held = []
        held.append(text)
    if held:
        yield Pack(tuple(held), tuple(one.rows for one in held))


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
