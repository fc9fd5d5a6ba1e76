"""What a measurement is judged against. Kept apart from the measurements, so that a saved result can be judged again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drafttrace.tracer.errors import DrafttraceError


@dataclass(frozen=True)
class Thresholds:
    """Limits on relative L2 distances (medians over rows) and on what counts as a fit.

    match: at or below it a slot matches when nothing better is known (served bf16 against transformers bf16
    lies below 0.032: bench/noise.json). noise: above ``match`` and at or below it, an unstructured difference
    is called noise; never more than that. neighbour_match / neighbour_noise: the same two as parts of the
    distance to the nearest neighbouring boundary, where that was measured. blind_noise: in place of it where it
    was not: a neighbouring boundary may be that near. Of all limits that apply the smallest counts.
    noise_match / noise_limit: multiples of a recorded noise floor, which replace ``match`` and ``noise``, but never by less
    than ``floor_match`` and ``blind_noise`` nor by more than ``noise``: two recordings of one implementation are often
    equal bit for bit, which says nothing of another one (served bf16 against transformers bf16 reaches 0.0314:
    bench/noise.json), and a floor above ``noise`` would hide a fault. Where a
    neighbouring boundary asks for less than the recorded floor (its 99th percentile), the floor is the limit all the same.
    Nor do they ask for less than three times what rounding leaves of two healthy runs there: see compare/rounding.py.
    narrow: in place of ``noise``, ``blind_noise`` and what neighbouring boundaries ask for, where the compared rows are a
    few ones repeated (a prompt of one token): their rounding is one number that all of them share, and reaches 0.32 on a
    real model.
    located: a boundary is the right one when its distance is below this part of the second best. scale: a fitted
    factor further from 1 than this is a fault. row / row_cosine: one row that is further off than ``row`` and has a
    cosine below ``row_cosine`` holds something else; so does one whose cosine without massive channels alone is below
    row_hidden (a router that sent one token elsewhere stays above); so does one further off than row_far, whatever
    its cosine. part: the share of a slot's rows beyond the noise limit from which on two of them or more make a mismatch
    though the median is right (fewer do where they are a whole phase, lie side by side, or stand at even distances; a
    single row, and rows below that share, are told in a note with their positions): of 79
    boundaries of the tiny pairs, served against transformers and bf16 against float32, at most 0.8 % of a healthy
    slot's rows lie beyond it. accept: a mean accept length below it is too low where no expected one is known (a
    healthy draft reaches 1.2 on text unlike its training), accept_part: one whose drafted part is below this part of
    the expected.
    """

    match: float = 0.05
    noise: float = 0.25
    neighbour_match: float = 0.5
    neighbour_noise: float = 0.6
    blind_noise: float = 0.07
    noise_match: float = 2.0
    noise_limit: float = 4.0
    floor_match: float = 0.035
    narrow: float = 0.5
    located: float = 0.6
    scale: float = 0.01
    row: float = 0.5
    row_cosine: float = 0.85
    row_hidden: float = 0.5
    row_far: float = 1.0
    part: float = 0.05
    accept: float = 1.15
    accept_part: float = 0.6

    def replaced(self, settings: Sequence[str]) -> Thresholds:
        """These thresholds with ``name=value`` settings applied, as ``--threshold`` gives them."""
        names = [field.name for field in dataclasses.fields(self)]
        changes: dict[str, float] = {}
        for setting in settings:
            name, sign, text = setting.partition("=")
            name = name.strip()
            if not sign:
                raise DrafttraceError(f"The threshold '{setting}' is not NAME=NUMBER; give one like match=0.05.")
            if name not in names:
                raise DrafttraceError(
                    f"There is no threshold '{name}' ('{setting}'); choose out of {', '.join(names)}."
                )
            changes[name] = _bound(setting, text)
        return dataclasses.replace(self, **changes)


def _bound(setting: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise DrafttraceError(
            f"The threshold '{setting}' is not NAME=NUMBER: '{text.strip()}' is no number; give one like 0.05."
        ) from None
    if not 0 <= value < float("inf"):
        raise DrafttraceError(
            f"The threshold '{setting}' is out of range; give a number of 0 or more that is finite."
        )
    return value


DEFAULT = Thresholds()


def parse_thresholds(settings: Sequence[str]) -> Thresholds:
    """The default thresholds with the ``--threshold`` settings applied."""
    return DEFAULT.replaced(settings)


@dataclass(frozen=True)
class Noise:
    """The noise floor of a recorded self-comparison: relative L2 per slot, median and 99th percentile over rows. others:
    the same two of the last state (-1) and the embedding (-2), where they were recorded."""

    source: str
    rel_l2: tuple[float, ...]
    rel_l2_p99: tuple[float, ...]
    others: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def of_slot(self, slot: int) -> tuple[float, float] | None:
        """(median, p99) of one slot, or of another state; None where the recording lacks it."""
        if 0 <= slot < len(self.rel_l2):
            return self.rel_l2[slot], self.rel_l2_p99[slot]
        return self.others.get(slot)


BLURRED = ": the floor reaches so near to it that it does not tell the two apart"
"""What ``Limits.against`` says where a recorded noise floor is the limit, whatever the neighbouring boundary asks for."""
ROUNDED = ": rounding alone reaches that far, so that the two are not told apart"
"""The same where it is what number formats and layers lose."""
NARROW = ", of rows that repeat each other and tell no boundaries apart"
"""What ``Limits.against`` says of a prompt that repeats a few tokens."""
REACHED = 3.0
"""Times what rounding is expected to leave (compare/rounding.py): no healthy run is further off."""


@dataclass(frozen=True)
class Limits:
    """The two limits that one slot was judged against, and in words where they come from."""

    match: float
    noise: float
    against: str

    @property
    def narrow(self) -> bool:
        """Whether the rows repeat each other, so that a few of them that are further off are no part of the slot."""
        return self.against.endswith(NARROW)


def slot_limits(
    thresholds: Thresholds,
    noise: tuple[float, float] | None,
    neighbour: float | None,
    rounding: float = 0.0,
    narrow: bool = False,
) -> Limits:
    """Limits for one slot.

    noise: (median, p99) of a recorded noise floor: it moves the limits within bounds, see ``floor_match``. neighbour:
    relative L2 from the reference's boundary to its nearest neighbour. rounding: what the coarser of the two number
    formats loses in all layers up to it. narrow: the rows repeat each other.

    What differs by no more than the recorded floor is no fault, though a neighbouring boundary may be as near: then the
    floor is the limit, and ``against`` says that it does not tell the two apart.
    """
    match, most, why = thresholds.match, thresholds.noise, "the default limits"
    if noise is not None:
        match = max(thresholds.noise_match * noise[0], 2 * rounding, thresholds.floor_match)
        most = max(thresholds.noise_limit * noise[0], noise[1], thresholds.blind_noise, match)
        why = _floor_told(thresholds, noise[0], match, most)
        most = min(most, max(thresholds.noise, thresholds.floor_match))
        match = min(match, most)
    if narrow:
        return Limits(match, max(match, most, thresholds.narrow), why + NARROW)
    if neighbour is not None and neighbour > 0:
        match = min(match, thresholds.neighbour_match * neighbour)
        most = min(most, thresholds.neighbour_noise * neighbour)
        why += f", and the neighbouring boundary at {neighbour:.2g}"
        floor = min(max(v for v in (*noise, 0.0) if v == v), thresholds.noise) if noise is not None else 0.0
        if most < floor:
            most = floor
            why += BLURRED
        rounded = min(REACHED * rounding, thresholds.noise)
        if most < rounded:
            most, match = rounded, max(match, min(2 * rounding, thresholds.match))
            why += ROUNDED
    elif noise is None:
        most = min(most, thresholds.blind_noise)
        why += ", no neighbouring boundary measured"
    return Limits(match, max(match, most), why)


def _floor_told(thresholds: Thresholds, floor: float, match: float, most: float) -> str:
    """A recorded noise floor, and what bounded the limits that it would have set."""
    told = f"a recorded noise floor of {floor:.2g}"
    if floor == 0:
        told += " (the two recordings are equal bit for bit, which says nothing of another implementation)"
    if thresholds.noise_match * floor < match:
        told += f", below which two implementations may differ: not under {match:.2g}/{thresholds.blind_noise:.2g}"
    if most > thresholds.noise:
        told += f", no more than the default {thresholds.noise:.2g}"
    return told
