"""What a gain per channel says of a norm's weight, in words: which weight, which mistake with it, how to put it right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import quoted
from drafttrace.compare.gains import (
    LEFT_OUT,
    MISSING_ONE,
    ONCE,
    ONE_TOO_MUCH,
    SQUARED,
    GainReading,
    read_gain,
)
from drafttrace.compare.hypotheses import Doubles, Fit

_CLEARLY = 0.8

FINAL = "the final norm, as the trace's rows show it"

_MULTIPLIED_BY = {
    MISSING_ONE: "w - 1 where w is right",
    ONE_TOO_MUCH: "w + 1 where w is right",
    SQUARED: "w twice (w²)",
    LEFT_OUT: "1/w: the weight is not applied",
    ONCE: "w, without the norm that it belongs to",
}
_SHORT = {MISSING_ONE: "w - 1", ONE_TOO_MUCH: "w + 1", SQUARED: "w²", LEFT_OUT: "no weight", ONCE: "w"}
_REMEDIES = {
    MISSING_ONE: "Multiply by 1 + the stored weight: this model stores its norm weights as w - 1 (Gemma-style), and a "
    "plain RMSNorm was used on that side.",
    ONE_TOO_MUCH: "Multiply by the stored weight alone: a Gemma-style norm (1 + w) was used on that side for a model that "
    "stores w.",
    SQUARED: "Apply the weight once: on that side it is multiplied in twice, in the norm and once more (folded into the "
    "next matrix, or by a second norm).",
    LEFT_OUT: "Apply the norm's weight: that side normalises and leaves the weight out.",
    ONCE: "Divide by the root mean square as well, or leave the weight out: that side applies half of the norm.",
}
_UNKNOWN = (
    "Check which norm class computes it: Gemma-style norms multiply by 1 + w, plain ones by w. Where the folder that "
    "the trace names as its target is on this machine, its weights are tried one by one."
)


def read_slot(facts: Facts, fit: Fit) -> GainReading | None:
    """The reading of a slot's gain: slots are states without a norm, unless both sides have passed the same one."""
    gain = fit.fitted.get("gain")
    if not isinstance(gain, np.ndarray):
        return None
    weights = known_weights(facts)
    plain = read_gain(gain, weights, normed=False)
    other = read_gain(gain, weights, normed=True) if fit.name == "gain" else None
    # A plain state times w is a normed one with w twice: what the slot is by nature goes first.
    better = other is not None and (plain is None or other.left < _CLEARLY * plain.left)
    return other if better else plain


def read_last(facts: Facts, fit: Fit | None) -> GainReading | None:
    """The reading of the gain between two last states, which have both passed the final norm."""
    gain = fit.fitted.get("gain") if fit is not None else None
    if fit is None or not isinstance(gain, np.ndarray) or fit.name not in {"gain", "normed"}:
        return None
    weights: Mapping[str, Doubles] = (
        {FINAL: facts.norm_weight} if facts.norm_weight is not None else facts.norm_weights
    )
    if fit.name == "gain":
        return read_gain(gain, weights, normed=True)
    twice = read_gain(gain, weights, normed=False)
    if twice is not None and twice.kind == ONCE:
        return twice
    once = [
        read_gain(gain / np.sqrt((weight * weight).mean()), {name: weight}, normed=True)
        for name, weight in weights.items()
    ]
    return min((one for one in once if one is not None), key=lambda one: one.left, default=None)


def known_weights(facts: Facts) -> Mapping[str, Doubles]:
    """The models' weights, and the final norm's as the rows show it where no file gives it."""
    if facts.norm_weights or facts.norm_weight is None:
        return facts.norm_weights
    return {FINAL: facts.norm_weight}


def gain_text(reading: GainReading | None, tried: int) -> str:
    """``w - 1 where w is right (w of …): it leaves 0.4 % over, …``, or that no weight explains the factors."""
    if reading is None:
        if not tried:
            return "one factor per channel; no norm weight is at hand to tell w, w - 1 and w² apart"
        known = (
            "the one norm weight that is known" if tried == 1 else f"any of the {tried} norm weights that are known"
        )
        return f"one factor per channel, which is not w, w - 1, w + 1 or w² of {known}"
    others = ", ".join(f"{_SHORT[kind]} {share:.0%}" for kind, share in sorted(reading.others.items()))
    return (
        f"{_MULTIPLIED_BY[reading.kind]}, for the weight w of {name_of(reading)} (it leaves {reading.left:.1%} of the "
        f"factors over; {others})"
    )


def gain_remedy(reading: GainReading | None) -> str:
    """What puts it right."""
    return _REMEDIES[reading.kind] if reading is not None else _UNKNOWN


def name_of(reading: GainReading) -> str:
    """The weight's name; names come out of files."""
    return reading.weight if reading.weight == FINAL else quoted(reading.weight, 120)
