"""A capture cut down to one row per token, and what a layout cannot hold of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drafttrace.tracer.boundary import boundary_name, canonical_wiring, wiring_name
from drafttrace.tracer.capture import Accepted, Capture, Ints, Norm, Phase
from drafttrace.tracer.convert_norm import normed_by
from drafttrace.tracer.convert_recording import Recording, is_trace, read_recording
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.tensor import Array
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import Rows

BLOCK = 256


class LaterRows(DrafttraceError):
    """A dump of one forward pass whose rows begin after token 0: a decode step, or the rest after a cached prefix.

    what: the sentence without its remedy. first: the position of its first row. rows: how many are of the text.
    drafted: how many besides are of drafted tokens, in a verify pass.
    """

    what = ""
    first = 0
    rows = 0
    drafted = 0


@dataclass
class Told:
    """What became known of a sample while its layout was held against it.

    given_up: what is lost of it by ``lose``, each once. equal: whether two of its states are, by the ids of their rows.
    """

    given_up: dict[str, None] = dataclasses.field(default_factory=dict)
    equal: dict[tuple[int, int], bool] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One row per token: ``index[t]`` is the row of token t. layers: n where it is known.

    tokens: of the rows. all_tokens: also those after them that have no row, without padding. recording: the rest of a
    trace, None for a dump.
    """

    capture: Capture
    recording: Recording | None
    index: Ints
    tokens: Ints
    all_tokens: Ints
    mask: Ints | None
    layers: int | None
    lose: frozenset[str]
    target: Path | None
    told: Told = dataclasses.field(default_factory=lambda: Told())

    def __len__(self) -> int:
        return len(self.index)


# --- one row per token ---------------------------------------------------------------------------------------


def one_row_per_token(
    capture: Capture, request: Request, lose: frozenset[str], target: Path | None, layout: str
) -> Sample:
    """Cut ``capture`` down for ``layout``. Raises DrafttraceError where a token has no row, or no state of a slot."""
    table = capture.table
    target_phase = np.isin(table.phase, (Phase.PREFILL, Phase.VERIFY, Phase.DECODE))
    sure = table.accepted == Accepted.ACCEPTED
    likely = (table.accepted == Accepted.UNKNOWN) & np.isin(table.phase, (Phase.PREFILL, Phase.DECODE))
    rows = np.flatnonzero(target_phase & (sure | likely) & (table.position >= 0))
    rows = rows[table.position[rows] < (capture.valid_length or len(capture.tokens))]
    if len(rows) == 0:
        raise DrafttraceError(
            f"'{capture.path}' has no rows of accepted tokens, so there is nothing to convert; record a longer request."
        )
    last = int(table.position[rows].max())
    index = np.full(last + 1, -1, np.int64)
    index[table.position[rows]] = rows
    missing = np.flatnonzero(index < 0)
    if len(missing):
        if not is_trace(capture) and len(missing) == int(missing[-1]) + 1:
            raise _later_rows(capture, len(missing), last)
        raise DrafttraceError(
            f"'{capture.path}' has no row for token {int(missing[0])} ({len(missing)} of {last + 1} are missing, as after "
            "a prefix-cache hit), and a training dump needs one for every token; record it again with a cold cache."
        )
    for slot in capture.slots:
        if gaps(capture, slot.name, index) and layout != "trace":
            raise DrafttraceError(f"'{capture.path}' lacks {slot.name} for some tokens; record it again.")
    mask, told = capture.mask, Told()
    tokens = capture.tokens[: last + 1]
    if (tokens < 0).any() and "first-token" not in lose:
        raise DrafttraceError(
            f"'{capture.path}' does not keep token {int(np.flatnonzero(tokens < 0)[0])}; write 0 in its place with "
            "--lose first-token."
        )
    if unknown := int((tokens < 0).sum()):
        told.given_up[f"{unknown} unknown token ids, with 0 in their place"] = None
    tokens = np.where(tokens < 0, 0, tokens)
    every = np.concatenate([tokens, capture.tokens[last + 1 : capture.valid_length or None]])
    if mask is not None:
        mask = np.concatenate([mask, np.zeros(max(0, last + 1 - len(mask)), np.int64)])[: last + 1]
    layers = request.layers if request.layers is not None else capture.about.get("target_layers")
    if layers is None and capture.last is not None and is_trace(capture):
        wiring = capture.about.get("wiring")
        layers = wiring.get("n") if isinstance(wiring, dict) else None
    return Sample(
        capture,
        read_recording(capture),
        index,
        tokens,
        every,
        mask,
        layers if type(layers) is int else None,
        lose,
        target,
        told,
    )


