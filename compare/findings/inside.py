"""Findings that need no reference: what the draft consumed against what the target produced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.result import Finding
from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="fc-not-called",
        kind="wiring",
        rank=50,
        listed=70,
        what="The draft has fc, and it never ran: it works on the target's last state.",
        signature="The probe on fc fired 0 times. The accept length is often exactly 1.00.",
        remedy="Start the server with --speculative-algorithm EAGLE3, not EAGLE.",
        cases=("sglang#21272",),
    ),
    Entry(
        id="vocab-map-missing",
        kind="vocabulary",
        rank=340,
        listed=10,
        what="The draft's vocabulary is smaller than the target's and nothing maps it.",
        signature="drafttrace check: head and vocabulary sizes differ, and the checkpoint has no d2t.",
        remedy="Export d2t with the draft.",
        cases=("vllm#18909", "Automodel#2447"),
    ),
    Entry(
        id="vocab-map-offset",
        kind="vocabulary",
        rank=350,
        listed=20,
        what="The map holds absolute ids where offsets are expected, or offsets where ids are.",
        signature="Read as offsets, d2t points outside the vocabulary or at an id twice.",
        remedy="Store offsets: target id = draft id + d2t.",
        cases=("verl-SpeCo#67",),
    ),
    Entry(
        id="vocab-map-range",
        kind="vocabulary",
        rank=360,
        listed=30,
        what="The map points outside the target's vocabulary.",
        signature="drafttrace check; or drafted ids that the target cannot say.",
        remedy="Make d2t anew from the tokenizer that the target is served with.",
        cases=("verl-SpeCo#67",),
    ),
    Entry(
        id="position-seam",
        kind="position",
        rank=380,
        listed=10,
        what="The positions of the draft's decode steps do not follow those of its extend pass.",
        signature="The positions in the draft's row table jump at the seam.",
        remedy="Update the server: the draft worker's position offset is off.",
        cases=("sglang#25015",),
    ),
)


_RECYCLED = {
    "normed": ("norm-extra", "an RMS norm"),
    "rms": ("norm-extra", "an RMS norm"),
    "un-normed": ("norm-missing", "an RMS norm"),
    "gain": ("norm-gain", "a gain per channel"),
    "scalar": ("scale", "a factor"),
    "rotation": ("rotation", "a rotation"),
    "bytes": ("dtype-reinterpretation", "another reading of its bytes"),
}


@finder(turn=60, unpaired=True)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings inside the left trace."""
    yield from _fc_not_called(facts)
    yield from _recycled(facts)
    yield from _vocab_map(facts)
    yield from _position_seam(facts)


def _fc_not_called(facts: Facts) -> Iterator[Finding]:
    if facts.inside.fc_ran is not False:
        return
    length = facts.acceptance.observed
    seen = f" (observed accept length {length:.2f})" if length is not None else ""
    yield finding(
        "fc-not-called",
        f"The draft ran, but its fc never did{seen}: it consumed something else than the target's aux states.",
        slots=range(len(facts.left.slots)),
        confidence=0.97,
        evidence={"probes": {p.name: p.fired for p in facts.left.probes if "fc" in p.name}},
        remedy=(
            "Serve with --speculative-algorithm EAGLE3 (with EAGLE the target hands over its last state only), and check "
            "that the aux width K*H differs from the draft's embedding width: fc runs only then."
        ),
    )


