"""Running wirings over texts and counting: top-1 and top-3 against the text and the target, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from drafttrace.compare.replay.loading import Replayer
from drafttrace.compare.replay.model import Reading
from drafttrace.compare.replay.packs import ROWS, Pack, packs_of
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.replay.texts import Key, Text
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Floats

TOP = 3
ENOUGH = 24
"""Counted rows from which on the mask is kept to when wirings are ranked by loss: on text that training masked out a
draft is confidently wrong, and a wiring that merely blurs it looks better there."""
_LOGITS_AT_ONCE = 1 << 26
"""Logits held at a time, in numbers."""
ROWS_AT_ONCE = 8192
"""Rows of all wirings together that run side by side."""


@dataclass(frozen=True)
class Guesses:
    """What one wiring proposes for one text: target ids ``[steps, R, 3]``, best first; loss ``[R]`` of step 0.

    loss: how far the draft's distribution is from the target's (Kullback-Leibler, over the draft vocabulary) where the
    capture has the last state, else the negative log-likelihood of the next token; NaN where there is neither.
    """

    top: Ints
    loss: Floats


def run_wirings(
    replayer: Replayer, texts: Sequence[Text], wirings: Sequence[Sequence[Key]], switches: Switches, steps: int
) -> list[list[Guesses]]:
    """The proposals of every wiring, side by side: for each wiring those for every text."""
    model = replayer.model
    most = max(1, min(ROWS_AT_ONCE, _LOGITS_AT_ONCE // replayer.draft_vocabulary))
    found: list[list[Guesses]] = [[] for _ in wirings]
    for pack in packs_of(texts, min(ROWS, most)):
        reading = pack.reading(replayer, steps, switches)
        label, soft = pack.label(replayer, switches), pack.soft(replayer, switches)
        room = max(1, most // pack.total)
        for begin in range(0, len(wirings), room):
            some = wirings[begin : begin + room]
            fed = {key: pack.states(key) for key in dict.fromkeys(key for wiring in some for key in wiring)}
            states = [model.fc(model.fc_in([fed[key] for key in wiring], switches)) for wiring in some]
            made = run_states(replayer, pack, torch.stack(states), reading, switches, label, soft)
            for all_of_one, ours in zip(found[begin : begin + room], made, strict=True):
                all_of_one += ours
    return found


def run_states(
    replayer: Replayer,
    pack: Pack,
    states: torch.Tensor,
    reading: Reading,
    switches: Switches,
    label: torch.Tensor,
    soft: torch.Tensor | None,
) -> list[list[Guesses]]:
    """The proposals that follow from fc's output ``[B, R, H]``: for each of the B those for every text of the pack.

    label ``[R]`` and soft ``[R, V]``: what :class:`Pack` has under these names.
    """
    targets = replayer.targets(switches)
    tops, loss = [], np.empty(0, np.float32)
    for s, step in enumerate(replayer.model.steps(states, reading, switches, pack.spans)):
        logits = replayer.model.logits(step.normed)
        if s == 0:
            loss = _losses(logits, label, soft).numpy()
        tops.append(targets[best_of(logits)])
    stacked = np.stack(tops, axis=1)  # [B, steps, R, 3]
    return [
        [Guesses(stacked[b, :, begin:end], loss[b, begin:end]) for begin, end in pack.spans]
        for b in range(len(states))
    ]


def best_of(logits: torch.Tensor) -> Ints:
    """The places of the :data:`TOP` largest of each row ``[..., TOP]``, the first of equal ones. ``logits`` are spent."""
    rows = logits.numpy().reshape(-1, logits.shape[-1])
    each = np.arange(len(rows))
    found = np.empty((len(rows), min(TOP, rows.shape[1])), np.int64)
    for k in range(found.shape[1]):
        found[:, k] = rows.argmax(1)
        rows[each, found[:, k]] = -np.inf
    return found.reshape(*logits.shape[:-1], -1)


def _losses(logits: torch.Tensor, label: torch.Tensor, soft: torch.Tensor | None) -> torch.Tensor:
    """Loss of every row ``[B, R]``; see :class:`Guesses`."""
    if soft is not None:
        return torch.log_softmax(logits, dim=-1).neg_().add_(soft).mul_(soft.exp()).sum(-1)
    picked = logits.gather(-1, label.clamp(min=0).expand(len(logits), -1)[..., None])[..., 0]
    return torch.where(label >= 0, torch.logsumexp(logits, -1) - picked, torch.nan)


@dataclass(frozen=True)
class StepScore:
    """One step over all texts. Shares of rows: ``token_*`` against the text's next token, ``target_*`` against the
    target's own choice (None without a last state). ``*_covered``: among the rows whose token the draft can say.
    ``rows`` counted by the mask; ``all_*`` is over every row. ``accepted``: given that all earlier steps were right.
    """

    step: int
    rows: int
    token_top1: float
    token_top3: float
    token_covered: float
    target_top1: float | None
    target_top3: float | None
    target_covered: float | None
    all_rows: int
    all_token_top1: float
    all_target_top1: float | None
    accepted: float
    coverage: float


@dataclass(frozen=True)
class WiringScore:
    """All steps of one wiring; loss_counted and loss_all: mean loss of step 0 over counted and over all rows (see
    :class:`Guesses`). expected: 1 + a1 + a1*a2 + …
    of the conditional step accuracies. simulated: mean accept length of a chain over the text, bonus token included,
    from ``rounds`` rounds.
    """

    steps: tuple[StepScore, ...]
    loss_counted: float
    loss_all: float
    expected: float
    simulated: float
    rounds: int

    @property
    def loss(self) -> float:
        """What close wirings are told apart by: the loss over the counted rows, over all rows where those are few."""
        return self.loss_counted if self.rows >= ENOUGH else self.loss_all

    @property
    def rows(self) -> int:
        """Rows counted at step 0."""
        return self.steps[0].rows if self.steps else 0

    @property
    def top1(self) -> float:
        """What wirings are ranked by: agreement at step 0 with the target's choice, else with the text."""
        first = self.steps[0]
        return first.token_top1 if first.target_top1 is None else first.target_top1