def _later_rows(capture: Capture, first: int, last: int) -> LaterRows:
    drafted = int(((capture.table.phase == Phase.VERIFY) & (capture.table.accepted == Accepted.UNKNOWN)).sum())
    if drafted:
        rows = "1 row" if drafted == 1 else f"{drafted} rows"
        what = (
            f"a verify pass: the row of token {first}, and {rows} of drafted tokens, which may have been rejected"
        )
    elif first == last:
        what = f"one row, of token {first}, as a decode step has: the rows before it are in earlier passes"
    else:
        what = (
            f"rows from token {first} to {last} alone, as after a prefix-cache hit: those before it are in no row"
        )
    what = f"'{capture.path}' holds {what}, and a training dump needs a row for every token"
    error = LaterRows(f"{what}; convert the prefill of the request, or record it again with a cold cache.")
    error.what, error.first, error.rows, error.drafted = what, first, last - first + 1, drafted
    return error


def gaps(capture: Capture, name: str, index: Ints) -> bool:
    """Whether the state ``name`` ("aux/0", "embed", "last") was not recorded for some of the rows ``index``."""
    return name in capture.present and not capture.present[name][index].all()


def covered(source: Sample, k: int) -> int:
    """How many tokens, from the first one on, have a row of boundary ``k``: a sweep may cover only the first rows."""
    beyond = np.flatnonzero(source.index >= len(source.capture.boundaries[k]))
    return int(beyond[0]) if len(beyond) else len(source)


def blocks(source: Sample, rows: Rows) -> Iterator[tuple[int, int, Array]]:
    """``(start, stop, raw)`` blocks of one state in token order; scaled fp8 as float32."""
    for start in range(0, len(source), BLOCK):
        index = source.index[start : start + BLOCK]
        low, high = int(index.min()), int(index.max()) + 1
        scaled = rows.scale(low, low + 1) is not None
        block: Array = rows.floats(low, high) if scaled else rows.raw(low, high)
        yield start, start + len(index), block[index - low]


def kind_of(rows: Rows) -> str:
    return "fp32" if len(rows) and rows.scale(0, 1) is not None else rows.dtype.value


def one_kind(source: Sample, parts: Sequence[Rows]) -> str:
    kinds = {kind_of(part) for part in parts}
    if len(kinds) != 1:
        raise DrafttraceError(
            f"The states of '{source.capture.path}' have the number formats {', '.join(sorted(kinds))}, and a stacked "
            f"layout holds one; {each_by_itself(source)}."
        )
    return kinds.pop()


# --- what a layout cannot hold -------------------------------------------------------------------------------


def inside(layout: str) -> str:
    """The name of a layout, which begins a sentence, in the middle of one."""
    return layout[0].lower() + layout[1:]


def each_by_itself(source: Sample) -> str:
    """The remedy where states are no stack: speculators v1 stores each as a tensor of its own, and needs a mask."""
    return "choose --to speculators-v1" + (" with --mask-ones" if source.mask is None else "")


def refuse(source: Sample, loss: str, layout: str, why: str, what: str) -> None:
    """Raise DrafttraceError where ``loss`` is not given up; else remember ``what`` is gone, for the answer."""
    if loss not in source.lose:
        raise DrafttraceError(f"{layout} cannot hold the {loss.replace('-', ' ')} of '{source.capture.path}': {why}; "
                              f"give it up with --lose {loss}.")  # fmt: skip
    give_up(source, what)


def give_up(source: Sample, what: str) -> None:
    """Remember what is gone of a sample because the user said so."""
    source.told.given_up[what] = None


def layer_ids_of(source: Sample) -> str:
    """The layer ids of a sample, as something that is given up."""
    capture = source.capture
    known = [k for k in capture.wiring if k is not None]
    last = capture.last.boundary if capture.last is not None else None
    said = [f"the wiring {wiring_name(known)}"] if known else []
    said += [f"the last state {boundary_name(last)}"] if last is not None else []
    return f"the layer ids ({', '.join(said)})" if said else "the layer ids"


