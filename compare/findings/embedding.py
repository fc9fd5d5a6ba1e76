"""D: the target's embedding against B0, and against the rows that the draft looked up for the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.draft_embed import compare_embedding, own_b0
from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.findings.values import ID_OF_FIT
from drafttrace.compare.hypotheses import Fit
from drafttrace.compare.inside import Torn
from drafttrace.compare.own_embed import SAME_FACTOR, OddEmbedding, multipliers, odd_embedding
from drafttrace.compare.plurals import plural
from drafttrace.compare.result import FAULT, NOTE, Finding
from drafttrace.tracer.capture import Capture

_IDS = (
    "Look at the token ids that the draft's forward pass is given (their shift by one, and the last one of every request), "
    "and at what fills its buffers under graphs (--disable-cuda-graph)."
)


_WHAT = {
    "norm-gain": "that times one factor per channel",
    "norm-extra": "that after an RMS norm",
    "norm-missing": "that before an RMS norm",
    "rotation": "that in another basis, by an orthogonal map",
    "dtype-reinterpretation": "that with its bytes read in another number format",
    "zero-rows": "that with channels of zeros",
}
_TAP = (
    "Look at what hands the embedding's output to layer 0, and at the buffer that it is recorded from: compare eager with "
    "graphs (--disable-cuda-graph). Where the target's own layers see other rows than its embedding gives, their input is "
    "changed between the two."
)
_MULTIPLIED = (
    "A target that multiplies its embedding looks like that, and nothing is wrong then: look for the multiplier in "
    "its config."
)
_PICTURE = (
    "A picture or a sound of which one row is compared looks like that, and nothing is wrong then: look at what the "
    "request holds there. Where it is a word, look at what hands the embedding's output to layer 0."
)
_POSITIONS = (
    "Nothing is wrong: what enters layer 0 of such a target is its embedding with a vector per position added."
)
_SHOWN = 6


@finder(turn=70)
def find(facts: Facts) -> Iterator[Finding]:
    """What the embedding is not, and what the draft's is not."""
    odd = None
    if not facts.inside.alike("embed"):
        odd = odd_embedding(facts.left, facts.reference, facts.alignment)
    share, fit = facts.inside.embed_equal, facts.inside.embed_fit
    if odd is not None:
        told = _not_b0(odd)
        yield told
        if odd.b0 is not None and facts.left.draft is not None and odd.positional is None:
            # Inside, the draft's rows were held against an embedding that is not what it should be.
            wrong = odd.left_rows.tolist() if told.severity == FAULT else ()
            share, fit = compare_embedding(facts.left, facts.left.draft, odd.b0, wrong)
    yield from _of_draft(facts, share, fit)


def _not_b0(odd: OddEmbedding) -> Finding:
    """One tensor in two places that is not the same in both."""
    offsets = {source - position for position, source in odd.moved}
    factor = float(odd.fit.fitted["factor"]) if odd.fit is not None and odd.fit.name == "scalar" else None
    if odd.moved:
        name = "token-shift" if len(offsets) == 1 and len(odd.moved) >= 4 else "stale-rows"
        here, there = odd.moved[0]
        what = f"position {here} holds the row of position {there}"
    elif odd.fit is not None:
        name = ID_OF_FIT[odd.fit.name]
        held = f"that times {factor:.4g}" if factor is not None else _WHAT[name]
        what = f"{'they are' if odd.rows > 1 else 'it is'} {held}"
    elif odd.positional is not None:
        name, what = "unexplained", f"the target adds positions between the two, as {odd.positional} says"
    else:
        name, what = "unexplained", "none of the known causes fits"
    many = odd.rows > 1
    shown = ", ".join(map(str, odd.positions[:_SHOWN])) + (", ..." if odd.rows > _SHOWN else "")
    rows = (
        "All rows"
        if odd.whole
        else f"{plural(odd.rows, 'row')} of {odd.of} (position{'s' if many else ''} {shown})"
    )
    # A multiplier that no config names may be the model's own; none turns its embedding round.
    multiplied = factor is not None and factor > 0 and odd.whole
    unsure = multiplied or odd.picture or odd.positional is not None
    return finding(
        name,
        f"{rows} of the target's embedding {'are' if many else 'is'} not {odd.beside}: {what} (median relative L2 "
        f"{odd.rel_l2:.3g}, limit {odd.limit:g}).",
        confidence=0.4 if odd.picture else 0.5 if unsure or name == "unexplained" else 0.85,
        evidence={
            "of": "embed",
            "against": odd.beside,
            "rows": odd.rows,
            "compared": odd.of,
            "positions": list(odd.positions[:64]),
            "position_holds_row_of": [list(pair) for pair in odd.moved[:20]],
            "fit": odd.fit.name if odd.fit is not None else None,
            "factor": factor,
        },
        remedy=_MULTIPLIED
        if multiplied
        else _PICTURE
        if odd.picture
        else _POSITIONS
        if odd.positional is not None
        else _TAP,
        severity=NOTE if unsure else FAULT,
    )


