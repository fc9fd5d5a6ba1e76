"""What a replay's numbers say, as findings: a better wiring, a switch, the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from drafttrace.compare.audit.remedies import TRACE
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.audit.wiring_checks import difference_findings
from drafttrace.compare.replay.order_findings import ids_too
from drafttrace.compare.replay.ranking import Scored, better, confidence, sigmas, significant, too_few, works
from drafttrace.compare.replay.result import VariantRow
from drafttrace.compare.replay.score import ENOUGH, WiringScore
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.replay.texts import Key, keys_name
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture

_UNCOVERED = 0.05
_WORKS = 0.2
_RESTORED, _TIMES = 0.3, 2.0
"""Of the tokens that a draft can say, the share that a switch must bring it to; and times the share without it."""


def wiring_findings(
    subject: Subject,
    best: tuple[Sequence[Key], Scored],
    served: tuple[Sequence[Key], Scored | None],
    others: Sequence[Sequence[Key]] = (),
) -> Iterator[Finding]:
    """The wiring that works best is not the one the server would use: name the difference, with both numbers.

    best: the winner and what was counted. served: what the server hands over; None where the capture does not hold
    those boundaries: then the difference is named, but what it costs is not known. others: wirings that the rows cannot
    tell from the winner.
    """
    winner, first = best
    handed, second = served
    score = first.score
    if tuple(winner) == tuple(handed):
        return
    if second is None:
        yield from _unmeasured(subject, winner, score, handed)
        return
    if not better(first, second):
        return
    theirs = second.score
    gained = (
        f"the replay gives {score.top1:.1%} with {keys_name(winner)} and {theirs.top1:.1%} with {keys_name(handed)} "
        f"(expected accept length {score.expected:.2f} and {theirs.expected:.2f})"
    )
    if others:
        gained += f", and these {score.rows} rows cannot tell {keys_name(winner)} from {_some(others)}"
    evidence = {
        "top1": score.top1,
        "served_top1": theirs.top1,
        "margin": score.top1 - theirs.top1,
        "expected": score.expected,
        "served_expected": theirs.expected,
    }
    paired = 1 - math.exp(-max(0.0, sigmas(first.hits, second.hits)) / 3)
    sure = min(0.99, max(confidence(score.top1, theirs.top1, score.rows), paired))
    if others:
        sure = min(sure, 0.8)
    if all(isinstance(key, int) for key in winner):
        wanted = [key for key in winner if isinstance(key, int)]
        handing = _handing(subject, handed)
        yield from _with_ids(subject, wanted, difference_findings(handing, wanted, gained, evidence, sure))
        return
    permuted = set(winner) == set(handed)
    slots = "the slots in another order" if permuted else "other slots"
    yield fault(
        "slot-permutation" if permuted else "wrong-boundary",
        sure,
        f"The draft works best with {slots} than the server hands over: {gained}.",
        "Name the boundaries of the file's slots (drafttrace inspect --target, or a layer sweep), then replay again.",
        {**evidence, "wiring": keys_name(winner)},
    )


def _handing(subject: Subject, handed: Sequence[Key]) -> Subject:
    """The subject as it served: what a trace holds counts more than what the config would give today."""
    wiring = tuple(key for key in handed if isinstance(key, int))
    if len(wiring) != len(handed) or wiring == subject.served.wiring:
        return subject
    traced = replace(subject.served, wiring=wiring, ids_from=TRACE)
    return replace(subject, readings=(*subject.readings[:-1], traced))


def _some(wirings: Sequence[Sequence[Key]], most: int = 3) -> str:
    """The first few of them by name, and how many more there are."""
    tail = f" and {len(wirings) - most} more" if len(wirings) > most else ""
    return ", ".join(keys_name(wiring) for wiring in wirings[:most]) + tail


def _unmeasured(
    subject: Subject, winner: Sequence[Key], score: WiringScore, handed: Sequence[Key]
) -> Iterator[Finding]:
    """The capture holds a wiring that works, by name another one than the server's, which it does not hold."""
    named = all(isinstance(key, int) for key in (*winner, *handed))
    if not named or not score.top1 >= _WORKS:
        return
    said = (
        f"the replay gives {score.top1:.1%} with {keys_name(winner)}; the server would hand over {keys_name(handed)}, "
        "which this capture does not hold"
    )
    facts = {"top1": score.top1, "expected": score.expected, "served_top1": None}
    wanted = [key for key in winner if isinstance(key, int)]
    yield from _with_ids(subject, wanted, difference_findings(subject, wanted, said, facts, 0.85))


