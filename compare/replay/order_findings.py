"""The draft reads the slots of a file in another order than they stand there: told where no boundary says it already.

Where every slot has its boundary, the difference between what works and what is served says it all. Where the file does
not name its slots, or the rows contradict the names, what is served cannot be found among them, and the file's own order
is what the winner is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from drafttrace.compare.audit.remedies import wiring_remedy
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.replay.ranking import Scored, better, confidence, sigmas
from drafttrace.compare.replay.texts import Key, keys_name
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import wiring_name

WORKS = 0.2
"""Of the tokens the share that a draft that works names at the least."""
_UNSURE = 0.8
"""How sure a finding is at most whose winner these rows cannot tell from other wirings."""


def order_findings(
    subject: Subject,
    best: tuple[Sequence[Key], Scored],
    own: tuple[Sequence[Key], Scored | None],
    declared: Sequence[int | None],
    others: Sequence[Sequence[Key]] = (),
) -> Iterator[Finding]:
    """That the winner is not the order in which the file holds its slots, with the margin and what to write.

    best: the winner and what was counted. own: the file's slots in its own order. declared: the boundaries that the file
    itself gives them, before anything was known by value. others: wirings that the rows cannot tell from the winner.
    """
    (winner, first), (order, second) = best, own
    if second is None or tuple(winner) == tuple(order) or not better(first, second):
        return
    same = set(winner) == set(order)
    slots = tuple(k for k, (one, two) in enumerate(zip(winner, order, strict=False)) if one != two)
    score, theirs = first.score, second.score
    numbers = (
        f"the replay gives {score.top1:.1%} with {keys_name(winner)} and {theirs.top1:.1%} with the file's own order "
        f"{keys_name(order)} (expected accept length {score.expected:.2f} and {theirs.expected:.2f})"
    )
    if others:
        numbers += f", and these {score.rows} rows cannot tell the first from {keys_name(others[0])}"
    named = _named(winner, order, declared)
    truthful = named == tuple(winner) and named == subject.served.wiring
    sure = max(confidence(score.top1, theirs.top1, score.rows), _paired(first, second))
    reads = "the file's slots in another order" if same else "other states than the file's slots"
    yield (note if truthful else fault)(
        "slot-permutation" if same else "wrong-boundary",
        min(sure, _UNSURE if others else 0.99),
        f"The draft reads {reads}: {numbers}.",
        _remedy(subject, named, winner, order),
        {
            "wiring": keys_name(winner),
            "file": keys_name(order),
            "top1": score.top1,
            "file_top1": theirs.top1,
            "margin": score.top1 - theirs.top1,
            "expected": score.expected,
            "file_expected": theirs.expected,
        },
        slots,
    )


def known_slot_findings(
    subject: Subject, winner: Sequence[Key], first: Scored, served: Sequence[Key] | None
) -> Iterator[Finding]:
    """That a slot of which the boundary is known is another one than the server hands over, where others have no name.

    winner: what the draft works best with. served: what the server hands over; where all of the winner's slots have
    names, the difference of the two says more.
    """
    if served is None or len(served) != len(winner) or not all(isinstance(key, int) for key in served):
        return
    slots = tuple(k for k, key in enumerate(winner) if isinstance(key, int) and served[k] != key)
    if not slots or all(isinstance(key, int) for key in winner) or not first.score.top1 >= WORKS:
        return
    wanted = ", ".join(f"{keys_name([winner[k]])[1:-1]} in slot {k}" for k in slots)
    elsewhere = all(winner[k] in served for k in slots)
    yield fault(
        "slot-permutation" if elsewhere else "wrong-boundary",
        0.9,
        f"The draft reads {wanted}, as the values say, and works with it ({first.score.top1:.1%} with "
        f"{keys_name(winner)}); {subject.served.who} hands over {keys_name(served)} with this config, which is not "
        "that whatever the file's other slots are.",
        "Say what these are with --slots-are, one boundary per slot, and replay again: it gives the line for the config.",
        {"wiring": keys_name(winner), "served": keys_name(served), "top1": first.score.top1},
        slots,
    )


def _paired(first: Scored, second: Scored) -> float:
    return 1 - math.exp(-max(0.0, sigmas(first.hits, second.hits)) / 3)


def _named(winner: Sequence[Key], order: Sequence[Key], declared: Sequence[int | None]) -> tuple[int, ...] | None:
    """The winner as boundaries: where one slot has none, it is the one that the file declares and no other slot is."""
    known = {key for key in order if isinstance(key, int)}
    unknown = [key for key in order if not isinstance(key, int)]
    left = [k for k in declared if k is not None and k not in known]
    names: dict[Key, int] = {key: key for key in winner if isinstance(key, int)}
    if len(unknown) == len(left) == 1 and None not in declared:
        names[unknown[0]] = left[0]
    found = [names.get(key) for key in winner]
    whole = tuple(k for k in found if k is not None)
    return whole if len(whole) == len(found) else None


def _remedy(subject: Subject, named: tuple[int, ...] | None, winner: Sequence[Key], order: Sequence[Key]) -> str:
    """The line for the config where the boundaries are known; else what it is under either reading of the file."""
    served = subject.served.wiring
    if named is not None and named == served:
        return _by_list(winner, named) + (
            f"{subject.served.who} hands over {wiring_name(named)} with this config, which is the order that the draft "
            "reads: the file is the one that holds its slots otherwise; write it again before anything is trained on it."
        )
    if named is not None:
        return _by_list(winner, named) + _named_remedy(subject, named, order)
    known = [k for k, key in enumerate(order) if isinstance(key, int)]
    told = served is not None and len(served) == len(order) and all(order[k] == served[k] for k in known)
    if served is None or not told or set(winner) != set(order):
        return (
            "Say what the file's slots are with --slots-are, one boundary per slot, and replay again: it gives the line "
            "for the config."
        )
    wanted = tuple(served[list(order).index(key)] for key in winner)
    line = wiring_remedy(subject, wanted).rstrip(".")
    return (
        f"If the file's slots are {wiring_name(served)}, as {subject.served.who} hands them over, the draft was trained on "
        f"{wiring_name(wanted)}: {line}. If the file holds them in another order, say which with "
        "--slots-are, one boundary per slot, and replay again."
    )


def _named_remedy(subject: Subject, named: tuple[int, ...], order: Sequence[Key]) -> str:
    """Either the draft reads another order than its file names, or the rows of the file stand under wrong names."""
    theirs = tuple(key for key in order if isinstance(key, int))
    draft = f"{wiring_remedy(subject, named).rstrip('.')}{ids_too(subject, named)}"
    if set(theirs) != set(named) or len(theirs) != len(order):
        return f"{draft}."
    return (
        f"If the file's slots are what it calls them, the draft was trained on {wiring_name(named)}: {draft}. If its rows "
        f"stand under exchanged names (drafttrace reference makes the boundaries to compare them with), the draft was "
        f"trained on {wiring_name(theirs)}: {_served_line(subject, theirs)}, and write the file again."
    )


def _served_line(subject: Subject, wanted: tuple[int, ...]) -> str:
    """What to do so that ``wanted`` is served."""
    if subject.served.wiring == wanted:
        return "the config serves that"
    return wiring_remedy(subject, wanted).rstrip(".")


def ids_too(subject: Subject, wanted: Sequence[int]) -> str:
    """For the end of a remedy that reorders the columns of fc: the ids, where they give other boundaries as well."""
    ascending = tuple(sorted(wanted))
    if subject.reader is None or tuple(wanted) == ascending or subject.served.wiring == ascending:
        return ""
    if subject.reader.ids_for(wanted, subject.target.layers) is not None:
        return ""
    return f"; with the reordered columns the ids must change, too: {wiring_remedy(subject, ascending).rstrip('.')}"


def _by_list(winner: Sequence[Key], named: Sequence[int]) -> str:
    """How a slot without a boundary got one, for the beginning of a remedy."""
    for key, boundary in zip(winner, named, strict=True):
        if not isinstance(key, int):
            return f"With {key} as {wiring_name([boundary])}, which the file lists and no other slot is: "
    return ""