def _of_draft(facts: Facts, share: float | None, fit: Fit | None) -> Iterator[Finding]:
    """Rows that are not their token's. A draft with an embedding of its own agrees nowhere; that is no fault. share, fit:
    see :func:`compare_embedding`."""
    torn = facts.inside.embed_torn
    if "embed" in facts.left.present or facts.inside.alike("embed", "embed_in"):
        return
    if fit is not None:
        yield from _transformed(facts, share or 0.0, fit)
        return
    if share in (None, 0.0, 1.0):
        if torn is not None:
            yield _torn(torn)
        return
    yield finding(
        "stale-rows",
        f"The draft embeds some tokens as the target does ({share:.0%} of the rows, bit for bit) and others not: those "
        "rows belong to other tokens, or to an earlier pass.",
        confidence=0.8,
        evidence={"rows_that_agree_with_the_target": share},
        remedy=_IDS,
    )


def _torn(torn: Torn) -> Finding:
    """Equal tokens have unequal rows, whoever's embedding it is."""
    whose = "those rows belong to other tokens, or to an earlier pass"
    if torn.moved is not None:
        whose = f"every row is the one of the token {'before' if torn.moved < 0 else 'behind'} it"
    return finding(
        "stale-rows" if torn.moved is None else "token-shift",
        f"The draft embeds the same token now so, now so: {torn.tokens} of the {torn.repeated} tokens that occur more than "
        f"once have different rows of embed_in; {whose}.",
        confidence=0.8,
        evidence={"tokens": torn.tokens, "repeated": torn.repeated, "rows_are_those_of_token": torn.moved},
        remedy=_IDS,
    )


def _transformed(facts: Facts, share: float, fit: Fit) -> Iterator[Finding]:
    """An embedding that is the target's but for a factor, or in another number format: none of the draft's own."""
    where = "The draft's embedding (embed_in)" + (f" in {1 - share:.0%} of the rows" if share else "")
    evidence = {"rows_that_agree_with_the_target": share, "fit": fit.name, "residual": fit.residual}
    if fit.name == "bytes":
        yield finding(
            "dtype-reinterpretation",
            f"{where} is the target's with its bytes read in another number format.",
            confidence=0.9,
            evidence={**evidence, **{k: fit.fitted[k] for k in ("read_as", "stored_as")}},
            remedy="State the number format of the embedding's weight where it is loaded.",
        )
        return
    factor, roots = float(fit.fitted["factor"]), float(fit.fitted["factor_over_sqrt_h"])
    if abs(factor - 1) <= facts.thresholds.scale:
        return
    root, width = "", (factor / roots) ** 2
    if abs(roots - 1) < SAME_FACTOR:
        root = " (the root of the hidden size)"
    elif abs(factor * width**0.5 - 1) < SAME_FACTOR:
        root = " (1 by the root of the hidden size)"
    evidence |= {"factor": factor, "factor_over_sqrt_h": roots}
    if share == 0 and _of_the_target(facts.left, factor, factor / roots) and not _other_in(facts.reference, factor):
        yield finding(
            "scale",
            f"{where} is the target's times {factor:.4g}{root}, as where the target multiplies its embedding and the draft "
            "shares the weight alone. Whether the draft was trained so, nothing recorded here says.",
            confidence=0.4,
            evidence=evidence,
            remedy="Nothing is wrong where the draft was trained so. Where its training multiplied the embedding as the "
            "target does, multiply it where the draft embeds its tokens as well.",
            severity=NOTE,
        )
        return
    yield finding(
        "scale",
        f"{where} is the target's times {factor:.4g}{root}.",
        confidence=0.85,
        evidence=evidence,
        remedy="Take the factor away where the draft embeds its tokens, unless it was trained with it: some targets scale "
        "their embedding (by the root of the hidden size), and drafts that share it are fed the plain one.",
    )


def _of_the_target(trace: Capture, factor: float, root: float) -> bool:
    """Whether the target may multiply its own embedding by that: the draft, which takes the weight as it is stored, is less
    by the root of the hidden size (``root``), or by a multiplier that the target's config tells; or its tap comes before
    the multiplier, and the draft's behind it."""
    named = tuple(multipliers(trace))
    return any(abs(factor * one - 1) < SAME_FACTOR for one in (root, *named)) or any(
        abs(factor / one - 1) < SAME_FACTOR for one in named
    )


def _other_in(reference: Capture | None, factor: float) -> bool:
    """Whether the reference recorded a draft that takes another factor."""
    if reference is None or reference.draft is None:
        return False
    share, fit = compare_embedding(reference, reference.draft, own_b0(reference))
    if share == 1:
        return True
    return (
        share == 0
        and fit is not None
        and fit.name == "scalar"
        and (abs(float(fit.fitted["factor"]) / factor - 1) >= SAME_FACTOR)
    )
