"""What the values of a capture say about themselves, given only the target's embedding, final norm and head.

Four questions: which state is the embedding; does the last state stand before or after the final norm; is it the
last state at all; do the rows belong to the tokens they are stored with. Nobody's word is taken for any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture, Ints, Norm
from drafttrace.tracer.position_rows import position_rows
from drafttrace.tracer.rows import Floats, Rows
from drafttrace.tracer.target_weights import TargetWeights

OFFSETS = (-1, 0, 1, 2)
# A bf16 copy of an embedding differs by rounding only; a neighbouring boundary differs by far more.
_EXACT = 0.02
_WORK = 6e10  # multiply-adds that one inspection may spend in the head


@dataclass(frozen=True)
class Check:
    """One answer. verdict: ``confirmed``, ``consistent`` (not contradicted, not proven), ``refuted``, ``found`` or
    ``undecided``; summary is a whole sentence."""

    id: str
    subject: str
    verdict: str
    summary: str
    evidence: dict[str, Any]

    @property
    def is_problem(self) -> bool:
        """Whether the answer contradicts the file, or finds the embedding where none is declared."""
        return self.verdict == "refuted" or (self.verdict == "found" and self.id == "embedding")

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "subject": self.subject,
            "verdict": self.verdict,
            "summary": self.summary,
            "evidence": self.evidence,
        }


@dataclass(frozen=True)
class _State:
    """at: the row of every token position, -1 where there is none."""

    name: str
    rows: Rows
    declared: int | None
    is_last: bool
    at: Ints

    def positions(self) -> Ints:
        """The positions that have a row."""
        return np.flatnonzero((self.at >= 0) & (self.at < len(self.rows)))

    def take(self, positions: Ints) -> Floats:
        """The states of these positions ``[n, H]``."""
        return self.rows.take(self.at[positions])


def check_values(capture: Capture, target: TargetWeights) -> list[Check]:
    """Every check that the capture allows. Raises UnreadableFile for a damaged checkpoint."""
    states = [
        _State(slot.name, slot.rows, slot.boundary, False, position_rows(capture, slot.name))
        for slot in capture.slots
    ]
    if capture.last is not None:
        last = capture.last
        states.append(_State(last.name, last.rows, last.boundary, True, position_rows(capture, "last")))
    fitting = [state for state in states if state.rows.width == target.shape.hidden_size]
    checks: list[Check] = []
    if len(fitting) < len(states):
        odd = next(state for state in states if state not in fitting)
        checks.append(
            Check(
                "hidden-size",
                odd.name,
                "refuted",
                f"{odd.name} is {odd.rows.width} wide, the target's hidden size is {target.shape.hidden_size}: another "
                "target, or several slots side by side.",
                {"width": odd.rows.width, "hidden_size": target.shape.hidden_size},
            )
        )
    checks.extend(_declared_last(capture, target.shape.layers))
    ids = _row_tokens(capture)
    checks.extend(_vocabulary(capture, ids, target))
    for state in fitting:
        checks.extend(_embedding(state, ids, target))
    checks.extend(_head(capture, fitting, ids, target))
    return checks


def check_stored_shift(capture: Capture) -> list[Check]:
    """For caches that store the target's distribution beside ids shifted left (NeMo Automodel): are both shifted?

    Needs no target: the most likely token of row t must be the stored id t + 1 more often than any other.
    """
    agreement = capture.about.get("next_token_agreement")
    if not isinstance(agreement, dict) or len(agreement) < 2:
        return []
    ranked = sorted(agreement, key=lambda offset: agreement[offset], reverse=True)
    best, second = ranked[0], ranked[1]
    evidence = {"agreement_by_offset": {offset: _number(value) for offset, value in agreement.items()}}
    if agreement[best] - agreement[second] < 0.1:
        summary = (
            "target_probs agree with the stored ids at no offset more than at others, so a shift cannot be told."
        )
        return [Check("token-shift", "target_probs", "undecided", summary, evidence)]
    if best == "1":
        summary = (
            "target_probs of row t predict the stored id t+1: ids and probabilities are both shifted, as declared."
        )
        return [Check("token-shift", "target_probs", "confirmed", summary, evidence)]
    summary = (
        f"target_probs of row t predict the stored id t{int(best):+d} instead of t+1: ids or probabilities are not "
        "shifted as declared."
    )
    return [Check("token-shift", "target_probs", "refuted", summary, evidence)]


def _row_tokens(capture: Capture) -> Ints:
    """``[T]`` tokens by position, padding cut off; pseudonyms are as good as unknown."""
    tokens = capture.tokens[: capture.valid_length]
    return np.full_like(tokens, -1) if capture.redacted else tokens


def _declared_last(capture: Capture, layers: int) -> list[Check]:
    """The file's own word for the last state, against the number of layers of the target."""
    last = capture.last
    if last is None or last.boundary is None or last.boundary == layers:
        return []
    summary = (
        f"{last.name} is declared {boundary_name(last.boundary)}, and the last boundary of the target is "
        f"{boundary_name(layers)}: the 'last state' that training read is an inner layer."
    )
    return [Check("last-boundary", last.name, "refuted", summary, {"declared": last.boundary, "layers": layers})]


