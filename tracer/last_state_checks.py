"""Whether the last state is the last one, on which side of the final norm it stands, and which token its rows predict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from drafttrace.tracer.capture import Capture, Ints, Norm
from drafttrace.tracer.checked_states import (
    Check,
    CheckedState,
    column_means,
    loss_of_guessing,
    number,
    spread,
    tokens_at,
)
from drafttrace.tracer.rows import Floats
from drafttrace.tracer.target_weights import TargetWeights

OFFSETS = (-1, 0, 1, 2)
_ALIKE = 0.1  # nats of mean loss that tell no reading of the norm from the other
_NORMED = 0.05  # how far from 1 the RMS of a normed row is, rounded, without the gain
_FAR = 2.0  # times 1, or one part of it: no rounding of a normed state does that
_ONE_FACTOR = 0.02  # how far the sizes of normed rows that were scaled are from one another
_CLEARLY = 0.5  # nats of mean loss that are no accident of a few rows
_WORK = 6e10  # multiply-adds that one inspection may spend in the head


@dataclass(frozen=True)
class _Predicted:
    """How a state predicts the tokens: the mean loss at each of OFFSETS, and the index of the lowest."""

    losses: list[float]

    @property
    def place(self) -> int:
        return int(np.argmin(self.losses))

    @property
    def best(self) -> float:
        return self.losses[self.place]


def last_state_checks(
    capture: Capture, states: list[CheckedState], tokens: Ints, target: TargetWeights
) -> list[Check]:
    """Norm, place and shift of the last state; nothing where there is none, or too few of its rows can be scored."""
    last = capture.last
    state = next((state for state in states if state.is_last), None)
    if last is None or state is None:
        return []
    positions = _scored(capture, state, tokens, target)
    values = state.take(positions)
    finite = np.isfinite(values).all(-1)
    positions, values = positions[finite], values[finite]
    if len(positions) < 4:
        return []
    wanted = _wanted(tokens, positions)
    read: dict[Norm, _Predicted] = {}
    tops: dict[Norm, Ints] = {}
    for norm, normed in ((Norm.POST, values), (Norm.PRE, target.final_norm(values))):
        with np.errstate(invalid="ignore", over="ignore"):  # a checkpoint may hold NaN
            losses, tops[norm] = target.score(normed, wanted)
        read[norm] = _Predicted(column_means(losses))
    if not any(math.isfinite(each.best) for each in read.values()):
        return []
    chosen, norm_check = _norm(
        last.name, last.norm, values, {norm: each.best for norm, each in read.items()}, target
    )
    agree = float(np.mean(tops[chosen] == wanted[:, read[chosen].place]))
    slots = [slot for slot in states if not slot.is_last and slot.rows is not last.rows]
    few = positions[:: max(1, len(positions) // 24)]
    read_slots = _read_slots(slots, few, tokens, target)
    place = _is_last(last.name, read[chosen], agree, read_slots, len(positions), target)
    return [norm_check, place, _shift(last.name, read[chosen].losses, len(positions), target)]


def refuted_before_norm(capture: Capture, state: CheckedState, tokens: Ints, target: TargetWeights) -> Check | None:
    """The answer that a state, which is said to stand before the final norm, stands after it; None where it does not, or
    too few of its rows can be scored. The head, the largest part of it, is read only where the size of the rows says so."""
    positions = _scored(capture, state, tokens, target)
    values = state.take(positions)
    finite = np.isfinite(values).all(-1)
    positions, values = positions[finite], values[finite]
    if len(positions) < 4 or np.median(np.abs(size_without_gain(values, target) - 1)) >= _NORMED:
        return None
    wanted, low = _wanted(tokens, positions), {}
    for norm, normed in ((Norm.POST, values), (Norm.PRE, target.final_norm(values))):
        with np.errstate(invalid="ignore", over="ignore"):  # a checkpoint may hold NaN
            losses, _tops = target.score(normed, wanted)
        low[norm] = _Predicted(column_means(losses)).best
    if not any(map(math.isfinite, low.values())):
        return None
    _side, check = _norm(state.name, Norm.PRE, values, low, target)
    return check if check.verdict == "refuted" else None


def _wanted(tokens: Ints, positions: Ints) -> Ints:
    """The token that stands one and each of OFFSETS further on than every position ``[n, len(OFFSETS)]``."""
    return np.stack([tokens_at(tokens, positions + 1 + offset) for offset in OFFSETS], 1)


def _read_slots(
    slots: list[CheckedState], positions: Ints, tokens: Ints, target: TargetWeights
) -> dict[str, _Predicted]:
    """Every slot through the final norm and the head, at all offsets: the head is read once for them."""
    found: dict[str, _Predicted] = {}
    for slot in slots:
        there = np.intersect1d(positions, slot.positions())
        values = slot.take(there)
        finite = np.isfinite(values).all(-1)
        if finite.any():
            with np.errstate(invalid="ignore", over="ignore"):
                losses, _tops = target.score(target.final_norm(values[finite]), _wanted(tokens, there[finite]))
            found[slot.name] = _Predicted(column_means(losses))
    return found


def _scored(capture: Capture, state: CheckedState, tokens: Ints, target: TargetWeights) -> Ints:
    """Positions whose next token is known, without the first: on the response where mask or prompt length tell it.

    A target makes its own answers, and only guesses at what people ask.
    """
    cost = target.shape.vocab_size * target.shape.hidden_size * 2
    budget = int(max(16, min(256, _WORK / cost)))
    positions = state.positions()
    positions = positions[(positions >= 1) & (positions < len(tokens) - 1)]
    positions = positions[target.inside(tokens[positions + 1])]
    mask, prompt = capture.mask, capture.prompt_length
    response = positions
    if mask is not None and len(mask) >= len(tokens):
        response = positions[mask[positions + 1] != 0]
    elif prompt is not None:
        response = positions[positions + 1 >= prompt]
    return spread(response if len(response) >= 4 else positions, budget)


def _norm(
    name: str, declared: Norm, values: Floats, low: dict[Norm, float], target: TargetWeights
) -> tuple[Norm, Check]:
    """Before or after the final norm: by the size of what is left without the gain, and by next-token loss.

    Of text that the target itself wrote, its first choice at every place, the loss prefers whatever makes logits larger: a
    state without its norm is a hundred times too large, and the surest of all. So where the two differ, a size that leaves
    no doubt decides.
    """
    rms = size_without_gain(values, target)
    by_loss = Norm.POST if low[Norm.POST] <= low[Norm.PRE] else Norm.PRE
    by_size = Norm.POST if np.median(np.abs(rms - 1)) < _NORMED else Norm.PRE
    sized = _is_clear(rms)
    blind = min(low.values()) >= loss_of_guessing(
        target
    )  # of losses that are worse than guessing, neither is the better
    alike = abs(low[Norm.POST] - low[Norm.PRE]) < _ALIKE
    differ = by_size != by_loss
    found = Norm.UNKNOWN if differ and not (blind or alike or sized) else by_size
    evidence = {
        "rms_without_gain_median": number(float(np.median(rms))),
        "rms_without_gain_spread": number(float(np.std(rms))),
        "next_token_loss_as_post": number(low[Norm.POST]),
        "next_token_loss_as_pre": number(low[Norm.PRE]),
        "declared": str(declared),
        "found": str(found),
    }
    if found is Norm.UNKNOWN:
        summary = f"{name}: size says {by_size} the final norm and next-token loss says {by_loss}; neither is sure."
        return by_loss, Check("last-norm", name, "undecided", summary, evidence)
    where = "after" if found is Norm.POST else "before"
    numbers = f"next-token loss {low[Norm.POST]:.2f} read as post, {low[Norm.PRE]:.2f} as pre"
    if blind or alike or differ:  # what decided is said, not what could not
        numbers = (
            f"by its size: RMS {float(np.median(rms)):.3g} without the norm's gain, where a normed state has 1"
        )
    if alike and not blind:
        numbers += f"; the losses, {low[Norm.POST]:.2f} read as post and {low[Norm.PRE]:.2f} as pre, do not tell"
    elif differ and not blind:
        numbers += (
            f"; the losses, {low[Norm.POST]:.2f} read as post and {low[Norm.PRE]:.2f} as pre, only say which makes larger "
            "logits of text that the target chose itself"
        )
    if declared is Norm.UNKNOWN:
        return found, Check(
            "last-norm", name, "found", f"{name} stands {where} the final norm ({numbers}).", evidence
        )
    if declared is found:
        summary = f"{name} stands {where} the final norm, as declared ({numbers})."
        return found, Check("last-norm", name, "confirmed", summary, evidence)
    summary = f"{name} stands {where} the final norm, but the format says {declared} ({numbers})."
    return found, Check("last-norm", name, "refuted", summary, evidence)


def size_without_gain(values: Floats, target: TargetWeights) -> Floats:
    """The RMS of every row ``[R]`` as it was before the norm's gain (and bias), if it was normed: 1 then."""
    gain, bias = target.norm_gain(), target.norm_bias()
    used = np.abs(gain) > 0.05 * np.median(np.abs(gain))
    bare = (values if bias is None else values - bias)[:, used] / gain[used]
    found: Floats = np.sqrt(np.mean(bare.astype(np.float64) ** 2, -1))
    return found


