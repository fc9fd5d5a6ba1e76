"""Everything that was measured about a pair of captures: what the findings reason from. No tensor is in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.broken import BrokenTap
from drafttrace.compare.grids import Grid
from drafttrace.compare.hypotheses import Doubles, Fit
from drafttrace.compare.inside import InsideFacts
from drafttrace.compare.locate import Distance, Located
from drafttrace.compare.masks import MaskShift
from drafttrace.compare.padding import Leak
from drafttrace.compare.ranks import RankFacts
from drafttrace.compare.repeats import Borrowed, Repeat
from drafttrace.compare.result import Acceptance, RowPart, SlotResult
from drafttrace.compare.rope_facts import RopeTrial
from drafttrace.compare.rowblocks import RowMap
from drafttrace.compare.thresholds import Noise, Thresholds
from drafttrace.compare.wiring import Reading
from drafttrace.tracer.capture import Capture, Ints

VALUE, DECLARED = "value", "declared"


@dataclass(frozen=True)
class Explanation:
    """A slot of one side that is a known function of a state it should have been. target: name; boundary or None."""

    fit: Fit
    target: str
    boundary: int | None
    identity_residual: float


@dataclass(frozen=True)
class StreamFacts:
    """What one slot (index >= 0) or the last state (index -1) of one side is.

    boundary and by ("value" or "declared") say where it stands; explanation is set where it stands there only after
    a transformation. broken: most of its rows are zero or not finite.
    """

    side: str
    index: int
    name: str
    declared: int | None
    boundary: int | None
    by: str | None
    located: Located | None
    explanation: Explanation | None
    broken: bool = False


@dataclass(frozen=True)
class RowFacts:
    """Rows of one slot that hold something else, by position.

    odd_rows: the outliers as numbers of rows of the left table, those that are zero or not finite left out. good_rows:
    the compared rows that are no outliers.
    """

    slot: int
    outliers: tuple[int, ...]
    zero_left: tuple[int, ...]
    zero_reference: tuple[int, ...]
    nan_left: tuple[int, ...]
    nan_reference: tuple[int, ...]
    odd_rows: tuple[int, ...] = ()
    good_rows: Ints = field(default_factory=lambda: np.empty(0, np.int64), compare=False)


@dataclass(frozen=True)
class PartFacts:
    """Rows of one slot that differ while its others do not, and what they are on each side.

    left, reference: as for a whole slot, from these rows alone. is_left, is_reference: the slot of the other side whose
    rows they are, though it is not their own. positions, left_rows: ``[m]``. own: the slot is wrong as a whole, and these
    rows are not even what its others are: the sides are then one side's slot and the boundary that its others hold.
    beyond: the name of the fit that explains all rows of the slot, and was taken out before these were looked at.
    odd_side: "left" or "reference" where the rows are unlike those beside them on that side alone. swept: how many of the
    rows the sweep holds that they were placed by, 0 where none was.
    """

    slot: int
    part: RowPart
    left: StreamFacts
    reference: StreamFacts
    is_left: int | None
    is_reference: int | None
    positions: Ints = field(compare=False)
    left_rows: Ints = field(compare=False)
    own: bool = False
    beyond: str | None = None
    odd_side: str | None = None
    swept: int = 0


@dataclass(frozen=True)
class SingleRow:
    """One row that is known by itself. kind: what it is (scale, position, slot, boundary, bytes, zeroed,
    constant). side: the one whose row it is, None where the row does not tell. left_over: relative L2 that this leaves.
    value: the factor, position, slot, boundary, or number of channels. more: words for a kind that needs some."""

    position: int
    kind: str
    side: str | None
    left_over: float
    value: float | int | None
    more: str


@dataclass(frozen=True)
class SingleFacts:
    """Rows of a slot that differ, too few to be looked at together. rest: positions of those that nothing explains, where
    nobody else tells of them. rel_l2: by position. own: the slot is wrong as a whole, and these rows beside that."""

    slot: int
    rows: tuple[SingleRow, ...]
    rest: tuple[int, ...]
    rel_l2: Mapping[int, float]
    compared: int
    limit: float
    own: bool


@dataclass(frozen=True)
class CopyFacts:
    """Rows that stand where another row belongs.

    left, reference: equal rows of one side (see :class:`Repeat`). borrowed: rows of the left side that stand in another
    request's trace. maps: slots whose rows are the reference's of other positions. leaks: rows of the left side that hold
    a padding row of their own pass.
    """

    left: tuple[Repeat, ...] = ()
    reference: tuple[Repeat, ...] = ()
    borrowed: tuple[Borrowed, ...] = ()
    maps: tuple[RowMap, ...] = ()
    leaks: tuple[Leak, ...] = ()

    @property
    def slots(self) -> frozenset[int]:
        """The slots in which something was found."""
        repeats = frozenset(one.slot for one in (*self.left, *self.reference))
        leaks = {one.slot for one in self.leaks if one.slot is not None}
        return repeats | {one.slot for one in self.borrowed} | {one.slot for one in self.maps} | leaks

    def positions(self, slot: int) -> frozenset[int] | None:
        """The positions of the rows of a slot in which something was found; None where not all of them are known."""
        repeats = [one for one in (*self.left, *self.reference) if one.slot == slot]
        if any(one.slot == slot for one in self.maps) or any(one.count > len(one.rows) for one in repeats):
            return None
        found = {row.position for one in repeats for row in one.rows}
        found |= {one.row.position for one in self.borrowed if one.slot == slot}
        return frozenset(found | {row.position for one in self.leaks if one.slot == slot for row in one.rows})


@dataclass(frozen=True)
class Facts:
    """All facts. ``reading`` compares the wirings as integers; ``reading_by`` says what they rest on.

    atlas: "left" or "reference" where that side's layer sweep located the slots, None where there is no sweep.
    cross: left stream name -> reference stream name -> distance. norm_weight: the final norm's weight ``[H]`` as the
    left side's rows before and after it show it, None where they do not. norm_weights: the norm weights of the served
    models by name, read where a fitted gain asks for them. rope: the draft replayed with the target's rope base, where its
    config gives another one and the slots are right. rows, other_rows: of the slots, and of the embedding and
    the last state. parts: rows of slots that differ while the others do not. singles: rows that are
    too few for that. grids: number formats of slots coarser than bf16. broken_reference: taps of the reference with
    rows that can be no state; of the left side ``inside`` tells.
    """

    left: Capture
    reference: Capture | None
    alignment: Alignment | None
    thresholds: Thresholds
    noise: Noise | None
    slots: tuple[SlotResult, ...]
    others: tuple[SlotResult, ...]
    left_streams: tuple[StreamFacts, ...]
    reference_streams: tuple[StreamFacts, ...]
    reading: Reading | None
    reading_by: str | None
    left_wiring: tuple[int | None, ...]
    reference_wiring: tuple[int | None, ...]
    tail: int | None
    atlas: str | None
    cross: Mapping[str, Mapping[str, Distance]]
    norm_weight: Doubles | None
    norm_weights: Mapping[str, Doubles]
    rows: tuple[RowFacts, ...]
    other_rows: tuple[RowFacts, ...]
    copies: CopyFacts
    masks: tuple[MaskShift, ...]
    inside: InsideFacts
    ranks: RankFacts
    acceptance: Acceptance
    rope: RopeTrial | None
    decode: Callable[[int], str] | None
    parts: tuple[PartFacts, ...] = ()
    singles: tuple[SingleFacts, ...] = ()
    grids: tuple[Grid, ...] = ()
    broken_reference: tuple[BrokenTap, ...] = ()

    @property
    def layers(self) -> int | None:
        """Number of decoder layers n of the target, where anything says so."""
        return layers_of(self.left, self.reference)

    @property
    def wiring_block(self) -> Mapping[str, object]:
        """The trace's record of how the server got its wiring; empty where there is none."""
        wiring = self.left.about.get("wiring")
        return wiring if isinstance(wiring, Mapping) else {}

    @property
    def moved(self) -> bool:
        """Whether the rows of the sides were paired at another offset than their ids say."""
        return self.alignment is not None and self.alignment.shift != 0

    def mismatching(self) -> tuple[int, ...]:
        """Slots whose level is a mismatch or at least noise without a match."""
        return tuple(s.slot for s in self.slots if s.verdict == "mismatch")


def layers_of(left: Capture, reference: Capture | None) -> int | None:
    """Number of decoder layers n of the target, by a trace's wiring block or a target config; None if nothing says so."""
    for capture in (left, reference):
        wiring = capture.about.get("wiring") if capture is not None else None
        if isinstance(wiring, Mapping) and isinstance(wiring.get("n"), int):
            return int(wiring["n"])
    for capture in (left, reference):
        config = capture.about.get("target_config") if capture is not None else None
        if isinstance(config, Mapping):
            text = config.get("text_config")
            nested = text.get("num_hidden_layers") if isinstance(text, Mapping) else None
            found = config.get("num_hidden_layers", nested)
            if isinstance(found, int):
                return found
    return None