def _vocabulary(capture: Capture, tokens: Ints, target: TargetWeights) -> list[Check]:
    """Tokens that the target does not have: nothing can be scored at them, and it is the wrong target."""
    outside = tokens[(tokens >= 0) & ~target.inside(tokens)]
    if not len(outside):
        return []
    summary = (
        f"{len(outside)} of {len(tokens)} tokens are outside the target's vocabulary, first {int(outside[0])}: the dump is "
        "of another target, or of tokens that its embedding does not hold."
    )
    return [Check("vocabulary", "tokens", "refuted", summary, {"outside": len(outside), "tokens": len(tokens)})]


# --- which state is the embedding ----------------------------------------------------------------------------


def _embedding(state: _State, tokens: Ints, target: TargetWeights) -> list[Check]:
    positions = _spread(state.positions(), 64)
    values = state.take(positions)
    best: tuple[float, int, str] = (math.inf, 0, "")
    for offset in (0, 1, -1):
        index = positions + offset
        good = (index >= 0) & (index < len(tokens))
        good[good] &= target.inside(tokens[index[good]])
        if not good.any():
            continue
        expected = target.embedding(tokens[index[good]])
        for name, scale in target.embedding_scales().items():
            distance = _relative(values[good], expected * np.float32(scale))
            if distance < best[0]:
                best = distance, offset, name
    distance, offset, factor = best
    evidence = {"rel_l2": _number(distance), "token_offset": offset, "embedding_scale": factor}
    if not math.isfinite(distance):
        return []
    if distance <= _EXACT:
        times = "" if factor == "1" else f" times {factor}"
        if offset:
            summary = (
                f"{state.name} is the embedding{times} of the token at t{offset:+d}, not of the token at t: ids and states "
                "are shifted against each other."
            )
            return [Check("embedding", state.name, "found", summary, evidence)]
        if state.declared == 0:
            summary = f"{state.name} is declared B0 and is the embedding{times}."
            return [Check("embedding", state.name, "confirmed", summary, evidence)]
        what = (
            "the last state"
            if state.is_last
            else f"declared {boundary_name(state.declared)}"
            if state.declared
            else ""
        )
        said = f", though it is {what}" if what else ""
        return [
            Check("embedding", state.name, "found", f"{state.name} is B0, the embedding{times}{said}.", evidence)
        ]
    if state.declared == 0:
        summary = f"{state.name} is declared B0 but is not the embedding (relative L2 {distance:.3g})."
        return [Check("embedding", state.name, "refuted", summary, evidence)]
    return []


# --- the last state ------------------------------------------------------------------------------------------