def is_normed(rms: Floats) -> bool:
    """Whether nearly every row has the size 1."""
    return bool(np.quantile(np.abs(rms - 1), 0.95) < _NORMED)


def _is_clear(rms: Floats) -> bool:
    """Whether the sizes alone leave no doubt: every row has 1, or the rows are far from it, and not all by one factor, as
    normed rows that somebody scaled are."""
    median = float(np.median(rms))
    if is_normed(rms):
        return True
    scaled = float(np.quantile(np.abs(rms / median - 1), 0.95)) < _ONE_FACTOR if median > 0 else True
    return not 1 / _FAR < median < _FAR and not scaled


def _offset_of_depth(last: _Predicted, slots: dict[str, _Predicted], guessing: float) -> int:
    """The index of the offset at which all states are held against each other: the last state's where it predicts
    anything, else the largest at which a slot does.

    A shallow state still knows its own token, which stands one offset before the next one.
    """
    if last.best < guessing - _CLEARLY:
        return last.place
    return max((slot.place for slot in slots.values() if slot.best < guessing - _CLEARLY), default=last.place)


def _is_last(
    name: str, last: _Predicted, agree: float, slots: dict[str, _Predicted], rows: int, target: TargetWeights
) -> Check:
    """Whether the state can be the last one: the target's head reads it, and no slot better than it.

    A state a few layers early still reads well, so a pass here is no proof; only a reference run is.
    """
    guessing, loss = loss_of_guessing(target), last.best
    place = _offset_of_depth(last, slots, guessing)
    depths = {slot: read.losses[place] for slot, read in slots.items()}
    evidence = {
        "next_token_loss": number(loss),
        "chance": number(guessing),
        "top1_is_next_token": number(agree),
        "next_token_loss_of_slots": {slot: number(value) for slot, value in depths.items()},
        "offset": OFFSETS[place],
        "rows": rows,
    }
    better = min(depths, key=lambda slot: depths[slot], default=None)
    deeper = better is not None and depths[better] < loss - _CLEARLY
    if better is not None and deeper and loss >= guessing - _CLEARLY > depths[better]:
        return Check("last-is-last", name, "refuted", _garbled(name, loss, better, depths, place), evidence)
    if loss >= guessing:
        summary = (
            f"{name} cannot be judged: no state of this capture predicts its next tokens better than guessing (loss "
            f"{loss:.2f}, guessing {guessing:.2f}); the tokens are no text that this target knows, or it is another target."
        )
        return Check("last-is-last", name, "undecided", summary, evidence)
    if better is not None and deeper:
        summary = (
            f"{name} is no last state: {better} predicts the next token better (loss {depths[better]:.2f} against "
            f"{loss:.2f}), so it stands deeper in the target."
        )
        return Check("last-is-last", name, "refuted", summary, evidence)
    if loss > 0.6 * guessing:
        summary = (
            f"{name} is no last state: under either reading of the norm the target's head makes next-token loss "
            f"{loss:.2f} of it, where guessing makes {guessing:.2f}; it is an inner layer, or of another target."
        )
        return Check("last-is-last", name, "refuted", summary, evidence)
    if loss > 0.4 * guessing:
        summary = (
            f"{name} may be an inner layer: next-token loss {loss:.2f} lies between that of a last state and guessing "
            f"({guessing:.2f})."
        )
        return Check("last-is-last", name, "undecided", summary, evidence)
    summary = (
        f"{name} reads like a last state: next-token loss {loss:.2f}, guessing {guessing:.2f}. A state a few layers early "
        "could too; a reference run tells."
    )
    return Check("last-is-last", name, "consistent", summary, evidence)