class _Tally:
    """Counts of one step, masked and not."""

    def __init__(self) -> None:
        self.n: dict[str, int] = {}

    def add(self, name: str, count: int) -> None:
        self.n[name] = self.n.get(name, 0) + int(count)

    def share(self, hits: str, rows: str) -> float:
        return self.n.get(hits, 0) / self.n[rows] if self.n.get(rows) else float("nan")


def score(
    replayer: Replayer, texts: Sequence[Text], guesses: Sequence[Guesses], switches: Switches, steps: int
) -> WiringScore:
    """Count the proposals of one wiring over all texts (``guesses[i]`` belongs to ``texts[i]``)."""
    sayable = replayer.sayable(switches)
    tallies = [_Tally() for _ in range(steps)]
    has_target = all(text.best is not None for text in texts)
    lengths: list[int] = []
    losses: list[npt.NDArray[np.float32]] = []
    every: list[npt.NDArray[np.float32]] = []
    for text, guess in zip(texts, guesses, strict=True):
        right = np.ones(text.rows, bool)
        hits = np.zeros((steps, text.rows), bool)
        for s, tally in enumerate(tallies):
            count = min(text.rows, len(text.tokens) - 2 - s)
            if count <= 0:
                continue
            top = guess.top[s, :count]
            real = text.tokens[2 + s : 2 + s + count]
            weight = _weights(text, s, count)
            equal = top == real[:, None]
            hits[s, :count] = equal[:, 0]
            for name, chosen in (("", weight), ("all_", np.ones(count, bool))):
                _count(tally, name, chosen, equal, sayable(real), text, s, count, top, sayable)
            tally.add("reached", (right[:count] & weight).sum())
            tally.add("accepted", (right[:count] & weight & equal[:, 0]).sum())
            right[:count] &= equal[:, 0]
            right[count:] = False
        losses.append(guess.loss[_weights(text, 0, min(text.rows, len(text.tokens) - 2), text.rows)])
        every.append(guess.loss)
        lengths += chain_lengths(hits, text)
    scores = tuple(_step(s, tally, has_target) for s, tally in enumerate(tallies))
    expected, product = 1.0, 1.0
    for one in scores:
        product *= one.accepted if np.isfinite(one.accepted) else 0.0
        expected += product
    return WiringScore(
        steps=scores,
        loss_counted=_mean(losses),
        loss_all=_mean(every),
        expected=expected,
        simulated=float(np.mean(lengths)) if lengths else float("nan"),
        rounds=len(lengths),
    )


def row_losses(texts: Sequence[Text], guesses: Sequence[Guesses]) -> npt.NDArray[np.float32]:
    """The loss of every row that counts when wirings are ranked, over all texts: masked ones where there are enough."""
    counted = [_weights(text, 0, min(text.rows, len(text.tokens) - 2), text.rows) for text in texts]
    if sum(int(one.sum()) for one in counted) < ENOUGH:
        counted = [np.ones(text.rows, bool) for text in texts]
    return np.concatenate([guess.loss[one] for guess, one in zip(guesses, counted, strict=True)])