def refuse_other_fields(source: Sample, layout: str) -> None:
    """Raise DrafttraceError where a dump's sample holds tensors that are no part of a capture, such as logits."""
    unread = source.capture.unread
    tensors = [f"{name} ({told})" for name, told in unread.items() if told]
    if tensors and "other-fields" not in source.lose:
        raise DrafttraceError(
            f"The layout {layout} cannot hold what '{source.capture.path}' has besides tokens, states and mask: "
            f"{', '.join(tensors)}; give it up with --lose other-fields."
        )
    for tensor in tensors:
        give_up(source, f"the field {tensor}")
    if plain := [name for name, told in unread.items() if not told]:
        give_up(source, f"the {'field' if len(plain) == 1 else 'fields'} {', '.join(plain)}")


def need_slots(source: Sample, layout: str) -> None:
    if not source.capture.slots:
        raise DrafttraceError(
            f"'{source.capture.path}' has no slots, and {inside(layout)} needs them; choose another layout, such as "
            "--to trace."
        )


# What a layout without layer ids means, as readers write it of a file that records none.
CURRENT_DEFAULTS = ("B{2, n//2, n-3}", "O{1, n//2-1, n-4}")
V1_DEFAULTS = ("B{3, n//2+1, n-2}",)


def refuse_unrecorded(source: Sample, layout: str, defaults: Sequence[str]) -> None:
    """For a dump that records no layer ids: where none are written, the layout must mean the same as the dump.

    defaults: what ``layout`` means, in the words of the readers.
    """
    capture = source.capture
    if not capture.slots or any(k is not None for k in capture.wiring):
        return
    if all(any(rule in slot.source for rule in defaults) for slot in capture.slots):
        return
    say = "" if is_trace(capture) else f", or say them with {ids_option(source)}"
    why = f"'{capture.path}' records none, and {inside(layout)} would mean its own default {defaults[0]} by that"
    if "layer-ids" not in source.lose:
        raise DrafttraceError(f"{layout} cannot do without layer ids here: {why}, which may be other layers; give them up "
                              f"with --lose layer-ids{say}.")  # fmt: skip
    give_up(source, f"that the layer ids are not recorded: {inside(layout)} means {defaults[0]} without them")


def ids_option(source: Sample) -> str:
    """The option that says what the slots of a dump are."""
    return "--boundaries" if source.capture.format == "MAPPED" else "--layer-ids"


def refuse_ids(source: Sample, layout: str) -> None:
    """For layouts without layer ids: what is declared must be what the layout's default means."""
    wiring, n = source.capture.wiring, source.layers
    last = source.capture.last.boundary if source.capture.last is not None else None
    known = [k for k in wiring if k is not None]
    refuse_unrecorded(source, layout, CURRENT_DEFAULTS)
    if not known and last is None:
        return
    if n is not None and (not known or wiring == canonical_wiring(n)) and last in {None, n}:
        return
    declared = f"the wiring {wiring_name(known)}" + (
        f" with the last state {boundary_name(last)}" if last not in {None, n} else ""
    )
    why = "is not its default" if n is not None else "may not be its default (give --target DIR)"
    refuse(source, "layer-ids", layout, f"it records none, and {declared} {why}", layer_ids_of(source))


def refuse_last_boundary(source: Sample, layout: str) -> None:
    """For layouts that call their last state B(n): a last state that is declared as another one."""
    last, n = source.capture.last, source.layers
    if last is None or last.boundary is None or last.boundary == n:
        return
    why = f"it has no place for a last state {boundary_name(last.boundary)} " + (
        "of a target whose depth is not known (give --target DIR)"
        if n is None
        else f"that is not {boundary_name(n)}"
    )
    refuse(source, "layer-ids", layout, why, f"that the last state is {boundary_name(last.boundary)}")


def refuse_sweep(source: Sample, layout: str, *, normed: bool = False) -> None:
    """For layouts without boundaries besides the slots and the last state B(n), which they hold before the norm.

    normed: they hold it after the norm, so that B(n) itself is there only where it was made from that.
    """
    capture = source.capture
    held = {slot.boundary: slot.rows for slot in capture.slots if slot.boundary is not None}
    last = capture.last
    if last is not None and last.norm is Norm.PRE:
        n = last.boundary if last.boundary is not None else source.layers
        held |= {n: last.rows} if n is not None and n not in held else {}
    elif not normed and source.layers is not None and (before := before_norm(source)) is not None:
        held.setdefault(source.layers, before)
    own = set(capture.boundaries) | ({0} if capture.embed is not None else set())
    spare = sorted(own - set(held))
    if spare:
        refuse(
            source,
            "boundaries",
            layout,
            f"{len(spare)} boundaries besides the slots, first {boundary_name(spare[0])}",
            f"{len(spare)} boundaries besides the slots, first {boundary_name(spare[0])}",
        )
    refuse_other_rows(source, layout, held)


