"""One sample in every layout that can be written, and what such a layout is as a folder of many."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drafttrace.tracer.assumed_wiring import ASSUMED, WIRING
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Ints, Norm
from drafttrace.tracer.convert_companions import ArrowTable, Companions, LayerIds, layer_ids
from drafttrace.tracer.convert_recording import ORIGIN, is_trace
from drafttrace.tracer.convert_sample import (
    V1_DEFAULTS,
    Sample,
    blocks,
    covered,
    each_by_itself,
    gaps,
    give_up,
    ids_option,
    kept_mask,
    kind_of,
    last_on,
    need_mask,
    need_slots,
    one_kind,
    refuse,
    refuse_ids,
    refuse_other_rows,
    refuse_sweep,
    refuse_unrecorded,
    same_rows,
)
from drafttrace.tracer.convert_trace import check_trace, to_trace
from drafttrace.tracer.dumps.tensor import Array
from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter
from drafttrace.tracer.dumps.write_torch import Planned, write_torch
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import Rows


@dataclass(frozen=True)
class OutLayout:
    """A layout that can be written.

    check: raises DrafttraceError for what it cannot hold of a sample, and remembers what is given up of it
    (``Sample.told``). write: one sample into one file, which appears under its name only when it is whole. name: the
    place of sample i in a folder of many. holds: such a folder in words. folder: one sample, too, is a folder. endings:
    of a file of one sample, the usual one first. companions: what stands once beside the samples. rows: sample i is row
    i of a table, so the numbers have no gaps.
    """

    id: str
    check: Callable[[Sample], None]
    write: Callable[[Sample, Path], None]
    name: Callable[[int], str]
    holds: str
    endings: tuple[str, ...] = ()
    folder: bool = False
    companions: type[Companions] = Companions
    rows: bool = False


# --- safetensors ---------------------------------------------------------------------------------------------


def _check_safetensors(source: Sample) -> None:
    _named_states(source)
    kept_mask(source)


def _named_states(source: Sample) -> tuple[dict[int, Rows], tuple[int, Rows] | None, dict[int, Rows]]:
    """The slots, the last state, and every other boundary."""
    layout = "The safetensors layout"
    slots = _named_slots(source, layout)
    last = _named_last(source, layout)
    return slots, last, _sweep(source, layout, slots | ({} if last is None else {last[0]: last[1]}))


def _to_safetensors(source: Sample, out: Path) -> None:
    slots, last, more = _named_states(source)
    by_boundary = slots | more
    made = source.capture.about.get("metadata", {}) if source.capture.format == "DRAFTTRACE" else {}
    metadata = {name: made[name] for name in ORIGIN if name in made}
    metadata["slots"] = json.dumps(list(source.capture.wiring))
    if last is not None:
        by_boundary.pop(last[0], None)  # at the end, where the layout of the vLLM connector has it
        by_boundary[last[0]] = last[1]
        metadata["last"] = str(last[0])
    if source.layers is not None:
        metadata["layers"] = str(source.layers)
    if not by_boundary:
        given_up = source.capture.last is not None
        raise DrafttraceError(
            f"'{source.capture.path}' has no states besides its last one; leave out --lose last-state."
            if given_up
            else f"'{source.capture.path}' has no states, so there is nothing to write; give another file."
        )
    from drafttrace import __version__

    metadata |= {
        "format": "drafttrace.capture/1",
        "boundaries": json.dumps(list(by_boundary)),
        "mask_offset": str(source.capture.mask_offset),
        "written_by": f"drafttrace {__version__} convert",
        "source_format": source.capture.format,
    }
    if source.capture.assumed_wiring:  # else a check would take the converted slots as what training used
        metadata[WIRING] = ASSUMED
    mask = kept_mask(source)
    _write_stacked(source, out, list(by_boundary.values()), metadata, mask)


def _named_slots(source: Sample, layout: str) -> dict[int, Rows]:
    capture = source.capture
    named: dict[int, Rows] = {}
    for slot in capture.slots:
        if slot.boundary is None:
            raise DrafttraceError(
                f"{layout} names the boundary of every slot, and '{capture.path}' does not say that of {slot.name}; "
                f"{_say_boundaries(source)}."
            )
        if slot.boundary in named:
            raise DrafttraceError(
                f"{layout} holds a boundary once, and '{capture.path}' declares {boundary_name(slot.boundary)} for two "
                f"slots; {each_by_itself(source)}."
            )
        named[slot.boundary] = slot.rows
    return named


def _say_boundaries(source: Sample) -> str:
    """How this kind of source is told its boundaries; a trace has what its server said."""
    if is_trace(source.capture):
        return "choose another layout, such as --to trace"
    return f"say it with {ids_option(source)}"


def _named_last(source: Sample, layout: str) -> tuple[int, Rows] | None:
    """The last state and its boundary; None where there is none, or it is given up."""
    capture = source.capture
    if capture.last is None:
        return None
    if "last-state" in source.lose:
        give_up(source, f"the last state '{capture.last.name}'")
        return None
    k = capture.last.boundary if capture.last.boundary is not None else source.layers
    if k is None:
        raise DrafttraceError(
            f"The number of layers of '{capture.path}' is not known, so its last state has no name; give --target DIR."
        )
    more = bool(capture.slots or capture.boundaries or capture.embed is not None)
    rows = last_on(source, Norm.PRE, layout, may_lose=more)
    for slot in capture.slots:
        if slot.boundary == k and not same_rows(source, slot.rows, rows):
            raise DrafttraceError(
                f"{layout} holds a boundary once, and {slot.name} of '{capture.path}' is declared {boundary_name(k)} as "
                f"its last state is, with other numbers; {each_by_itself(source)}."
            )
    return k, rows


def _sweep(source: Sample, layout: str, held: Mapping[int, Rows]) -> dict[int, Rows]:
    """Every further boundary. Raises DrafttraceError where one is short, or not what ``held`` has of it."""
    capture = source.capture
    found: dict[int, Rows] = dict(held)
    short = sorted(k for k in capture.boundaries if k not in found and covered(source, k) < len(source))
    if short:
        why = f"{len(short)} boundaries, first {boundary_name(short[0])}, cover only the first {covered(source, short[0])} "
        refuse(source, "boundaries", layout, f"{why}of {len(source)} tokens", f"{why}of {len(source)} tokens")
    if capture.embed is not None and gaps(capture, "embed", source.index):
        why = "the embedding was not recorded for some tokens"
        refuse(source, "boundaries", layout, why, "the embedding, which was not recorded for some tokens")
    elif capture.embed is not None and 0 not in found:
        found[0] = capture.embed.rows
    refuse_other_rows(source, layout, found)
    found |= {k: rows for k, rows in capture.boundaries.items() if k not in found and k not in short}
    return {k: rows for k, rows in found.items() if k not in held}


def _write_stacked(
    source: Sample, out: Path, parts: Sequence[Rows], metadata: dict[str, str], mask: Ints | None = None
) -> None:
    kind = one_kind(source, parts)
    widths = {part.width for part in parts}
    if len(widths) != 1:
        raise DrafttraceError(
            f"The states of '{source.capture.path}' are {sorted(widths)} wide, and a stack has one width; "
            f"{each_by_itself(source)}."
        )
    shape = (len(source), len(parts), widths.pop())
    specs: dict[str, tuple[str, tuple[int, ...]]] = {
        "hidden_states": (kind, shape),
        "token_ids": ("int64", (len(source),)),
    }
    if mask is not None:
        specs["loss_mask"] = ("int64", (len(source),))
    writer = SafetensorsWriter(out, specs, metadata)
    with writer as tensors:
        tensors["token_ids"][:] = source.tokens
        if mask is not None:
            tensors["loss_mask"][:] = mask
        for column, part in enumerate(parts):
            for start, stop, block in blocks(source, part):
                tensors["hidden_states"][start:stop, column] = block
                writer.wrote((stop - start) * len(parts) * part.width * block.itemsize)


# --- speculators and SpecForge -------------------------------------------------------------------------------


def _check_speculators(source: Sample) -> None:
    layout = "The speculators layout"
    refuse_ids(source, layout)
    refuse_sweep(source, layout)
    kept_mask(source)


def _to_speculators(source: Sample, out: Path) -> None:
    layout = "The speculators layout"
    _check_speculators(source)
    parts = [*(slot.rows for slot in source.capture.slots), last_on(source, Norm.PRE, layout)]
    _write_stacked(source, out, parts, {})


def _check_v1(source: Sample) -> None:
    layout = "The speculators v1 layout"
    need_slots(source, layout)
    refuse_sweep(source, layout)
    layer_ids(source)


def _to_v1(source: Sample, out: Path) -> None:
    layout = "The speculators v1 layout"
    _check_v1(source)
    mask = need_mask(source, layout)
    parts = [*(slot.rows for slot in source.capture.slots), last_on(source, Norm.PRE, layout)]
    refuse_unrecorded(source, layout, V1_DEFAULTS)
    value: dict[str, Planned | list[Planned]] = {
        "input_ids": _ints(source.tokens),
        "hidden_states": [_planned(source, [part]) for part in parts],
        "loss_mask": _ints(mask),
    }
    write_torch(out, value)


def _check_specforge(source: Sample) -> None:
    layout = "The SpecForge layout"
    refuse_ids(source, layout)
    refuse_sweep(source, layout, normed=True)


def _to_specforge(source: Sample, out: Path) -> None:
    layout = "The SpecForge layout"
    _check_specforge(source)
    slots = source.capture.slots
    if len(slots) != 3:
        raise DrafttraceError(
            f"{layout} holds exactly three slots, and '{source.capture.path}' has {len(slots)} of them; "
            "choose another layout with --to."
        )
    mask = need_mask(source, layout)
    last = last_on(source, Norm.POST, layout)
    one_kind(source, [slot.rows for slot in slots])
    value = {
        "input_ids": _ints(source.tokens),
        "loss_mask": _ints(mask),
        "aux_hidden_state": _planned(source, [slot.rows for slot in slots], batched=True),
        "hidden_state": _planned(source, [last], batched=True),
    }
    write_torch(out, value)


def _ints(values: Ints) -> Planned:
    return Planned("int64", values.shape, lambda: [values])


def _planned(source: Sample, parts: Sequence[Rows], *, batched: bool = False) -> Planned:
    """States side by side ``[L, sum of widths]``, with a batch axis of one before it where it is wanted."""

    def pieces() -> Iterator[Array]:
        for together in zip(*(blocks(source, part) for part in parts), strict=True):
            yield np.concatenate([block for _start, _stop, block in together], -1)

    shape = (len(source), sum(part.width for part in parts))
    return Planned(kind_of(parts[0]), (1, *shape) if batched else shape, pieces)


def _specforge_name(number: int) -> str:
    first = number - number % SPECFORGE_GROUP
    return f"rows_{first}-{first + SPECFORGE_GROUP}/data_{number}.ckpt"


# SpecForge's scripts/prepare_hidden_states.py puts so many samples into one folder.
SPECFORGE_GROUP = 2000

_ALL = (
    OutLayout(
        "trace",
        check_trace,
        to_trace,
        lambda number: f"trace_{number}.h5",
        "trace_0.h5, trace_1.h5 and so on",
        (".h5", ".hdf5"),
    ),
    OutLayout(
        "safetensors",
        _check_safetensors,
        _to_safetensors,
        lambda number: f"hs_{number}.safetensors",
        "hs_0.safetensors, hs_1.safetensors and so on",
        (".safetensors",),
    ),
    OutLayout(
        "specforge",
        _check_specforge,
        _to_specforge,
        _specforge_name,
        "rows_0-2000/data_0.ckpt and so on",
        (".ckpt", ".pt", ".pth", ".bin"),
    ),
    OutLayout(
        "speculators-v1",
        _check_v1,
        _to_v1,
        lambda number: f"data_{number}.pt",
        "data_0.pt with data_config.json",
        folder=True,
        companions=LayerIds,
    ),
    OutLayout(
        "speculators",
        _check_speculators,
        _to_speculators,
        lambda number: f"hidden_states/hs_{number}.safetensors",
        "hidden_states/hs_0.safetensors with an Arrow table",
        folder=True,
        companions=ArrowTable,
        rows=True,
    ),
)
OUT_LAYOUTS = {layout.id: layout for layout in _ALL}
