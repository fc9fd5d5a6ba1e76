"""Which ordered boundaries make the draft work best? All of them where they are few, else coarse to fine.

``fc`` is linear, so what every boundary contributes in every slot is computed once; a wiring is then a sum. Candidates
are ranked by the loss of step 0 (see ``score.Guesses``), which falls smoothly as slots come right, on the first rows of
a few texts; the best are then scored on everything by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import perm

import numpy as np
import numpy.typing as npt
import torch

from drafttrace.compare.replay.loading import Replayer
from drafttrace.compare.replay.packs import Pack
from drafttrace.compare.replay.products import linear
from drafttrace.compare.replay.score import ENOUGH, ROWS_AT_ONCE, run_states
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.replay.texts import Key, Text

BRUTE = 400
"""Up to so many ordered wirings are all tried."""
ROWS, TEXTS = 256, 4
_GRID, _BEAM, _TOP = 7, 6, 8

Wiring = tuple[Key, ...]


@dataclass(frozen=True)
class Ranked:
    """Wirings that were tried, best first, with their losses; ``tried`` of ``possible`` ordered wirings."""

    wirings: tuple[Wiring, ...]
    losses: tuple[float, ...]
    tried: int
    possible: int
    method: str


def search(
    replayer: Replayer,
    texts: Sequence[Text],
    keys: Sequence[Key],
    slots: int,
    switches: Switches,
    seeds: Iterable[Wiring] = (),
    progress: Callable[[int], None] | None = None,
) -> Ranked:
    """Rank ordered wirings of ``slots`` keys. seeds: wirings to begin from beside the grid (the declared ones)."""
    judge = _Judge(replayer, texts, keys, switches, progress)
    possible = perm(len(keys), slots)
    if possible <= BRUTE:
        judge.losses(list(permutations(keys, slots)))
        return judge.ranked(possible, "all ordered wirings")
    coarse = _grid(keys)
    judge.losses([*permutations(coarse, slots), *(seed for seed in seeds if set(seed) <= set(keys))])
    stride = max(1, len(keys) // max(1, len(coarse) - 1))
    for wiring in judge.best(_BEAM):
        _descend(judge, wiring, keys, stride)
    _descend(judge, judge.best(1)[0], keys, len(keys))
    return judge.ranked(possible, "coarse to fine")


def _grid(keys: Sequence[Key]) -> list[Key]:
    """A few keys over the whole depth, the first and the last among them."""
    places = np.unique(np.linspace(0, len(keys) - 1, _GRID).round().astype(int))
    return [keys[place] for place in places]


def _descend(judge: _Judge, wiring: Wiring, keys: Sequence[Key], reach: int) -> None:
    """Move one slot at a time to its best key within ``reach`` places, until nothing gets better."""
    places = {key: place for place, key in enumerate(keys)}
    while True:
        before = judge.loss(wiring)
        for slot in range(len(wiring)):
            at = places[wiring[slot]]
            near = keys[max(0, at - reach) : at + reach + 1]
            moved = [(*wiring[:slot], key, *wiring[slot + 1 :]) for key in near if key not in wiring]
            judge.losses(moved)
            wiring = min([wiring, *moved], key=judge.loss)
        if judge.loss(wiring) >= before - 1e-6:
            return


class _Judge:
    """Losses of wirings, each computed once, from contributions that are shared."""

    def __init__(
        self,
        replayer: Replayer,
        texts: Sequence[Text],
        keys: Sequence[Key],
        switches: Switches,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._replayer, self._switches, self._progress = replayer, switches, progress
        chosen = sorted(texts, key=lambda text: -text.rows)[:TEXTS]
        counted = sum(int(text.weight[text.mask_offset :][: min(text.rows, ROWS)].sum()) for text in chosen)
        masked = counted >= ENOUGH
        with_last = [text for text in chosen if text.final is not None]
        without = [text for text in chosen if text.final is None]
        self._parts = [
            _Contributions(replayer, part, keys, switches, masked) for part in (with_last, without) if part
        ]
        self._batch = max(1, ROWS_AT_ONCE // max(part.rows for part in self._parts))
        self._known: dict[Wiring, float] = {}

    def losses(self, wirings: Sequence[Wiring]) -> None:
        """Compute the losses of those wirings that are not known yet."""
        fresh = [w for w in dict.fromkeys(wirings) if w not in self._known]
        for begin in range(0, len(fresh), self._batch):
            batch = fresh[begin : begin + self._batch]
            sums, counts = np.zeros(len(batch)), np.zeros(len(batch))
            for part in self._parts:
                for i, loss in enumerate(part.losses(batch)):
                    finite = np.isfinite(loss)
                    sums[i] += float(loss[finite].sum())
                    counts[i] += int(finite.sum())
            for wiring, total, count in zip(batch, sums, counts, strict=True):
                self._known[wiring] = float(total / count) if count else float("inf")
            if self._progress is not None:
                self._progress(len(batch))

    def loss(self, wiring: Wiring) -> float:
        """The loss of one wiring."""
        if wiring not in self._known:
            self.losses([wiring])
        return self._known[wiring]

    def best(self, count: int) -> list[Wiring]:
        """The best wirings so far."""
        return sorted(self._known, key=lambda w: self._known[w])[:count]

    def ranked(self, possible: int, method: str) -> Ranked:
        top = self.best(_TOP)
        return Ranked(tuple(top), tuple(self._known[w] for w in top), len(self._known), possible, method)


class _Contributions:
    """What each key adds to fc's output in each slot, for the first rows of some texts."""

    def __init__(
        self, replayer: Replayer, texts: Sequence[Text], keys: Sequence[Key], switches: Switches, masked: bool
    ) -> None:
        self._replayer, self._switches = replayer, switches
        self._pack = pack = Pack(tuple(texts), tuple(min(text.rows, ROWS) for text in texts))
        self.rows = pack.total
        counted = (_counted(text, rows, masked) for text, rows in zip(texts, pack.rows, strict=True))
        self._counted = np.concatenate(list(counted))
        self._reading = pack.reading(replayer, 1, switches)
        self._label, self._soft = pack.label(replayer, switches), pack.soft(replayer, switches)
        model = replayer.model
        self._bias = model.weights.get("fc.bias")
        width = replayer.config.slot_width
        blocks = model.weights["fc.weight"].split(width, dim=1)  # type: ignore[no-untyped-call]
        gain = model.weights["input_norm.weight"] if switches.input_norm else None
        self._added: dict[tuple[Key, int], torch.Tensor] = {}
        self._squares: dict[tuple[Key, int], torch.Tensor] = {}
        for key in keys:
            states = pack.states(key)
            for slot, block in enumerate(blocks):
                x = states if gain is None else states * gain[slot * width : (slot + 1) * width]
                if switches.fc_norm:  # takes out again what a norm over all slots divided this one by
                    x = model._norm(x, f"fc_norm.{slot}.weight")
                elif gain is not None:
                    self._squares[key, slot] = states.square().sum(-1, keepdim=True)
                self._added[key, slot] = linear(x, block)

    def losses(self, wirings: Sequence[Wiring]) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """Loss per row of every wiring; NaN where the next token is not counted."""
        states = torch.stack([self._state(wiring) for wiring in wirings])
        made = run_states(
            self._replayer, self._pack, states, self._reading, self._switches, self._label, self._soft
        )
        losses = [np.concatenate([guess.loss for guess in guesses]) for guesses in made]
        return [np.where(self._counted, loss, np.float32(np.nan)) for loss in losses]

    def _state(self, wiring: Wiring) -> torch.Tensor:
        total = torch.stack([self._added[key, slot] for slot, key in enumerate(wiring)]).sum(0)
        if self._squares:
            squares = torch.stack([self._squares[key, slot] for slot, key in enumerate(wiring)]).sum(0)
            width = self._replayer.config.slot_width * len(wiring)
            total = total * torch.rsqrt(squares / width + self._replayer.config.eps)
        return total if self._bias is None else total + self._bias


def _counted(text: Text, rows: int, masked: bool) -> npt.NDArray[np.bool_]:
    """Which of the first rows the mask counts; all of them where it is not kept to."""
    weight = text.weight[text.mask_offset : text.mask_offset + rows]
    counted = np.full(rows, not masked)
    counted[: len(weight)] |= weight
    return counted