def _head(capture: Capture, states: list[_State], tokens: Ints, target: TargetWeights) -> list[Check]:
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
    wanted = np.stack([_at(tokens, positions + 1 + offset) for offset in OFFSETS], 1)
    losses: dict[Norm, Floats] = {}
    tops: dict[Norm, Ints] = {}
    for norm, normed in ((Norm.POST, values), (Norm.PRE, target.final_norm(values))):
        with np.errstate(invalid="ignore", over="ignore"):  # a checkpoint may hold NaN
            losses[norm], tops[norm] = target.score(normed, wanted)
    means = {norm: _column_means(loss) for norm, loss in losses.items()}
    if not any(math.isfinite(mean) for column in means.values() for mean in column):
        return []
    chosen, norm_check = _norm(last.name, last.norm, values, means, target)
    shift = _shift(last.name, means[chosen], len(positions), target)
    best = int(np.argmin(means[chosen]))
    agree = float(np.mean(tops[chosen] == wanted[:, best]))
    slots = [slot for slot in states if not slot.is_last and slot.rows is not last.rows]
    few = positions[:: max(1, len(positions) // 24)]
    depths = _depths(slots, few, tokens, OFFSETS[best], target)
    return [norm_check, _is_last(last.name, means[chosen][best], agree, depths, len(positions), target), shift]


def _depths(
    slots: list[_State], positions: Ints, tokens: Ints, offset: int, target: TargetWeights
) -> dict[str, float]:
    """Next-token loss of every slot through the final norm and the head: the deeper the boundary, the lower."""
    found: dict[str, float] = {}
    for slot in slots:
        there = np.intersect1d(positions, slot.positions())
        values = slot.take(there)
        finite = np.isfinite(values).all(-1)
        if finite.any():
            wanted = _at(tokens, there[finite] + 1 + offset)[:, None]
            found[slot.name] = _column_means(target.score(target.final_norm(values[finite]), wanted)[0])[0]
    return found


def _scored(capture: Capture, state: _State, tokens: Ints, target: TargetWeights) -> Ints:
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
    return _spread(response if len(response) >= 4 else positions, budget)


def _norm(
    name: str, declared: Norm, values: Floats, means: dict[Norm, list[float]], target: TargetWeights
) -> tuple[Norm, Check]:
    """Before or after the final norm: by the size of what is left without the gain, and by next-token loss."""
    gain = target.norm_gain()
    used = np.abs(gain) > 0.05 * np.median(np.abs(gain))
    rms = np.sqrt(np.mean((values[:, used] / gain[used]).astype(np.float64) ** 2, -1))
    even = bool(np.median(np.abs(rms - 1)) < 0.05)
    low = {norm: min(loss) for norm, loss in means.items()}
    by_loss = Norm.POST if low[Norm.POST] <= low[Norm.PRE] else Norm.PRE
    by_size = Norm.POST if even else Norm.PRE
    blind = min(low.values()) >= _chance(target)  # of losses that are worse than guessing, neither is the better
    found = by_size if by_size == by_loss or blind or abs(low[Norm.POST] - low[Norm.PRE]) < 0.1 else Norm.UNKNOWN
    evidence = {
        "rms_without_gain_median": _number(float(np.median(rms))),
        "rms_without_gain_spread": _number(float(np.std(rms))),
        "next_token_loss_as_post": _number(low[Norm.POST]),
        "next_token_loss_as_pre": _number(low[Norm.PRE]),
        "declared": str(declared),
        "found": str(found),
    }
    if found is Norm.UNKNOWN:
        summary = f"{name}: size says {by_size} the final norm and next-token loss says {by_loss}; neither is sure."
        return by_loss, Check("last-norm", name, "undecided", summary, evidence)
    where = "after" if found is Norm.POST else "before"
    numbers = f"next-token loss {low[Norm.POST]:.2f} read as post, {low[Norm.PRE]:.2f} as pre"
    if blind:
        numbers = f"by its size alone: RMS {float(np.median(rms)):.3g} without the norm's gain"
    if declared is Norm.UNKNOWN:
        return found, Check(
            "last-norm", name, "found", f"{name} stands {where} the final norm ({numbers}).", evidence
        )
    if declared is found:
        summary = f"{name} stands {where} the final norm, as declared ({numbers})."
        return found, Check("last-norm", name, "confirmed", summary, evidence)
    summary = f"{name} stands {where} the final norm, but the format says {declared} ({numbers})."
    return found, Check("last-norm", name, "refuted", summary, evidence)


def _is_last(
    name: str, loss: float, agree: float, depths: dict[str, float], rows: int, target: TargetWeights
) -> Check:
    """Whether the state can be the last one: the target's head reads it, and no slot better than it.

    A state one or two layers early still reads well, so a pass here is no proof; only a reference run is.
    """
    chance = _chance(target)
    evidence = {
        "next_token_loss": _number(loss),
        "chance": _number(chance),
        "top1_is_next_token": _number(agree),
        "next_token_loss_of_slots": {slot: _number(value) for slot, value in depths.items()},
        "rows": rows,
    }
    if min([loss, *depths.values()]) >= chance:
        summary = (
            f"{name} cannot be judged: no state of this capture predicts its next tokens better than guessing (loss "
            f"{loss:.2f}, guessing {chance:.2f}); the tokens are no text that this target knows, or it is another target."
        )
        return Check("last-is-last", name, "undecided", summary, evidence)
    better = min(depths, key=lambda slot: depths[slot], default=None)
    if better is not None and depths[better] < loss - 0.5:
        summary = (
            f"{name} is no last state: {better} predicts the next token better (loss {depths[better]:.2f} against "
            f"{loss:.2f}), so it stands deeper in the target."
        )
        return Check("last-is-last", name, "refuted", summary, evidence)
    if loss > 0.6 * chance:
        summary = (
            f"{name} is no last state: under either reading of the norm the target's head makes next-token loss "
            f"{loss:.2f} of it, where guessing makes {chance:.2f}; it is an inner layer, or of another target."
        )
        return Check("last-is-last", name, "refuted", summary, evidence)
    if loss > 0.4 * chance:
        summary = (
            f"{name} may be an inner layer: next-token loss {loss:.2f} lies between that of a last state and guessing "
            f"({chance:.2f})."
        )
        return Check("last-is-last", name, "undecided", summary, evidence)
    summary = (
        f"{name} reads like a last state: next-token loss {loss:.2f}, guessing {chance:.2f}. A state one or two layers "
        "early could too; a reference run tells."
    )
    return Check("last-is-last", name, "consistent", summary, evidence)


def _shift(name: str, losses: list[float], rows: int, target: TargetWeights) -> Check:
    """Which token a row predicts: the one offset whose loss is far below the others."""
    order = np.argsort(losses)
    best, second = losses[int(order[0])], losses[int(order[1])]
    offset = OFFSETS[int(order[0])]
    evidence = {"loss_by_offset": {str(d): _number(x) for d, x in zip(OFFSETS, losses, strict=True)}, "rows": rows}
    if best >= _chance(target):
        summary = f"{name}: no offset's next-token loss is better than guessing, so a shift cannot be told."
        return Check("token-shift", name, "undecided", summary, evidence)
    if second - best < 0.5:
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


# --- small things --------------------------------------------------------------------------------------------


def _chance(target: TargetWeights) -> float:
    """The next-token loss of guessing."""
    return math.log(target.shape.vocab_size)


def _spread(rows: Ints, most: int) -> Ints:
    """At most ``most`` of the rows, evenly spread; the massive row 0 is left out where there are others."""
    if len(rows) > 1 and rows[0] == 0:
        rows = rows[1:]
    if len(rows) <= most:
        return rows
    return rows[np.unique(np.linspace(0, len(rows) - 1, most).round().astype(np.int64))]


def _at(tokens: Ints, index: Ints) -> Ints:
    """``tokens[index]``, -1 outside."""
    inside = (index >= 0) & (index < len(tokens))
    found = np.full(len(index), -1, np.int64)
    found[inside] = tokens[index[inside]]
    return found


def _column_means(losses: Floats) -> list[float]:
    means = []
    for column in losses.T:
        known = column[np.isfinite(column)]
        means.append(float(known.mean()) if len(known) else math.inf)
    return means


def _relative(values: Floats, expected: Floats) -> float:
    """Median over rows of ``|a - b| / |b|``; infinite where nothing can be measured."""
    size = np.linalg.norm(expected, axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.linalg.norm(values - expected, axis=-1)[size > 0] / size[size > 0]
    distance = distance[np.isfinite(distance)]
    return float(np.median(distance)) if len(distance) else math.inf


def _number(value: float) -> float | None:
    """Five significant digits; None for what JSON cannot hold."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
