"""B, F and J of the last state: a factor, a norm, another basis, moved rows. It is what training targets are made from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drafttrace.compare.facts import VALUE, Facts, StreamFacts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.findings.values import ID_OF_FIT, last_norm
from drafttrace.compare.hypotheses import PER_CHANNEL, Fit, describe_gain
from drafttrace.compare.result import Finding
from drafttrace.compare.taps import LAST
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture, Norm

_NORMED = PER_CHANNEL | {"rms", "scalar"}
_REMEDIES = {
    "token-shift": "Store the last state of every token in that token's own row: targets made from this one belong to "
    "another token.",
    "scale": "Store the state itself: look for a factor (a scale of the residual, or of the logits) that is multiplied in "
    "before it is stored.",
    "norm-extra": "Store the state before the final norm, as the layout says, or tell the trainer that it stands after it.",
    "norm-missing": "Store the state after the final norm, as the layout says, or tell the trainer that it stands before "
    "it.",
    "rotation": "Undo the rotation of the quantisation before the state is stored.",
}
_REMEDY = "Put right what stores the last state: training targets that were made from this one are wrong."


@finder(turn=21)
def find(facts: Facts) -> Iterator[Finding]:
    """The last state of each side that is the right one after a transformation; what is explained by the other side's is
    told of one of them alone."""
    if facts.reference is None:
        return
    told = [one for one in (_deviant(facts, "left"), _deviant(facts, "reference")) if one is not None]
    if len(told) == 2 and all(_by_the_other(facts, one) for one in told):
        told = [min(told, key=lambda one: _score(one))]
    known = next(iter(last_norm(facts)), None) is not None
    for stream in told:
        if not known or (stream.side == "left" and not _by_the_other(facts, stream)):
            yield _make(facts, stream)
    yield from _no_norm(facts)


def _by_the_other(facts: Facts, stream: StreamFacts) -> bool:
    """Whether the last state is explained by the other side's, and not by a sweep."""
    other = _capture(facts, "reference" if stream.side == "left" else "left").last
    swept = stream.located is not None and facts.atlas == stream.side
    return (
        stream.explanation is not None
        and other is not None
        and stream.explanation.target == other.name
        and not swept
    )


def _score(stream: StreamFacts) -> float:
    assert stream.explanation is not None
    return stream.explanation.fit.score


def _capture(facts: Facts, side: str) -> Capture:
    capture = facts.left if side == "left" else facts.reference
    assert capture is not None
    return capture


def _last(facts: Facts, side: str) -> StreamFacts | None:
    streams = facts.left_streams if side == "left" else facts.reference_streams
    return next((s for s in streams if s.index == LAST), None)


def _end(facts: Facts, stream: StreamFacts) -> int | None:
    """n, else the highest boundary of the sweep."""
    swept = max(stream.located.rel_l2, default=None) if stream.located is not None else None
    return facts.layers if facts.layers is not None else swept


def _deviant(facts: Facts, side: str) -> StreamFacts | None:
    stream = _last(facts, side)
    if stream is None or stream.explanation is None or stream.broken:
        return None
    explanation = stream.explanation
    mine = _capture(facts, side).last
    theirs = _capture(facts, "reference" if side == "left" else "left").last
    assert mine is not None
    by_end = explanation.boundary is not None and explanation.boundary == _end(facts, stream)
    by_last = theirs is not None and explanation.target == theirs.name and theirs.norm is mine.norm
    if not (by_end or by_last) or explanation.fit.name not in {*ID_OF_FIT, "shift"}:
        return None
    # Behind the final norm, as it should be; of rows of one size that norm is one number.
    if explanation.fit.name in _NORMED and mine.norm is not Norm.PRE and (by_end or mine.norm is Norm.UNKNOWN):
        return None
    if explanation.fit.name == "un-normed" and mine.norm is Norm.PRE:
        return None  # the other side's is behind a norm that its layout does not name
    return stream


def _make(facts: Facts, stream: StreamFacts) -> Finding:
    assert stream.explanation is not None
    explanation = stream.explanation
    name = "token-shift" if explanation.fit.name == "shift" else ID_OF_FIT[explanation.fit.name]
    swept = facts.atlas is not None and explanation.boundary is not None
    of = boundary_name(explanation.boundary) if swept else "the other side's"
    who = "The left side's" if stream.side == "left" else "The reference's"
    fitted = {
        k: describe_gain(v) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v
        for k, v in explanation.fit.fitted.items()
        if not (isinstance(v, np.ndarray) and v.dtype.kind != "f")
    }
    return finding(
        name,
        f"{who} last state {_words(explanation.fit, of)} (relative L2 {explanation.identity_residual:.3g} from it, "
        f"{explanation.fit.residual:.3g} with that).",
        confidence=max(0.4, 0.97 - 2 * explanation.fit.residual),
        evidence={
            "state": "last",
            "side": stream.side,
            "fit": explanation.fit.name,
            "of_state": of,
            "residual": explanation.fit.residual,
            "without_the_fit": explanation.identity_residual,
            **fitted,
        },
        remedy=_REMEDIES.get(name, _REMEDY),
    )


def _words(fit: Fit, of: str) -> str:
    if fit.name == "shift":
        rows = int(fit.fitted["rows"])
        way, back = ("late", "before") if rows > 0 else ("early", "behind")
        many = "token" if abs(rows) == 1 else "tokens"
        return f"stands {abs(rows)} {many} {way}: its rows are {of} of the position {abs(rows)} {back} them"
    read_as, stored_as = fit.fitted.get("read_as"), fit.fitted.get("stored_as")
    return {
        "scalar": f"is {of} times {fit.fitted.get('factor', float('nan')):.4g}",
        "gain": f"is {of} times one factor per channel",
        "normed": f"is {of} behind a norm, though its layout says before it",
        "rms": f"is {of} divided by its root mean square",
        "un-normed": f"is {of} without a norm that it should have",
        "rotation": f"is {of} in another basis",
        "bytes": f"is {of} with its bytes read as {read_as} where {stored_as} was stored",
        "zeroed": f"is {of} with channels set to zero",
    }.get(fit.name, f"is what a layer added to the residual stream before {of}, not the stream itself")


def _no_norm(facts: Facts) -> Iterator[Finding]:
    """A trace's last state that is no final norm of its own sweep's B(n)."""
    for side, who in (("left", "The left side's"), ("reference", "The reference's")):
        stream, capture = _last(facts, side), _capture(facts, side)
        if stream is None or capture.last is None or capture.last.norm is not Norm.POST:
            continue
        end = boundary_name(capture.last.boundary)
        if side == "left" and stream.by == VALUE and stream.explanation is None and stream.boundary == facts.layers:
            yield finding(
                "norm-missing",
                f"{who} last state is {end} itself: it stands before the final norm, though its format says after.",
                confidence=0.9,
                evidence={"state": "last", "side": side},
                remedy=_REMEDIES["norm-missing"],
            )
        elif stream.unlike and _deviant(facts, side) is None:
            negative = stream.unlike == 2.0
            why = (
                "the factors of nearly all channels are negative, as no norm's are"
                if negative
                else f"any norm of it leaves {stream.unlike:.3g} of the last state over, relative L2"
            )
            yield finding(
                "unexplained",
                f"{who} last state is not the final norm of {end}, which the same file holds: {why}.",
                confidence=0.8,
                evidence={"state": "last", "side": side, "left_over": stream.unlike},
                remedy="Nothing can be said of logits or targets made from this state. Record once more with "
                "--disable-cuda-graph: a copy that is read during a replay may show another tensor; if it stays, look at "
                "what stands between the last layer and the head.",
            )
