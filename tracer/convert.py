"""Writes a capture in another layout: trace, safetensors, SpecForge, speculators v1 or current.

What the other layout cannot hold is refused by name, never dropped: a training sample without its layer ids or its
mask is how the faults that this tool looks for begin. What is given up on purpose, the result names.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Ints, Norm
from drafttrace.tracer.convert_place import refuse_config_above, refuse_in_place, write_folder
from drafttrace.tracer.convert_sample import (
    Sample,
    blocks,
    covered,
    kind_of,
    last_on,
    left_out_of,
    need_mask,
    need_slots,
    one_kind,
    one_row_per_token,
    refuse,
    refuse_ids,
    refuse_mask,
    refuse_recording,
    refuse_sweep,
)
from drafttrace.tracer.convert_trace import to_trace
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.dumps.tensor import Array
from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter
from drafttrace.tracer.dumps.write_torch import Planned, write_torch
from drafttrace.tracer.errors import DrafttraceError, OutputExists
from drafttrace.tracer.open import open_capture, split_spec
from drafttrace.tracer.output import refuse_device
from drafttrace.tracer.rows import Rows

# What may be given up on purpose, with ``lose``.
LOSSES = ("layer-ids", "loss-mask", "last-state", "boundaries", "first-token", "recording")


@dataclass(frozen=True)
class Converted:
    """What was written. left_out: what of a recording was given up, and the padding."""

    paths: tuple[Path, ...]
    left_out: tuple[str, ...]


def convert(
    spec: str,
    out: Path,
    to: str,
    *,
    format: str | None = None,
    sample: int | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
    lose: Sequence[str] = (),
    mask: str | None = None,
    target: Path | None = None,
    force: bool = False,
) -> Converted:
    """Read ``spec`` (``PATH`` or ``PATH#i``) and write it to ``out`` in the layout ``to``.

    to: "trace", "safetensors" (what ``drafttrace reference`` writes), "specforge", "speculators-v1" or
    "speculators". The last two are folders. mapping: the names of the fields of a file of no known
    layout. lose: which of :data:`LOSSES` may be given up. mask: "ones" makes a loss mask where the source has none.
    target: the target's folder; its final norm turns a last state before the norm into one after it, which SpecForge
    stores. "recording" among the losses is what only a recorder knows: draft rows, rejected rows, probes, the server.

    Raises DrafttraceError naming what the layout cannot hold, OutputExists where ``out`` is taken.
    """
    writer = _WRITERS.get(to)
    if writer is None:
        raise DrafttraceError(f"There is no layout '{to}' to convert to; choose one of {', '.join(_WRITERS)}.")
    unknown = sorted(set(lose) - set(LOSSES))
    if unknown:
        raise DrafttraceError(f"'{unknown[0]}' is nothing that can be given up; choose from {', '.join(LOSSES)}.")
    if mask not in {None, "ones"}:
        raise DrafttraceError(f"A loss mask can be made of 'ones', not of '{mask}'; leave it out or give 'ones'.")
    asked = request or Request()
    if target is not None:
        from drafttrace.tracer.target_weights import read_shape

        shape = read_shape(target)
        asked = asked.told(shape.hidden_size, shape.layers)
    capture = open_capture(spec, format=format, sample=sample, mapping=mapping, request=asked)
    capture.need_real_tokens("train or compare")
    refuse_in_place(split_spec(spec)[0], out)
    source = one_row_per_token(capture, asked, frozenset(lose), target)
    refuse_recording(source, to)
    if source.mask is None and mask == "ones":
        source = dataclasses.replace(source, mask=np.ones(len(source.tokens), np.int64))
    refuse_device(out)
    if out.exists() and (not force or (out.is_dir() and any(out.iterdir()) and to in _FILES)):
        raise OutputExists(f"The output '{out}' exists already; give another name, or --force to replace it.")
    if to in _FILES and out.is_dir():
        raise OutputExists(f"The output '{out}' is a folder, and the layout {to} is one file; give a file name.")
    if to == "speculators-v1" and (None in capture.wiring or "layer-ids" in source.lose):
        refuse_config_above(out)
    paths = writer(source, out) if to in _FILES else write_folder(out, to, lambda folder: writer(source, folder))
    return Converted(tuple(paths), tuple(left_out_of(source, to)))


# --- the layouts ---------------------------------------------------------------------------------------------


def _to_safetensors(source: Sample, out: Path) -> list[Path]:
    layout = "The safetensors layout"
    refuse_mask(source, layout)
    capture = source.capture
    by_boundary: dict[int, Rows] = {}
    for slot in capture.slots:
        if slot.boundary is None:
            raise DrafttraceError(
                f"{layout} names the boundary of every slot, and '{capture.path}' does not say that of {slot.name}; say "
                "it with --layer-ids or --boundaries, or convert to speculators."
            )
        by_boundary[slot.boundary] = slot.rows
    twice = [k for place, k in enumerate(capture.wiring) if k in capture.wiring[:place]]
    if twice:
        raise DrafttraceError(
            f"{layout} holds a boundary once, and '{capture.path}' declares {boundary_name(twice[0])} for two slots; "
            "convert to speculators-v1."
        )
    held = set(by_boundary) | ({0} if capture.embed is not None else set())
    if capture.last is not None and "last-state" not in source.lose:
        held |= {
            k
            for k in (capture.last.boundary, source.layers if capture.last.boundary is None else None)
            if k is not None
        }
    short = sorted(k for k in capture.boundaries if k not in held and covered(source, k) < len(source))
    if short:
        why = f"{len(short)} boundaries, first {boundary_name(short[0])}, cover only the first {covered(source, short[0])} "
        refuse(source, "boundaries", layout, f"{why}of {len(source)} tokens")
    by_boundary |= {
        k: rows
        for k, rows in capture.boundaries.items()
        if k not in by_boundary and k not in short and k not in held
    }
    if capture.embed is not None:
        by_boundary.setdefault(0, capture.embed.rows)
    metadata = {"slots": json.dumps([slot.boundary for slot in capture.slots])}
    if capture.last is not None and "last-state" not in source.lose:
        k = capture.last.boundary if capture.last.boundary is not None else source.layers
        if k is None:
            raise DrafttraceError(
                f"The number of layers of '{capture.path}' is not known, so its last state has no name; give --target "
                "DIR."
            )
        by_boundary[k] = last_on(source, Norm.PRE, layout)
        metadata["last"] = str(k)
    if source.layers is not None:
        metadata["layers"] = str(source.layers)
    if not by_boundary:
        raise DrafttraceError(
            f"'{capture.path}' has no states with a known boundary; say which they are with --layer-ids."
        )
    from drafttrace import __version__

    metadata |= {
        "format": "drafttrace.capture/1",
        "boundaries": json.dumps(list(by_boundary)),
        "written_by": f"drafttrace {__version__} convert",
        "source_format": capture.format,
    }
    _write_stacked(source, out, list(by_boundary.values()), metadata)
    return [out]


def _write_stacked(source: Sample, out: Path, parts: Sequence[Rows], metadata: dict[str, str]) -> None:
    kind = one_kind(source, parts)
    widths = {part.width for part in parts}
    if len(widths) != 1:
        raise DrafttraceError(
            f"The states of '{source.capture.path}' are {sorted(widths)} wide; a stack has one width."
        )
    shape = (len(source), len(parts), widths.pop())
    specs = {"hidden_states": (kind, shape), "token_ids": ("int64", (len(source),))}
    writer = SafetensorsWriter(out, specs, metadata)
    with writer as tensors:
        tensors["token_ids"][:] = source.tokens
        for column, part in enumerate(parts):
            for start, stop, block in blocks(source, part):
                tensors["hidden_states"][start:stop, column] = block
                writer.wrote((stop - start) * len(parts) * part.width * block.itemsize)


def _to_speculators(source: Sample, out: Path) -> list[Path]:
    layout = "The speculators layout"
    refuse_ids(source, layout)
    refuse_sweep(source, layout)
    parts = [*(slot.rows for slot in source.capture.slots), last_on(source, Norm.PRE, layout)]
    if source.mask is not None and "loss-mask" not in source.lose:
        from drafttrace.tracer.dumps.arrow_masks import write_table
    folder = out / "hidden_states"
    _make(folder)
    path = folder / "hs_0.safetensors"
    _write_stacked(source, path, parts, {})
    if source.mask is None or "loss-mask" in source.lose:
        return [path]
    return [path, *write_table(out, source.tokens, source.mask)]


def _to_v1(source: Sample, out: Path) -> list[Path]:
    layout = "The speculators v1 layout"
    need_slots(source, layout)
    refuse_sweep(source, layout)
    capture = source.capture
    mask = need_mask(source, layout)
    parts = [*(slot.rows for slot in capture.slots), last_on(source, Norm.PRE, layout)]
    known = [k for k in capture.wiring if k is not None]
    if known and len(known) != len(capture.slots):
        refuse(source, "layer-ids", layout, "only some of its slots have one")
        known = []
    _make(out)
    written = []
    if known and "layer-ids" not in source.lose:
        assert capture.last is not None
        n = capture.last.boundary if capture.last.boundary is not None else source.layers
        ids = [k - 1 for k in (*known, *((n,) if n is not None else ()))]
        config = {"version": "2.0", "format": {"data_format_version": 1}, "hidden_states": {"layer_ids": ids}}
        (out / "data_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
        written.append(out / "data_config.json")
    value: dict[str, Planned | list[Planned]] = {
        "input_ids": _ints(source.tokens),
        "hidden_states": [_planned(source, [part]) for part in parts],
        "loss_mask": _ints(mask),
    }
    write_torch(out / "data_0.pt", value)
    return [out / "data_0.pt", *written]


def _to_specforge(source: Sample, out: Path) -> list[Path]:
    layout = "The SpecForge layout"
    refuse_ids(source, layout)
    refuse_sweep(source, layout)
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
    return [out]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExists(f"The folder '{folder}' cannot be made ({error.strerror}); choose another.") from None


def _ints(values: Ints) -> Planned:
    return Planned("int64", values.shape, lambda: [values])


def _planned(source: Sample, parts: Sequence[Rows], *, batched: bool = False) -> Planned:
    """States side by side ``[L, sum of widths]``, with a batch axis of one before it where it is wanted."""

    def pieces() -> Iterator[Array]:
        for together in zip(*(blocks(source, part) for part in parts), strict=True):
            yield np.concatenate([block for _start, _stop, block in together], -1)

    shape = (len(source), sum(part.width for part in parts))
    return Planned(kind_of(parts[0]), (1, *shape) if batched else shape, pieces)


_WRITERS: dict[str, Callable[[Sample, Path], list[Path]]] = {
    "trace": to_trace,
    "safetensors": _to_safetensors,
    "specforge": _to_specforge,
    "speculators-v1": _to_v1,
    "speculators": _to_speculators,
}
_FILES = {"trace", "safetensors", "specforge"}