def _with_ids(subject: Subject, wanted: Sequence[int], found: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, with the ids in the remedy where the config's are wrong beside the order of fc's columns."""
    more = ids_too(subject, wanted)
    for finding in found:
        yield replace(finding, remedy=f"{finding.remedy.rstrip('.')}{more}.") if more else finding


_RECORD = (
    "Record all boundaries (drafttrace record --boundaries all) or make them (drafttrace reference), then replay "
    "with --search: the wiring of training may be another one."
)


def useless_findings(winner: Sequence[Key], score: WiringScore, tried: int) -> Iterator[Finding]:
    """The best of the wirings at hand is no good either. tried: how many a search compared (0: none was asked for)."""
    if works(score):
        return
    remedy = _RECORD
    if tried > 1:
        remedy = (
            f"None of the {tried} wirings that were tried works: look at the weights (drafttrace check), and whether the "
            "text is of the kind that the draft was trained on; a capture with all boundaries widens the search."
        )
    yield fault(
        "unexplained",
        0.6,
        f"The draft does not work with any wiring that was tried: {keys_name(winner)}, the best one, gives "
        f"{score.top1:.1%} over {score.rows} rows.",
        remedy,
        {"wiring": keys_name(winner), "top1": score.top1, "rows": score.rows, "tried": tried},
    )


def served_useless_findings(
    handed: Sequence[Key], theirs: WiringScore, winner: Sequence[Key], score: WiringScore
) -> Iterator[Finding]:
    """What the server hands over is no good, and what ranks first is not proven to be better: a fault all the same.

    theirs: the served wiring's score, on the answer where the search saw only the prompt.
    """
    if tuple(winner) == tuple(handed) or works(theirs):
        return
    yield fault(
        "unexplained",
        0.6,
        f"The draft does not work with what the server hands over: {keys_name(handed)} gives {theirs.top1:.1%} over "
        f"{theirs.rows} rows; {keys_name(winner)} ranks first with {score.top1:.1%}, which these {score.rows} rows do not "
        "prove to be better.",
        "Record a longer answer with all boundaries (drafttrace record --boundaries all --max-new-tokens 256) or make "
        "them (drafttrace reference), then replay with --search.",
        {
            "wiring": keys_name(handed),
            "top1": theirs.top1,
            "rows": theirs.rows,
            "first": keys_name(winner),
            "first_top1": score.top1,
            "first_rows": score.rows,
        },
    )


def unproven_findings(
    handed: Sequence[Key], theirs: WiringScore, asked: Sequence[Key] | None, swept: bool
) -> Iterator[Finding]:
    """The server handed over another wiring than the config asks for, and the draft is not seen to work with it.

    theirs: the handed wiring's score. asked: what the config gives, which was not scored; None where it was, or is not
    known. swept: whether the capture holds it in the rows of its layer sweep.
    """
    if asked is None or tuple(asked) == tuple(handed) or theirs.rows < ENOUGH or not too_few(theirs):
        return
    yield fault(
        "unexplained",
        0.6,
        f"The server handed over {keys_name(handed)}, with which the draft gives {theirs.top1:.1%} over {theirs.rows} "
        f"rows; the config asks for {keys_name(asked)}, which the capture does not hold on these rows.",
        "Replay again with --search: the layer sweep holds both."
        if swept
        else "Start the server without another wiring than the config's, or record all boundaries (drafttrace record "
        "--boundaries all) and replay with --search.",
        {"wiring": keys_name(handed), "top1": theirs.top1, "rows": theirs.rows, "asked": keys_name(asked)},
    )


def last_findings(captures: Sequence[Capture], layers: int) -> Iterator[Finding]:
    """A "last" state that its own file declares as another boundary than the target's last."""
    for capture in captures:
        last = capture.last
        if last is not None and last.boundary is not None and last.boundary != layers:
            yield note(
                "last-not-last",
                0.9,
                f"The last state of {capture.path} is B{last.boundary} ({last.proven_by}), the target's is B{layers}: a "
                "trainer that takes it for the target's output learns from the wrong distribution.",
                f"Store B{layers} in the last place.",
                {"declared": last.boundary, "layers": layers},
            )
            return


_MEANING = {
    ("norm_output", "True"): (
        "norm-missing",
        "the state handed from step to step should be the normed one",
        '"norm_output": true',
    ),
    ("norm_output", "False"): (
        "norm-extra",
        "the state handed from step to step should be the raw one",
        '"norm_output": false',
    ),
    ("norm_before_residual", "True"): (
        "norm-missing",
        "the residual should be the normed fc output",
        '"norm_before_residual": true, and an engine that implements it (SGLang does not)',
    ),
    ("norm_before_residual", "False"): (
        "norm-extra",
        "the residual should be the raw fc output",
        '"norm_before_residual": false',
    ),
    ("fc_norm", "False"): ("norm-extra", "the slots should enter fc without their norms", '"fc_norm": false'),
    ("input_norm", "False"): (
        "norm-extra",
        "the slots should enter fc without the norm",
        '"norm_before_fc": false',
    ),
    ("d2t", "absolute"): (
        "vocab-map-offset",
        "d2t holds absolute ids, which the server reads as offsets",
        "Store d2t[i] - i.",
    ),
    ("d2t", "ascending"): (
        "vocab-map-range",
        "the rows of lm_head stand in ascending order of their tokens, and d2t lists these in another",
        "Store d2t in that order: numpy.sort(d2t + arange) - arange.",
    ),
    ("d2t", "offsets"): ("vocab-map-offset", "d2t holds offsets", "Keep d2t as it is."),
    ("windows", "none"): (
        "window-mismatch",
        "the draft should see all tokens before a row, not a window of them",
        '"sliding_window": null',
    ),
    ("embedding", "target"): (
        "weights-replaced",
        "the target's embedding should be used",
        "Drop embed_tokens from the draft's checkpoint.",
    ),
}


_UNUSED = {("fc_norm", "False"): "fc_norm.*.weight", ("input_norm", "False"): "input_norm.weight"}
"""Norms that are in a checkpoint whatever its config says of them."""


def variant_findings(
    variants: Sequence[VariantRow], base: WiringScore, served: Switches, *, dead: bool = False
) -> Iterator[Finding]:
    """Switches that work better set otherwise than the config says. served: those of the server.
    dead: a tensor is zero everywhere, so that ``base`` is no draft as trained, however many tokens it still names.

    Where the draft is not seen to work as it is, only a switch that makes its first step work is a cause: hits of later
    steps, without any at the first, are those of a chain that knows the text's tokens and no state, and some more hits
    at the first are softened consequences of another fault. Of several such switches one is the cause: those that help
    less than the best one beyond chance only soften what it removes.
    """
    working = works(base) and not too_few(base) and not dead
    most = max((shares for v in variants if math.isfinite(shares := _shares(v.score, 0))), default=0.0)
    for variant in variants:
        step = variant.step if working else 0
        if not working and not _makes_it_work(variant.score, base):
            continue
        if not working and significant(most, _shares(variant.score, 0), base.steps[0].rows):
            continue
        before, after = _shares(base, step), _shares(variant.score, step)
        if not significant(after, before, base.steps[step].rows):
            continue
        numbers = f"{before:.1%} becomes {after:.1%} at step {step + 1}"
        evidence = {
            "switch": variant.switch,
            "value": variant.value,
            "step": step,
            "before": before,
            "after": after,
        }
        sure = confidence(after, before, base.steps[step].rows)
        if variant.switch == "token_shift":
            yield fault(
                "token-shift",
                sure,
                f"The draft works better when row t reads token t{int(variant.value) + 1:+d} in the place of t+1 and names "
                f"t+2 as before: {numbers}.",
                "Train the draft with the embedding of token t+1 beside the state of token t, as servers hand it over "
                "(SpecForge rolls input_ids by one for that); no line of a config moves it.",
                evidence,
            )
            continue
        if variant.switch == "rope_base":
            yield fault(
                "rope-mismatch",
                sure,
                f"The replay says that positions should be turned with the target's rope_theta {variant.value}, not with "
                f"that of the draft's config (10000 where the field is lost): {numbers}.",
                f'"rope_theta": {variant.value}, where the config of the draft has its rope.',
                evidence,
            )
            continue
        meaning = _MEANING.get((variant.switch, variant.value))
        tensors = _UNUSED.get((variant.switch, variant.value))
        if tensors is not None and str(getattr(served, variant.switch)) == variant.value:
            yield note(
                "norm-extra",
                sure,
                f"The checkpoint has {tensors}, which the server does not use, and rightly: {numbers} without, so training "
                "did not use it either.",
                f"Keep {variant.switch if variant.switch == 'fc_norm' else 'norm_before_fc'} unset, and drop {tensors} "
                "from the checkpoint, whatever drafttrace check says of it from the files alone.",
                evidence,
            )
        elif meaning is not None:
            yield fault(meaning[0], sure, f"The replay says that {meaning[1]}: {numbers}.", meaning[2], evidence)


def _makes_it_work(score: WiringScore, base: WiringScore) -> bool:
    """Whether a switch is what a draft lacked: it then names a good part of what it can say, most of it only now."""
    share, sayable = _shares(score, 0), score.steps[0].coverage
    return share >= _RESTORED * sayable and share >= _TIMES * _shares(base, 0)


def _shares(score: WiringScore, step: int) -> float:
    one = score.steps[step]
    return one.token_top1 if one.target_top1 is None else one.target_top1


_IGNORED = {
    "norm": "norm-missing",
    "windows": "window-mismatch",
    "rope": "rope-mismatch",
    "biases": "weights-unused",
}
"""Parts of switches' names, and what is wrong where a server runs the draft without them, or otherwise."""


def served_switch_findings(
    trained: WiringScore, served: WiringScore | None, changed: Sequence[str]
) -> Iterator[Finding]:
    """Switches that the server ignores, where ignoring them costs."""
    if served is None or not changed or not works(trained):
        return
    worst = max(range(len(trained.steps)), key=lambda s: _shares(trained, s) - _shares(served, s))
    before, after = _shares(trained, worst), _shares(served, worst)
    if significant(before, after, trained.steps[worst].rows):
        kinds = {name: next((kind for part, kind in _IGNORED.items() if part in name), "") for name in changed}
        yield fault(
            next((kind for kind in _IGNORED.values() if kind in kinds.values()), "weights-replaced"),
            confidence(before, after, trained.steps[worst].rows),
            f"As the server runs it ({_unlike(changed)}), the draft falls from {before:.1%} to "
            f"{after:.1%} at step {worst + 1}.",
            "See drafttrace check for the line that makes the server do what training did.",
            {"changed": list(changed), "trained": before, "served": after, "step": worst},
        )


def _unlike(changed: Sequence[str]) -> str:
    """How the server runs a draft otherwise. A config is no witness of its rope: what trainers make of it is."""
    asked = [name for name in changed if name != "rope"]
    said = [f"{', '.join(asked)} differ{'s' * (len(asked) == 1)} from the config"] if asked else []
    said += ["its rope turns otherwise than training's"] if "rope" in changed else []
    return ", and ".join(said)


def under_right_map(findings: Sequence[Finding], variants: Sequence[VariantRow], score: WiringScore) -> WiringScore:
    """The score that tells what the draft can say: with ``d2t`` read as a finding says it is meant, else the given one."""
    meant = {f.evidence.get("value") for f in findings if f.evidence.get("switch") == "d2t"}
    return next((v.score for v in variants if v.switch == "d2t" and v.value in meant), score)


def coverage_findings(outside: float, score: WiringScore) -> Iterator[Finding]:
    """Tokens that the draft could never say. score: under the same reading of the vocabulary map as ``outside``."""
    if math.isfinite(outside) and outside > _UNCOVERED:
        yield note(
            "vocab-coverage",
            0.8,
            f"{outside:.1%} of the text's tokens are outside the draft vocabulary, so top-1 cannot exceed "
            f"{1 - outside:.1%} (it is {score.steps[0].token_top1:.1%}).",
            "Choose the draft vocabulary on text like the one that is served.",
            {"outside": outside},
        )