def _garbled(name: str, loss: float, better: str, depths: dict[str, float], place: int) -> str:
    """What is said of a last state that predicts no token at all where a slot does."""
    said = f"{name} is no last state: it predicts no token better than guessing (loss {loss:.2f}), and {better} "
    if OFFSETS[place] < 0:  # an early state of a target whose head is its embedding, too
        return (
            f"{said}predicts the stored token at its own place (loss {depths[better]:.2f}): it is a state of these tokens, "
            "an early one or moved by one row, and the last state is of others, or garbled."
        )
    shifted = "" if OFFSETS[place] == 0 else f" of the stored ids, {OFFSETS[place]:+d} from where it should be"
    return (
        f"{said}predicts the next token{shifted} (loss {depths[better]:.2f}), so {better} stands deeper in the target, or "
        "the last state is garbled."
    )


def _shift(name: str, losses: list[float], rows: int, target: TargetWeights) -> Check:
    """Which token a row predicts: the one offset whose loss is far below the others."""
    order = np.argsort(losses)
    best, second = losses[int(order[0])], losses[int(order[1])]
    offset = OFFSETS[int(order[0])]
    evidence = {"loss_by_offset": {str(d): number(x) for d, x in zip(OFFSETS, losses, strict=True)}, "rows": rows}
    if best >= loss_of_guessing(target):
        summary = f"{name}: no offset's next-token loss is better than guessing, so a shift cannot be told."
        return Check("token-shift", name, "undecided", summary, evidence)
    if second - best < _CLEARLY:
        summary = f"{name}: next-token losses at the offsets -1 to +2 are too alike to tell a shift."
        return Check("token-shift", name, "undecided", summary, evidence)
    if offset == 0:
        summary = f"{name}: row t predicts token t+1, so ids and states are not shifted."
        return Check("token-shift", name, "confirmed", summary, evidence)
    summary = (
        f"{name}: row t predicts token t+{1 + offset} of the stored ids, so ids and states are shifted by "
        f"{offset:+d}."
    )
    return Check("token-shift", name, "refuted", summary, evidence)
