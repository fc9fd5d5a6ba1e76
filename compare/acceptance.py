"""Accept lengths: what a trace observed, and what the accuracies of training would give."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafttrace.compare import coverage
from drafttrace.compare.result import Acceptance
from drafttrace.compare.thresholds import Thresholds
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError


@dataclass(frozen=True)
class Expected:
    """What the draft should reach: tokens per round (bonus included), and the accuracy of every step where known."""

    length: float
    accuracies: tuple[float, ...]
    source: str


def expected_of_accuracies(accuracies: Sequence[float], source: str) -> Expected:
    """1 + a1 + a1·a2 + …: step k counts only where all steps before it were right."""
    length, product = 1.0, 1.0
    for accuracy in accuracies:
        product *= accuracy
        length += product
    return Expected(length, tuple(accuracies), source)


def parse_expected(text: str, steps: int | None = None) -> Expected:
    """``2.7`` (a length), ``0.75,0.71,0.68`` (accuracies per step) or ``0.75`` (one for all of ``steps`` steps).

    Accuracies of more steps than the server drafts do not count. Raises DrafttraceError for anything else, for an accuracy
    of 0 in the first step, which no accept length falls short of, and as :func:`reachable` does.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and 1 < numbers[0] < 1000:
        return reachable(Expected(numbers[0], (), "given"), steps)
    if not numbers or not all(0 <= number <= 1 for number in numbers):
        raise DrafttraceError(
            f"The expected accept length '{text}' is neither a length above 1 nor accuracies between 0 and 1; write it "
            "like 2.7 or 0.75,0.71,0.68, or give the file that drafttrace replay --json wrote."
        )
    if numbers[0] == 0:
        raise DrafttraceError(
            f"An expected accept length of '{text}' is that of a draft that never says a right token, so nothing could "
            "fall short of it; give the accuracies that training logged, like 0.75,0.71,0.68, or leave --expected out."
        )
    if len(numbers) == 1:
        numbers *= steps if steps is not None and steps > 0 else 3
    elif steps is not None and 0 < steps < len(numbers):
        numbers = numbers[:steps]
    shown = ", ".join(f"{number:.3g}" for number in numbers)
    return expected_of_accuracies(numbers, f"1 + a1 + a1·a2 + … with step accuracies {shown}")


def reachable(expected: Expected, steps: int | None) -> Expected:
    """The same. Raises DrafttraceError where a server that drafts ``steps`` tokens a round can never reach it."""
    if steps is not None and steps > 0 and expected.length > 1 + steps:
        raise DrafttraceError(
            f"The expected accept length of {expected.length:g} ({expected.source}) is out of reach: the server drafts "
            f"{steps} token{'s' if steps > 1 else ''} a round, so that no round gives more than {1 + steps}; give one of "
            f"at most {1 + steps}, or the accuracies that training logged, like 0.75,0.71,0.68."
        )
    return expected


