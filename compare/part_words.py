"""How findings and reports call a part of a slot's rows, and the numbers that slots and parts are told by."""

from __future__ import annotations

from collections.abc import Sequence

from drafttrace.compare.result import RowPart, SlotResult


def part_name(part: RowPart) -> str:
    """``36 of 36 verify rows (positions 40 to 75)``, ``20 rows at positions 5 to 24``, ``every 4th row from ...``."""
    ends = f"{part.first} to {part.last}" if part.last != part.first else f"{part.first}"
    if part.kind == "phase":
        count = f"all {part.of}" if part.rows == part.of else f"{part.rows} of {part.of}"
        if " " in part.phase:  # the rows of a verify pass, by who chose their token
            return f"{count} verify rows of {part.phase} (positions {ends})"
        return f"{count} {part.phase.replace('_', ' ')} rows (positions {ends})"
    if part.kind == "run":
        few = "" if part.rows == part.of else f" of {part.of}"
        return f"{part.rows}{few} rows at positions {ends}"
    if part.kind == "every":
        return f"every {_ordinal(part.step)} row from position {part.first} to {part.last} ({part.rows} rows)"
    return f"{part.rows} of {part.of} rows spread over positions {ends}"


def part_level(part: RowPart) -> str:
    """The numbers that a part is told by, each beside what it is held against."""
    against = f"limit {part.limit:.3g}"
    if part.kind == "spread" and part.level != "odd":
        against += f" for at most {part.share_limit:.0%} of the rows"
    return f"median relative L2 {part.rel_l2:.3g}, {against}; the other rows {part.others_rel_l2:.3g}"


def part_levels(parts: Sequence[RowPart]) -> str:
    """As :func:`part_level`; for the parts of several slots the range of each number, which JSON tells slot by slot."""
    if len(parts) == 1:
        return part_level(parts[0])
    names = ("rel_l2", "limit", "others_rel_l2")
    own, limit, others = (_range([getattr(part, name) for part in parts]) for name in names)
    return f"median relative L2 {own}, limits {limit}; the other rows {others}"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def levels_of(slots: Sequence[SlotResult]) -> str:
    """``median relative L2 0.3, limit 0.25``; for several slots each one's."""
    levels = [f"{slot.rel_l2.p50:.3g}, limit {slot.judged.noise_limit:.3g}" for slot in slots]
    if len(levels) == 1:
        return f"median relative L2 {levels[0]}"
    each = "; ".join(f"slot {slot.slot}: {level}" for slot, level in zip(slots, levels, strict=True))
    return f"median relative L2 of {each}"


def _ordinal(number: int) -> str:
    tail = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tail}"


PHASE_HINTS = {
    "accepted draft tokens": "Only the rows that the draft had guessed are wrong: look at what gathers the accepted rows "
    "of a verify pass (strides, accept lengths).",
    "tokens that the target chose": "Only the first row of every verify pass is wrong: look at what the pass does with the "
    "token that the target chose the round before.",
    "verify": "Only the verify pass is wrong: record once with --disable-cuda-graph, and look at what the target's verify "
    "pass captures otherwise than its prefill.",
    "prefill": "Only the prefill is wrong: record once with --disable-cuda-graph and once with --chunked-prefill-size -1, "
    "and look at what the prefill captures otherwise than the verify pass.",
}


def part_hint(part: RowPart) -> str:
    """Where to look, by which rows they are."""
    if part.kind == "phase":
        return PHASE_HINTS.get(
            part.phase, f"Only the rows of {part.phase.replace('_', ' ')} are wrong: look at that pass."
        )
    if part.kind == "run":
        return (
            f"Only these rows are wrong: look at what begins at position {part.first} and ends behind {part.last}: a chunk "
            "of the prefill (--chunked-prefill-size), a cached prefix, or a picture."
        )
    if part.kind == "every":
        return f"Look at what handles rows in blocks of {part.step}: ranks, pages of the cache, or a kernel's tile."
    return "Look at what these rows have in common: the same round or batch, ranks, or tokens of one kind."


ONLY_HERE = {
    "scale": "A multiplier is applied in these rows alone, or is left out there.",
    "norm-extra": "A norm is applied on one side in these rows alone: look for a second code path with its own norm.",
    "norm-missing": "A norm is left out on one side in these rows alone: look for a second code path without it.",
    "norm-gain": "These rows are multiplied by other factors per channel: look for a second code path with its own norm.",
    "rotation": "These rows alone are in another basis: look for a rotation (QuaRot) that one code path leaves out.",
    "zero-rows": "A part of these rows was never filled: a shard that was not gathered, or a copy that is too narrow.",
    "dtype-reinterpretation": "Where these rows are written or read, a buffer was viewed in the other 16-bit format, not "
    "converted.",
    "residual-missing": "In these rows alone the residual was not added: look for a second code path that hands over the "
    "layer's output without it.",
}


def part_remedy(name: str, part: RowPart) -> str:
    """Where to look for a cause that holds in some rows only: what puts a whole slot right does not put them right."""
    return f"{part_hint(part)} {ONLY_HERE.get(name, '')}".strip()