def refuse_other_rows(source: Sample, layout: str, held: Mapping[int, Rows]) -> None:
    """Where a boundary is there twice, as in a trace whose slot is not what it declares, one of the two would go."""
    capture = source.capture
    twice = [(k, rows) for k, rows in capture.boundaries.items() if k in held]
    twice += [(0, capture.embed.rows)] if capture.embed is not None and 0 in held else []
    other = [k for k, rows in twice if not same_rows(source, held[k], rows)]
    if other:
        name = boundary_name(other[0])
        why = f"{name} is there twice, with different numbers"
        refuse(source, "boundaries", layout, why, f"the second form of {name}, with other numbers")


def same_rows(source: Sample, one: Rows, two: Rows) -> bool:
    """Whether two states are equal bit by bit, for the tokens that both have."""
    if one is two:
        return True
    if (one.dtype, one.width) != (two.dtype, two.width):
        return False
    key = id(one), id(two)
    if key not in source.told.equal:
        source.told.equal[key] = _equal_rows(source, one, two)
    return source.told.equal[key]


def _equal_rows(source: Sample, one: Rows, two: Rows) -> bool:
    index = source.index[source.index < min(len(one), len(two))]
    part = dataclasses.replace(source, index=index)
    pairs = zip(blocks(part, one), blocks(part, two), strict=True)
    return all(left.tobytes() == right.tobytes() for (_a, _b, left), (_c, _d, right) in pairs)


def refuse_mask(source: Sample, layout: str) -> None:
    if source.mask is not None:
        refuse(source, "loss-mask", layout, "it has no place for one", "the loss mask")


def kept_mask(source: Sample) -> Ints | None:
    """The loss mask for a layout that can do with one and without."""
    if source.mask is not None and "loss-mask" in source.lose:
        give_up(source, "the loss mask")
        return None
    return source.mask


def need_mask(source: Sample, layout: str) -> Ints:
    if source.mask is None:
        raise DrafttraceError(
            f"'{source.capture.path}' has no loss mask, which {inside(layout)} needs; give --mask-ones to weight "
            "every token."
        )
    return source.mask


def before_norm(source: Sample) -> Rows | None:
    """B(n), which stands before the final norm, where the source holds it by its name besides a last state after it."""
    capture, n = source.capture, source.layers
    if n is None or n not in capture.boundaries or covered(source, n) < len(source):
        return None
    last = capture.last
    return (
        capture.boundaries[n]
        if last is None or (last.norm is not Norm.PRE and last.boundary in {None, n})
        else None
    )


def last_on(source: Sample, wanted: Norm, layout: str, *, may_lose: bool = False) -> Rows:
    """The last state on the wanted side of the final norm. Raises DrafttraceError where it is not to be had.

    may_lose: the layout can do without.
    """
    last, before = source.capture.last, before_norm(source)
    if wanted is Norm.PRE and before is not None:
        return before
    unsure = last is None or last.norm is Norm.UNKNOWN
    if unsure and before is not None and source.target is not None:
        return normed_by(source, source.target, boundary_name(source.layers), before)
    if last is None:
        raise DrafttraceError(
            f"'{source.capture.path}' has no last state, and {inside(layout)} stores one; choose another layout, such "
            "as --to trace."
        )
    if gaps(source.capture, "last", source.index):
        raise DrafttraceError(f"'{source.capture.path}' lacks the last state for some tokens; record it again.")
    if last.norm is wanted:
        return last.rows
    side = {Norm.PRE: "before", Norm.POST: "after", Norm.UNKNOWN: "on an unknown side of"}
    if wanted is Norm.POST and last.norm is Norm.PRE and source.target is not None:
        return normed_by(source, source.target, last.name, last.rows)
    if last.norm is Norm.PRE:
        remedy = "give --target DIR to norm it"
    elif last.norm is Norm.UNKNOWN and source.capture.format == "MAPPED":
        remedy = f"say where it stands with --last-norm {wanted}"
    elif source.layers is None and source.capture.boundaries:
        remedy = "give --target DIR, which tells whether one of its boundaries is that state"
    else:
        remedy = "make it with drafttrace reference --target DIR"
    if may_lose:
        remedy += ", or give it up with --lose last-state"
    raise DrafttraceError(
        f"{layout} stores the last state {side[wanted]} the final norm, and '{source.capture.path}' has it "
        f"{side[last.norm]} it; {remedy}."
    )
