"""What a training dump says about the wiring, beside what the configs say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from drafttrace.compare.audit.foreign_dumps import foreign_finding
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.checkpoint import Checkpoint
from drafttrace.tracer.embedding_match import Match, match, nearest
from drafttrace.tracer.part_names import EMBED, stored_name
from drafttrace.tracer.row_places import placed, starts

IS_EMBEDDING = "its rows are the target's embedding rows"
NO_EMBEDDING = "declared B0, but its rows are not the target's embedding rows"
_ROWS = 64


def dump_wiring(
    dump: Capture, target: Checkpoint | None, scale: float
) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
    """The boundary of every slot of a dump, and how each is known: by value for the embedding, else as declared.

    A slot is B0 where its rows equal the target's embedding rows of the tokens. A slot that its file declares as B0
    and that is not the embedding becomes None.
    """
    found: list[int | None] = []
    how: list[str] = []
    matches: list[Match | None] = []
    equal: list[bool] = []
    for start in starts(dump):  # rows that are missing may be those of the first tokens
        there = placed(dump, start)
        matches = [_against_embedding(there, k, target, scale) for k in range(len(dump.slots))]
        equal = nearest(matches)
        if any(equal):
            break
    for slot, held, it in zip(dump.slots, matches, equal, strict=True):
        if it:
            found.append(0)
            how.append(IS_EMBEDDING)
        elif slot.boundary == 0 and held is not None and (any(equal) or not held.is_open):
            found.append(None)
            how.append(NO_EMBEDDING)
        else:
            found.append(slot.boundary)
            how.append(slot.source)
    return tuple(found), tuple(how)


def _against_embedding(dump: Capture, k: int, target: Checkpoint | None, scale: float) -> Match | None:
    """How near a slot is to the embedding rows of its tokens; None where it cannot be said."""
    name = stored_name(target, EMBED) if target is not None else None
    known = np.flatnonzero(dump.table.token_id >= 0)
    if target is None or name is None or len(known) == 0:
        return None
    shape, held = target.info(name).shape, dump.slots[k].rows
    rows = known[np.unique(np.linspace(0, len(known) - 1, _ROWS).astype(np.int64))]
    ids = dump.table.token_id[rows]
    if len(shape) != 2 or shape[1] != held.width or int(ids.max()) >= shape[0]:
        return None
    raw, factors = held.take_raw(rows)
    return match(raw, held.dtype, factors, target.floats(name, ids) * np.float32(scale))


def _last_findings(subject: Subject, dump: Capture, by_value: Sequence[int | None]) -> Iterator[Finding]:
    """The dump's last state is a boundary below n: by value where it equals a slot, else as the file declares."""
    last, n = dump.last, subject.target.layers
    if last is None:
        return
    same = next((k for k in range(len(dump.slots)) if _equal(dump, k)), None)
    below = by_value[same] if same is not None else last.boundary
    if below is None or below >= n:
        return
    proof = f"its rows are those of slot {same}" if same is not None else "as the file says"
    yield (fault if same is not None else note)(
        "last-not-last",
        0.97 if same is not None else 0.7,
        f"The dump's last entry '{last.name}' is {wiring_name([below])} ({proof}), not the state after the last layer "
        f"({wiring_name([n])}): training targets made from it are wrong.",
        f"If the trainer computes its targets from this entry, dump {wiring_name([n])} too; if they come from elsewhere, "
        "nothing needs to change.",
        {"boundary": below, "layers": n, "slot": same, "declared": last.boundary},
    )


def _equal(dump: Capture, k: int) -> bool:
    """Whether the last state holds the very rows of slot k."""
    assert dump.last is not None
    one, two = dump.slots[k].rows, dump.last.rows
    count = min(len(one), len(two))
    if count == 0 or one.width != two.width:
        return False
    rows = np.unique(np.linspace(0, count - 1, _ROWS).astype(np.int64))
    held = one.take(rows)
    return bool(held.any() and np.array_equal(held, two.take(rows)))


