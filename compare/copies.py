"""Everything about rows that stand where another row belongs: looked for in one capture, in others, in the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from drafttrace.compare.facts import CopyFacts, PartFacts, RowFacts
from drafttrace.compare.judge import MATCH
from drafttrace.compare.locate import Distance
from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.padding import find_leaks
from drafttrace.compare.repeats import find_borrowed, find_repeats
from drafttrace.compare.result import SlotResult
from drafttrace.compare.right_repeats import Compared, right_left_out, without_start
from drafttrace.compare.rowblocks import RowMap
from drafttrace.compare.rowmap import find_row_map
from drafttrace.compare.same_token import NO_COPIES, SameToken
from drafttrace.tracer.capture import Capture, Ints


def look_for_copies(
    left: Capture,
    reference: Capture | None,
    others: Sequence[Capture],
    maps: Sequence[RowMap] = (),
    odd: Sequence[RowFacts] = (),
    same: SameToken = NO_COPIES,
    compared: Compared | None = None,
) -> CopyFacts:
    """The facts. others: traces of other requests. maps, odd, same, compared: of the slots, where they were compared."""
    wanted = {rows.slot: rows.odd_rows for rows in odd if rows.odd_rows}
    ours = without_start(find_repeats(left), left)
    theirs = without_start(find_repeats(reference), reference) if reference is not None else ()
    if compared is not None:
        ours, theirs = right_left_out(ours, theirs, compared)
    return CopyFacts(
        left=(*ours, *same.left),
        reference=(*theirs, *same.reference),
        borrowed=find_borrowed(left, others, wanted),
        maps=tuple(maps),
        leaks=find_leaks(left),
    )


def row_maps(
    left: Capture,
    measured: Iterable[MeasuredSlot],
    judged: Iterable[SlotResult],
    cross: Mapping[str, Mapping[str, Distance]],
    near: float,
    parts: Iterable[PartFacts] = (),
) -> tuple[RowMap, ...]:
    """Which rows of the reference the deviating rows of every slot are, for the slots that have some.

    cross: distances by left and reference name. A slot that is nearer than ``near`` to another state of the reference,
    row by row, has its rows in their places; looking for them would read the whole pass again. parts: the rows of a slot
    that differ while the others do not, looked for among all of its rows where they are not known otherwise.
    """
    wanted: dict[int, list[Ints]] = {}
    for part in parts:
        known = part.left.explanation or part.reference.explanation or part.left.boundary != part.reference.boundary
        if not known:
            wanted.setdefault(part.slot, []).append(part.left_rows)
    verdicts = {slot.slot: slot for slot in judged}

    def is_another(slot: MeasuredSlot) -> bool:
        line = cross.get(slot.left.name, {})
        return any(name != slot.reference.name and found.rel_l2 < near for name, found in line.items())

    maps = [
        find_row_map(slot, left, rank_count(left), wanted.get(slot.index, ()))
        for slot in measured
        if slot.index >= 0
        and (verdicts[slot.index].verdict != MATCH or verdicts[slot.index].outlier_rows)
        and not is_another(slot)
    ]
    return tuple(found for found in maps if found is not None)


def rank_count(trace: Capture) -> int:
    """Ranks of the server that recorded a trace, 0 where it does not say."""
    arguments = trace.about.get("server_args")
    if not isinstance(arguments, Mapping):
        return 0
    found = arguments.get("tp_size")
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