def row_hits(texts: Sequence[Text], guesses: Sequence[Guesses], steps: int) -> npt.NDArray[np.float32]:
    """Right proposals of all steps, for every row that the mask counts: what wirings are compared by row by row.

    A proposal is right where it is the text's token or, where it is known, the target's own choice.
    """
    found = []
    for text, guess in zip(texts, guesses, strict=True):
        hits = np.zeros(text.rows, np.float32)
        for s in range(steps):
            count = min(text.rows, len(text.tokens) - 2 - s)
            if count <= 0:
                break
            first = guess.top[s, :count, 0]
            right = first == text.tokens[2 + s : 2 + s + count]
            if text.best is not None:
                within = min(count, text.rows - 1 - s)
                right[:within] |= first[:within] == text.best[1 + s : 1 + s + within]
            hits[:count] += right & _weights(text, s, count)
        found.append(hits[_weights(text, 0, max(0, min(text.rows, len(text.tokens) - 2)), text.rows)])
    return np.concatenate(found)


def _mean(parts: Sequence[npt.NDArray[np.float32]]) -> float:
    """Mean of the finite values; NaN where there are none."""
    values = np.concatenate(parts) if parts else np.empty(0, np.float32)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def _weights(text: Text, s: int, count: int, rows: int | None = None) -> npt.NDArray[np.bool_]:
    """Which of the first ``count`` rows the mask counts at step s, as ``[count]`` (or padded to ``rows``)."""
    begin = text.mask_offset + s
    weight = np.zeros(count, bool)
    given = text.weight[begin : begin + count]
    weight[: len(given)] = given
    if rows is None:
        return weight
    return np.concatenate((weight, np.zeros(rows - count, bool)))


def _count(
    tally: _Tally,
    name: str,
    chosen: npt.NDArray[np.bool_],
    equal: npt.NDArray[np.bool_],
    known: npt.NDArray[np.bool_],
    text: Text,
    s: int,
    count: int,
    top: Ints,
    sayable: Sayable,
) -> None:
    tally.add(f"{name}rows", chosen.sum())
    tally.add(f"{name}token1", (equal[:, 0] & chosen).sum())
    tally.add(f"{name}token3", (equal.any(1) & chosen).sum())
    tally.add(f"{name}covered", (known & chosen).sum())
    if text.best is None:
        return
    within = min(count, text.rows - 1 - s)  # the target's choice at row t+1+s needs that row's state
    if within <= 0:
        return
    wanted = text.best[1 + s : 1 + s + within]
    agree = top[:within] == wanted[:, None]
    tally.add(f"{name}target_rows", chosen[:within].sum())
    tally.add(f"{name}target1", (agree[:, 0] & chosen[:within]).sum())
    tally.add(f"{name}target3", (agree.any(1) & chosen[:within]).sum())
    tally.add(f"{name}target_known", (sayable(wanted) & chosen[:within]).sum())


def _step(s: int, tally: _Tally, has_target: bool) -> StepScore:
    def target(hits: str, rows: str) -> float | None:
        return tally.share(hits, rows) if has_target else None

    return StepScore(
        step=s,
        rows=tally.n.get("rows", 0),
        token_top1=tally.share("token1", "rows"),
        token_top3=tally.share("token3", "rows"),
        token_covered=tally.share("token1", "covered"),
        target_top1=target("target1", "target_rows"),
        target_top3=target("target3", "target_rows"),
        target_covered=target("target1", "target_known"),
        all_rows=tally.n.get("all_rows", 0),
        all_token_top1=tally.share("all_token1", "all_rows"),
        all_target_top1=target("all_target1", "all_target_rows"),
        accepted=tally.share("accepted", "reached"),
        coverage=tally.share("covered", "rows"),
    )


def chain_lengths(hits: npt.NDArray[np.bool_], text: Text) -> list[int]:
    """Tokens that each round of a chain yields over the weighted part of a text, bonus token included.

    hits ``[steps, R]``: whether step s of row t names token t+2+s. A round that begins at row t takes the tokens
    t+2.. as far as they are right, and the next one.
    """
    steps, total = hits.shape[0], len(text.tokens)
    begin = int(np.argmax(text.weight)) if text.weight.any() else 0
    known = max(begin + 1, 2)  # the prefill yields the reply's first token
    lengths: list[int] = []
    while known < total and known - 2 < text.rows:
        row, taken = known - 2, 0
        while taken < steps and known + taken < total and hits[taken, row]:
            taken += 1
        if text.weight[known]:
            lengths.append(min(taken + 1, total - known))
        known += taken + 1
    return lengths


class Sayable:
    """Whether the draft can say a target token."""

    def __init__(self, targets: Ints, vocabulary: int) -> None:
        self._table = np.zeros(vocabulary, bool)
        self._table[targets[(targets >= 0) & (targets < vocabulary)]] = True

    def __call__(self, ids: Ints) -> npt.NDArray[np.bool_]:
        inside = (ids >= 0) & (ids < len(self._table))
        found: npt.NDArray[np.bool_] = inside & self._table[np.where(inside, ids, 0)]
        return found