def dump_findings(
    subject: Subject, dump: Capture, by_value: Sequence[int | None], how: Sequence[str]
) -> Iterator[Finding]:
    """Where a dump contradicts itself, and where its shape contradicts the draft's."""
    foreign = foreign_finding(subject, dump)
    if foreign is not None:
        yield foreign
        return
    for k, slot in enumerate(dump.slots):
        if slot.boundary is not None and slot.boundary != by_value[k] and not dump.assumed_wiring:
            yield note(
                "wrong-boundary",
                0.9,
                f"Slot {k} of the dump is declared {wiring_name([slot.boundary])} ({slot.source}), but by value it is "
                f"{wiring_name([by_value[k]])}: {how[k]}.",
                "Trust the values: the dump was made with other ids than it says.",
                {"declared": slot.boundary, "by_value": by_value[k]},
                (k,),
            )
    if not dump.assumed_wiring:  # else its slots are nobody's words about training
        yield from _contradictions(subject, by_value, how)
    yield from _last_findings(subject, dump, by_value)


def _contradictions(subject: Subject, by_value: Sequence[int | None], how: Sequence[str]) -> Iterator[Finding]:
    """Where the rows of a dump contradict ``--trained``, and the server where the dump's wiring is known in part only."""
    yield from _trained_otherwise(subject, by_value, how)
    served = subject.served.wiring
    if subject.trained is not None or served is None or len(served) != len(by_value):
        return
    wrong = tuple(
        k
        for k, said in enumerate(how)
        if (said == IS_EMBEDDING and served[k] != 0) or (said == NO_EMBEDDING and served[k] == 0)
    )
    if not wrong:
        return
    k = wrong[0]
    holds = f"holds the target's embedding rows, B0, and {subject.served.who} serves B{served[k]} there"
    if served[k] == 0:
        holds = f"does not hold the target's embedding rows, and {subject.served.who} serves B0 there"
    yield fault(
        "wrong-boundary",
        0.95,
        f"Slot {k} of the dump {holds}: that is known by value, whatever the dump declares "
        f"({wiring_name(by_value)} is left of it).",
        "drafttrace replay --search finds the boundary of every slot by value; then drafttrace check --trained gives the "
        "line to write.",
        {"by_value": list(by_value), "served": list(served), "how": list(how)},
        wrong,
    )


def _trained_otherwise(subject: Subject, by_value: Sequence[int | None], how: Sequence[str]) -> Iterator[Finding]:
    """``--trained`` and ``--dump`` name different boundaries."""
    trained = subject.trained
    if trained is None or subject.by_value is not None or len(trained) != len(by_value):
        return
    apart = tuple(k for k, b in enumerate(by_value) if b is not None and b != trained[k])
    apart += tuple(k for k in disputed_slots(trained, how) if k not in apart)
    if not apart:
        return
    proven = disputed_slots(trained, how)
    tail = "as the dump declares them; drafttrace replay --search would tell which is right"
    if proven:
        slots = " and ".join(str(k) for k in proven)
        tail = f"and slot {slots} {'are' if len(proven) > 1 else 'is'} known by value, from the target's embedding rows"
    yield (fault if proven else note)(
        "wrong-boundary",
        0.97 if proven else 0.5,
        f"--trained says {wiring_name(trained)}, the dump says {wiring_name(by_value)}, {tail}.",
        "Drop --trained, so that the dump decides, or give the dump that training read; --fix writes no wiring until then."
        if proven
        else "Drop the one that is wrong: --dump alone takes what the dump declares.",
        {"trained": list(trained), "dump": list(by_value), "how": list(how)},
        tuple(sorted(apart)),
    )


def disputed_slots(trained: Sequence[int], how: Sequence[str]) -> tuple[int, ...]:
    """Slots of which the rows of a dump prove that ``trained`` names another boundary."""
    pairs = enumerate(zip(trained, how, strict=False))
    return tuple(
        k for k, (b, said) in pairs if (said == IS_EMBEDDING and b != 0) or (said == NO_EMBEDDING and b == 0)
    )
