"""What transformed states are, in words: of whole slots, and of some of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drafttrace.compare.copies import rank_count
from drafttrace.compare.facts import Explanation, Facts
from drafttrace.compare.findings.gains import gain_remedy, gain_text, known_weights, name_of, read_slot
from drafttrace.compare.gains import MISSING_ONE, ONCE, ONE_TOO_MUCH, SQUARED
from drafttrace.compare.hypotheses import Fit
from drafttrace.tracer.capture import Ints

_SAME_FACTOR = 0.005  # of factors that are told as one


def text_of(
    name: str, who: str, members: Sequence[tuple[int, Explanation]], facts: Facts, *, one: bool
) -> tuple[str, str]:
    """What transformed states are, and the remedy. members: (slot, explanation); one: whether ``who`` is one thing."""
    e = members[0][1]
    is_, of = ("is" if one else "are"), _all_of([_origin(other) for _, other in members])
    fitted = e.fit.fitted
    if name == "scale":
        return (
            f"{who} {is_} {of} times {_factors(members)}{_known_factor(fitted['factor'], facts)}: "
            f"{'one number explains' if _one_factor(members) else 'a number for each slot explains'} the difference.",
            "Apply the same multiplier on both sides: the embedding scale (sqrt(H)) or the target's muP multipliers are "
            "missing or applied twice on one of them.",
        )
    if name in {"norm-extra", "norm-missing"}:
        return (
            f"{who} {is_} {of} {'before' if e.fit.name == 'un-normed' else 'after'} an RMS norm that the other side "
            f"does not have: {'serving lacks the norm' if name == 'norm-missing' else 'serving has one norm too many'}"
            f"{_each(members, lambda other: _which_norm(facts, other.fit))}.",
            "Compare fc_norm, norm_before_fc and use_aux_norm in the draft's config with the trainer's: the norm before fc "
            "must stand on both sides or on none.",
        )
    if name == "norm-gain":
        readings = [read_slot(facts, other.fit) for _, other in members]
        tried = len(known_weights(facts))
        gains = [gain_text(reading, tried) for reading in readings]
        shown = gains[0] if len(set(gains)) == 1 else _by_slot(members, gains)
        return f"{who} {is_} {of} times {shown}.", gain_remedy(readings[0])
    if name == "rotation":
        hows = [
            "a permutation of the channels"
            if other.fit.fitted.get("channels_permuted")
            else "an orthogonal map (rotation)"
            for _, other in members
        ]
        how = hows[0] if len(set(hows)) == 1 else _by_slot(members, hows)
        return (
            f"{who} {is_} {of} under {how}: norms and all inner products agree, the rows do not.",
            "The target's weights were rotated (QuaRot, SpinQuant or alike) on one side only: train the draft on the "
            "rotated target, or rotate fc's column blocks back.",
        )
    if name == "zero-rows":
        return (
            f"{who} {is_} {of} with channels that are 0 in every row: "
            f"{_each(members, lambda other: _channels(other.fit.fitted['channels'], facts)).strip()}.",
            "A part of the buffer was never filled: a rank's shard that was not gathered, or a copy that is too narrow.",
        )
    if name == "dtype-reinterpretation":
        return (
            f"{who} {is_} {of} with {'its' if one else 'their'} {fitted['stored_as']} bytes read as {fitted['read_as']}.",
            f"Read the file as {fitted['stored_as']}: a buffer was viewed, not converted.",
        )
    return (
        f"{who} {is_} only a part of {of}: "
        + (
            "the residual was not added." if e.fit.name == "residual-half" else "a state inside the layer below it."
        ),
        "Capture hidden_states + residual: SGLang and vLLM layers return the two halves apart.",
    )


def _channels(channels: Ints, facts: Facts) -> str:
    """``48 of 96, from 48 to 95``."""
    width = facts.left.hidden_size or 0
    first, last = int(channels[0]), int(channels[-1])
    if first == last:
        return f"1 of {width}, channel {first}"
    inside = "all of" if last - first + 1 == len(channels) else "in"
    return f"{len(channels)} of {width}, {inside} {first} to {last}"


def _origin(e: Explanation) -> str:
    return f"B{e.boundary}" if e.boundary is not None else e.target


def _all_of(names: Sequence[str]) -> str:
    """``B3``, ``B0 and B3``: what each of the slots is, in their order."""
    if len(set(names)) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _by_slot(members: Sequence[tuple[int, Explanation]], texts: Sequence[str]) -> str:
    """``4 (slot 0) and 3 (slot 2)``."""
    return _all_of([f"{text} (slot {index})" for (index, _), text in zip(members, texts, strict=True)])


def _each(members: Sequence[tuple[int, Explanation]], text: Callable[[Explanation], str]) -> str:
    """One text for all of them where it is the same, else each with its slot."""
    texts = [text(e) for _, e in members]
    return texts[0] if len(set(texts)) == 1 else " " + _by_slot(members, [t.strip() or "unknown" for t in texts])


def _one_factor(members: Sequence[tuple[int, Explanation]]) -> bool:
    """Whether all have one factor."""
    factors = [e.fit.fitted["factor"] for _, e in members]
    return bool(max(factors) - min(factors) <= _SAME_FACTOR * abs(factors[0]))


def _factors(members: Sequence[tuple[int, Explanation]]) -> str:
    """The factor, or every slot's where they are not the same."""
    factors = [e.fit.fitted["factor"] for _, e in members]
    if _one_factor(members):
        return f"{factors[0]:.4g}"
    return _by_slot(members, [f"{factor:.4g}" for factor in factors])


def _known_factor(factor: float, facts: Facts) -> str:
    """What a factor is known as: the root of the hidden size, or the number of ranks."""
    ranks = rank_count(facts.left)
    if ranks > 1 and min(abs(factor / ranks - 1), abs(factor * ranks - 1)) < 0.02:
        return f", and the server has {ranks} ranks: what all of them hold alike was added up, or divided by them"
    root = facts.left.hidden_size or 1
    for word, value in (("sqrt(H)", root**0.5), ("1/sqrt(H)", root**-0.5)):
        if abs(factor / value - 1) < 0.02:
            return f", which is {word} for H = {root}"
    return ""


def _which_norm(facts: Facts, fit: Fit) -> str:
    """Whose weight the norm has, and whether it is applied as it should be."""
    reading = read_slot(facts, fit)
    if reading is None:
        return ""
    how = {
        ONCE: "",
        MISSING_ONE: ", applied as w - 1",
        ONE_TOO_MUCH: ", applied as w + 1",
        SQUARED: ", applied twice",
    }
    return f" (that of {name_of(reading)}{how.get(reading.kind, '')})"
