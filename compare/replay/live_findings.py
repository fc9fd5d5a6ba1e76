"""Where a live draft and its replay part, as findings; and that they do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from drafttrace.compare.audit.subject import fault, note
from drafttrace.compare.document import join, plain
from drafttrace.compare.replay.blame import Blame, layer_names
from drafttrace.compare.replay.live import LiveComparison
from drafttrace.compare.replay.proposals import ProposedBy
from drafttrace.compare.replay.stages import EMBED_IN, HIDDEN_IN, LOGITS, PROPOSAL, PartedRows, Stage
from drafttrace.compare.result import Finding

_MOST_ROWS = 6
_BROKEN = "NaN or infinite on one side only"
_ROUNDS, _TIMES, _TOKENS = 4, 2.0, 1.0
"""Rounds without which a mean accept length says little; and by which factor, and how many tokens, two contradict."""


def live_findings(live: LiveComparison | None) -> Iterator[Finding]:
    """Where a live draft parts from its replay."""
    if live is None or live.parted is None:
        return
    at = live.parted
    if live.proposed_by is not None:
        yield _proposals(live.proposed_by, at)
        return
    blame = live.blame if live.blame is not None else Blame(())
    yield fault(
        "downstream",
        0.9,
        f"Live and replay part at {at.tensor} of step {at.step + 1} {_how(at)}; everything before it that the trace "
        f"holds agrees, so the fault lies {_between(live, at, blame)}.",
        _place(at, blame, live.layers) if at.whole else _some_rows(at),
        {
            "step": at.step,
            "tensor": at.tensor,
            "rows": at.rows,
            "parts": list(blame.parts),
            "shown": blame.shown,
            **_measured(at),
        },
    )


def contradiction_finding(
    live: LiveComparison | None, expected: float, changed: Sequence[str], switches_tried: bool
) -> Iterator[Finding]:
    """That live and replay agree tensor by tensor, and the accept lengths are nothing alike. expected: of the replay's
    chain, on the text of the trace. changed: switches that the server runs otherwise than the config says.

    A tree accepts more than a chain does, so of a tree only the opposite counts.
    """
    if live is None or live.lacking or live.parted is not None or live.observed is None:
        return
    observed, rounds = live.observed, len(live.accept_lengths)
    rather = ""
    if live.contradicted:
        rather = _by_rounds(live)
    elif not math.isfinite(expected) or not _nothing_alike(live, observed, expected):
        return
    remedy = "Look at how the server verifies: its sampling, and what it was asked."
    if rather:
        remedy = (
            "Look at how the server verifies, and at what counted these rounds: they are not those of this text."
        )
    elif changed and not switches_tried:
        remedy = "Replay again without --no-switches: it says what each of these costs."
    elif observed > expected:
        remedy = "Give the text and the target that the trace was recorded with."
    why = (
        f" The server runs the draft otherwise than its config and checkpoint say ({', '.join(changed)})."
        if changed and not rather
        else ""
    )
    gives = f"{expected:.2f}" if math.isfinite(expected) else "others"
    yield fault(
        "unexplained",
        0.8 if rather else 0.6,
        f"Accept length {observed:.2f} was observed over {rounds} rounds, and the replay of the same text gives {gives}, "
        f"though the live draft computes what the replay computes as served.{rather}{why}",
        remedy,
        {
            "observed": observed,
            "expected": expected,
            "changed": list(changed),
            "observed_lengths": list(live.accept_lengths),
            "expected_lengths": list(live.expected_lengths),
        },
    )


def _nothing_alike(live: LiveComparison, observed: float, expected: float) -> bool:
    less, more = sorted((observed, expected))
    enough = len(live.accept_lengths) >= _ROUNDS and more >= _TIMES * less and more - less >= _TOKENS
    return enough and not (live.topk > 1 and observed > expected)


def _by_rounds(live: LiveComparison) -> str:
    """Which rounds of a greedy chain have another length than the proposals and the text give."""
    wrong = live.contradicted
    listed = join(
        [f"{live.accept_lengths[k]} for {live.expected_lengths[k]} in round {k}" for k in wrong], _MOST_ROWS
    )
    return (
        f" By the proposals and the text, which decide every round of a greedy chain, {len(wrong)} of "
        f"{len(live.accept_lengths)} rounds have another length: {listed}."
    )


def agreement_finding(live: LiveComparison | None, expected: float) -> Iterator[Finding]:
    """That nothing parts, with the accept length beside the expected one: for a replay that found nothing else."""
    if live is None or live.lacking or not live.stages or live.parted is not None:
        return
    observed = live.observed
    if observed is not None and math.isfinite(expected):
        yield note(
            "none",
            0.6,
            f"The live draft computes what the replay computes; accept length {observed:.2f} was observed over "
            f"{len(live.accept_lengths)} rounds, the replay of the same text gives {expected:.2f}.",
            "If that is less than training promised, look at the wiring and the text, not at the draft's forward.",
            {"observed": observed, "expected": expected},
        )


def _between(live: LiveComparison, at: Stage, blame: Blame) -> str:
    """What the fault lies in, or the two tensors that it lies between."""
    if at.tensor == EMBED_IN:
        return "in the draft's embedding, or in the token ids that it looked up"
    if not blame.parts:
        aside = (PROPOSAL, LOGITS, EMBED_IN)  # nothing that follows in a step comes out of these
        before = [stage for stage in live.stages[: live.stages.index(at)] if stage.tensor not in aside]
        first = (
            f"{before[-1].tensor} of step {before[-1].step + 1}"
            if before
            else "the slots that the server hands over"
        )
        return f"between {first} and {at.tensor} of step {at.step + 1}"
    named = " or ".join(f"in {part}" for part in blame.parts)
    return f"{named}: {blame.shown}" if blame.shown else named


def _how(at: Stage) -> str:
    """How far apart the two are: all of the tensor, or how many rows of it and which."""
    if at.equal_top1 is not None:
        return f"(equal first choices {at.equal_top1:.1%} over {at.rows} rows)"
    if at.whole or at.apart is None:
        far = "" if at.rel_l2_p50 is None else f", relative L2 {plain(at.rel_l2_p50, 3)}"
        size = "" if at.norm_ratio_p50 is None else f", norm {plain(at.norm_ratio_p50, 3)} times the replay's"
        some = f", {len(at.apart)} of them apart" if at.apart is not None and len(at.apart) < at.rows else ""
        broken = f", {at.apart.broken} {_BROKEN}" if at.apart is not None and at.apart.broken else ""
        return f"(cosine {at.cosine_p50:.4f}{far}{size} over {at.rows} rows{some}{broken})"
    return f"in {len(at.apart)} of {at.rows} rows ({_rows(at.apart)})"


def _rows(apart: PartedRows) -> str:
    """Where these rows stand, and what is the matter with them."""
    positions, rounds = sorted(set(apart.position)), sorted({k for k in apart.round if k >= 0})
    said = [f"position{'s' if len(positions) > 1 else ''} {join([str(k) for k in positions], _MOST_ROWS)}"]
    if rounds:
        said.append(f"round{'s' if len(rounds) > 1 else ''} {join([str(k) for k in rounds], _MOST_ROWS)}")
    if apart.broken:
        said.append(f"{apart.broken} {_BROKEN}")
    if apart.rel_l2 is not None and apart.norm_ratio is not None:
        said.append(f"relative L2 {plain(apart.rel_l2, 3)}, norm {plain(apart.norm_ratio, 3)} times the replay's")
    return "; ".join(said)


_TABLES = {LOGITS: "lm_head", EMBED_IN: "embed_tokens"}
"""Weights of which some rows may be other ones, by the tensor that is made of single rows of them."""


def _some_rows(at: Stage) -> str:
    """Where to look for what is wrong in some rows and right in the others."""
    weight = "it is hardly a weight of the draft"
    if at.tensor in _TABLES:
        weight += f", unless some rows of {_TABLES[at.tensor]} are other ones"
    return (
        f"The other {at.rows - len(at.apart or ())} rows agree, so {weight}: look at what made just these rows (their "
        "positions, with rope and window; their places in the batch; the draft's cache; padding of a CUDA graph), and "
        "record them again."
    )


def _measured(at: Stage) -> dict[str, Any]:
    if at.cosine_p50 is None:
        return {"equal_first_choices": at.equal_top1}
    apart = at.apart
    some = {} if apart is None else {"rows_apart": len(apart), "positions": apart.position, "rounds": apart.round}
    return {"cosine": at.cosine_p50, "rel_l2": at.rel_l2_p50, "norm_ratio": at.norm_ratio_p50, **some}


def _proposals(by: ProposedBy, at: Stage) -> Finding:
    """The states agree and the proposals do not, and another head or map gives those that the server made."""
    evidence = {"step": at.step, "rows": at.rows, "equal_first_choices": at.equal_top1, "explained_by": by}
    before = f"The live draft's states are the replay's, and its proposals are not ({at.equal_top1:.1%} of {at.rows} alike)"
    if by == "no vocabulary map":
        return fault(
            "vocab-map-missing",
            0.95,
            f"{before}: every draft id was taken for a target id.",
            "The server lost d2t: look at whether the checkpoint that it loaded has it (drafttrace check).",
            evidence,
        )
    return fault(
        "weights-replaced",
        0.95,
        f"{before}: they are what {by} makes of these states. The server replaced the draft's own lm_head.",
        "Look at what shares the target's head with the draft when it is loaded; the checkpoint's own head must stay.",
        evidence,
    )


def _place(at: Stage, blame: Blame, layers: int) -> str:
    """Where to look, by the tensor at which the two part and by the parts that may be it."""
    if at.tensor == EMBED_IN:
        return (
            "Look at embed_tokens as the draft has it (drafttrace check: SGLang puts the target's in its place where the "
            "widths allow), and at the token ids that this step was given."
        )
    if at.tensor == HIDDEN_IN and at.step == 0:
        return (
            "Look at the hand-over of the hidden states to the draft: their order, the rows that were taken, and what lies "
            "in the graph's buffer."
        )
    if at.tensor == HIDDEN_IN:
        return "Look at what one draft step hands to the next: norm_output, and the row that the step took."
    if at.tensor == "fc_in":
        return "Look at the norm before fc and at the hand-over of the hidden states to the draft."
    if at.tensor == "fc_out":
        return "Look at fc's weights and bias as loaded (drafttrace check)."
    if at.tensor in (PROPOSAL, LOGITS):
        return f"Look at {' and at '.join(blame.parts or ('lm_head',))} as loaded (drafttrace check)."
    if blame.shown:
        return f"Look at {blame.parts[0]} as loaded and as the server runs it."
    if at.step == 0:
        return f"Look at {_layers(layers)}: weights as loaded, embedding, norms, rope and the draft's cache."
    return "Look at the recycled state (norm_output), the positions and the cache of draft decode."


def _layers(layers: int) -> str:
    """The draft's layers by name: a trace has the state behind the last one only."""
    names = layer_names(layers)
    if layers == 1:
        return f"the draft layer ({names[0]})"
    return (
        f"the draft layers {names[0]} to {names[-1]} (a trace holds only what {names[-1]} hands on, so which of the "
        f"{layers} it is cannot be told)"
    )