def _position_seam(facts: Facts) -> Iterator[Finding]:
    """Draft-decode positions must follow the extend's last one without a gap, step by step."""
    seams = [s for s in facts.inside.seams if len(s.steps) >= 1]
    broken = [s for s in seams if s.broken]
    offsets = facts.inside.offsets
    # A pass that a torn trace lacks is a gap of the trace, and none of the positions.
    few = not facts.left.complete and len(broken) < max(1, len(seams) // 2)
    if (not broken or few) and not offsets:
        return
    if offsets:
        off = "; ".join(
            f"{' and '.join(after)} are {abs(d)} too {'high' if d > 0 else 'low'}"
            for d, after in _offset_passes(offsets)
        )
        text = f"The positions of the draft's extend {off}: its rows hold the tokens of other positions"
    else:
        text = "The draft's decode positions do not follow its extend"
    if broken:
        text += f"{'; and' if offsets else ':'} after position {broken[0].last} come {list(broken[0].steps)}"
    yield finding(
        "position-seam",
        f"{text}.",
        slots=(),
        confidence=0.9,
        evidence={
            **{str(s.round): {"extend_ends": s.last, "steps": list(s.steps)} for s in broken[:8]},
            **({"offsets": dict(offsets)} if offsets else {}),
        },
        remedy="The draft's positions are off: check seq_lens and the position offset of the draft worker.",
    )


def _offset_passes(offsets: Mapping[str, int]) -> Iterator[tuple[int, list[str]]]:
    """Every distance with the passes whose positions are off by it."""
    for d in sorted(set(offsets.values())):
        yield d, [f"after {phase.rsplit('_', 1)[-1]}" for phase, off in offsets.items() if off == d]


def _recycled(facts: Facts) -> Iterator[Finding]:
    """The state between two draft steps: handed on unchanged, or through a norm that only one side has."""
    recycled = facts.inside.recycled
    if recycled is None or recycled.equal == recycled.rows or facts.inside.alike("hidden_out"):
        return
    fit = recycled.fits[0] if recycled.fits and recycled.fits[0].residual < 0.1 else None
    evidence = {
        "rows": recycled.rows,
        "equal": recycled.equal,
        "by_step": {str(step): list(counts) for step, counts in recycled.by_step.items()},
        "copies": recycled.copies,
        "fit": fit.name if fit is not None else None,
        "residual": fit.residual if fit is not None else None,
    }
    if fit is not None and fit.name in _RECYCLED:
        name, what = _RECYCLED[fit.name]
        factor = f" of {fit.fitted['factor']:.4g}" if fit.name == "scalar" else ""
        yield finding(
            name,
            f"The state that the draft recycles from step to step is not what the step before left behind: {what}{factor} "
            "lies between them.",
            confidence=0.8,
            evidence=evidence,
            remedy="Compare norm_output in the draft's config with what the trainer fed to its second step, and look at "
            "what the server does to the state between two steps.",
        )
        return
    lost = [step for step, (rows, equal) in recycled.by_step.items() if rows >= 3 and equal < rows // 2]
    if lost or recycled.equal < recycled.rows // 2:
        differing = recycled.rows - recycled.equal
        where = (
            f" (step{'s' if len(lost) > 1 else ''} {', '.join(str(s + 1) for s in lost)} of a round)"
            if lost
            else ""
        )
        copies = f"; {recycled.copies} of them take up what an earlier pass left behind" if recycled.copies else ""
        yield finding(
            "stale-rows",
            f"{differing} of {recycled.rows} draft-decode steps{where} do not start from the state that the step before "
            f"left behind{copies}.",
            confidence=0.9 if 2 * recycled.copies > differing else 0.7,
            evidence=evidence,
            remedy="Compare with --disable-cuda-graph: a buffer between the draft's steps is not refreshed.",
        )


def _vocab_map(facts: Facts) -> Iterator[Finding]:
    """What the draft's top-k ids say about d2t."""
    vocab = facts.inside.vocab
    if vocab is None:
        return
    evidence = {k: getattr(vocab, k) for k in vocab.__dataclass_fields__}
    smaller = vocab.draft_size is not None and vocab.size is not None and vocab.draft_size < vocab.size
    name, text = "", ""
    if vocab.clashes:
        name, text = (
            "vocab-map-offset",
            f"{vocab.clashes} draft ids share a target id: offsets were read as absolute ids",
        )
    elif vocab.outside and vocab.doubled:
        name, text = "vocab-map-offset", "ids beyond the target's vocabulary: absolute ids were read as offsets"
    elif vocab.outside:
        name, text = (
            "vocab-map-range",
            f"{vocab.outside} draft ids map beyond the target's vocabulary of {vocab.size}",
        )
    elif smaller and vocab.identity and vocab.seen >= 16:
        name, text = (
            "vocab-map-missing",
            "every draft id stands for itself although the draft's vocabulary is a subset",
        )
    if name:
        yield finding(
            name,
            f"The draft's vocabulary map is wrong: {text}.",
            confidence=0.9,
            evidence=evidence,
            remedy="Put the right d2t (offsets: target id = draft id + d2t) into the checkpoint; see drafttrace check.",
        )