def expected_of_replay(value: Any, path: str) -> Expected:
    """The expected length of the best wiring in the JSON of ``drafttrace replay``.

    Raises DrafttraceError for anything else, and for a replay that lacked the tokens before its rows.
    """
    if isinstance(value, Mapping) and value.get("absent_tokens"):
        raise DrafttraceError(
            f"The replay of '{path}' had no states of {value['absent_tokens']} tokens before its rows, so it does not know "
            "which accept length to expect; record the whole request (drafttrace record does) and replay that."
        )
    rows = value.get("wirings") if isinstance(value, Mapping) else None
    scores = [row.get("score") for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    for score in scores:
        length = score.get("expected") if isinstance(score, Mapping) else None
        if isinstance(length, (int, float)) and length >= 1:
            return Expected(float(length), (), f"the replay of '{path}'")
    raise DrafttraceError(
        f"'{path}' holds no replay with an expected accept length; give what 'drafttrace replay --json' wrote."
    )


def draft_steps(trace: Capture) -> int | None:
    """Draft steps per round of the server that recorded a trace."""
    arguments = trace.about.get("server_args")
    steps = arguments.get("speculative_num_steps") if isinstance(arguments, Mapping) else None
    return steps if isinstance(steps, int) and not isinstance(steps, bool) else None


def acceptance_of(
    left: Capture,
    reference: Capture | None,
    expected: Expected | None = None,
    fc_in: str = "unknown",
    vocabulary: Collection[int] | None = None,
) -> Acceptance:
    """The trace's accept lengths beside the expected one: the given one, else one that a file's about block tells.

    vocabulary: the target ids that the draft can say, None where it is not known, or where it can say all of them.
    """
    request = left.about.get("request")
    counts: Sequence[Any] = request.get("accept_counts", ()) if isinstance(request, Mapping) else ()
    numbers = [float(c) for c in counts if isinstance(c, (int, float))]
    wanted = expected or _declared(left, "the trace") or _declared(reference, "the reference")
    answer = [int(token) for token in left.tokens[left.prompt_length or len(left.tokens) :]]
    won = coverage.sayable(numbers, answer, vocabulary) if vocabulary is not None else None
    counted = coverage.rounds_of(numbers if won is None else won)
    return Acceptance(
        observed=float(np.mean(numbers)) if numbers else None,
        rounds=len(numbers),
        expected=wanted.length if wanted is not None else None,
        expected_source=wanted.source if wanted is not None else None,
        curve=accept_curve(numbers, draft_steps(left)),
        expected_curve=wanted.accuracies if wanted is not None else (),
        fc_in=fc_in,
        after_the_end=after_the_end(left),
        counted_rounds=counted.count,
        at_most=counted.at_most if counted.count else None,
        outside=coverage.outside(answer, vocabulary) if vocabulary is not None and answer else None,
        steps=draft_steps(left),
        between_traces=reference is not None and all(is_trace(side) for side in (left, reference)),
    )


def is_trace(capture: Capture) -> bool:
    """Whether a capture is a recording of a server, and not what training stored."""
    return capture.format.startswith("drafttrace.trace")


def _declared(capture: Capture | None, source: str) -> Expected | None:
    block = capture.about.get("expected") if capture is not None else None
    if not isinstance(block, Mapping) or not isinstance(block.get("accept_length"), (int, float)):
        return None
    return Expected(float(block["accept_length"]), (), str(block.get("source", source)))


def accept_curve(counts: Sequence[float], steps: int | None = None) -> tuple[float, ...]:
    """Per draft position the share of rounds that accepted it, of those that accepted the one before.

    counts: accepted tokens of every round, the target's own one included. steps: drafted tokens of a round, where the
    server says so: a round that accepted them all has no next position to reject.
    """
    shares = []
    reached = len(counts)
    last = int(max(counts, default=1))
    for position in range(1, (last if steps is None else min(last, steps)) + 1):
        accepted = sum(1 for count in counts if count > position)
        if reached < 3:
            break
        shares.append(accepted / reached)
        reached = accepted
    return tuple(shares)


def judged_low(acceptance: Acceptance, thresholds: Thresholds) -> tuple[bool, bool]:
    """Whether the observed accept length is below the limit, and whether so many rounds show it that it is no chance.

    Rounds whose next token the draft cannot say are no evidence of a fault: a healthy draft loses them too.
    """
    if acceptance.observed is None or acceptance.after_the_end:
        return False, False
    limit = low_limit(acceptance, thresholds)
    low = acceptance.observed < limit
    most = acceptance.at_most
    if most is None and acceptance.outside is None and acceptance.rounds:  # a result that an older version saved
        most = acceptance.observed + coverage.LEAST_UNSEEN / acceptance.rounds
    return low, low and most is not None and most < limit


def low_limit(acceptance: Acceptance, thresholds: Thresholds) -> float:
    """The accept length below which the observed one is too low."""
    if acceptance.expected is not None:
        return 1 + thresholds.accept_part * (acceptance.expected - 1)
    return thresholds.accept


def after_the_end(trace: Capture) -> bool:
    """Whether the prompt was a finished text: nothing was trained on what follows, so its accept length says nothing."""
    length = trace.prompt_length or 0
    if not 0 < length <= len(trace.tokens):
        return False
    return int(trace.tokens[length - 1]) in end_tokens(trace)


def end_tokens(capture: Capture) -> frozenset[int]:
    """The ids that end a text, as the target's config tells them; empty where nothing does."""
    config = capture.about.get("target_config")
    inner = config.get("text_config") if isinstance(config, Mapping) else None
    stops = next(
        (c["eos_token_id"] for c in (config, inner) if isinstance(c, Mapping) and "eos_token_id" in c), None
    )
    return frozenset(stop for stop in (stops if isinstance(stops, list) else [stops]) if isinstance(stop, int))
