"""From a trace file to the capture that everything compares."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import (
    Accepted,
    Capture,
    DraftRows,
    Ints,
    LastState,
    Norm,
    Phase,
    Probe,
    RowTable,
    Slot,
)
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import DType, Rows
from drafttrace.tracer.trace import bfloat16, schema, texts
from drafttrace.tracer.trace.h5open import TraceFile, is_trace, settled
from drafttrace.tracer.trace.h5rows import H5Rows, check_tensor
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.schema import Records
from drafttrace.tracer.trace.sums import stored_sums
from drafttrace.tracer.trace.wiring import Wiring, read_wiring

__all__ = ["RankHashes", "is_trace", "read_ranks", "read_rows", "read_tokens", "read_trace"]

_MOST_PACKED = 1000  # bytes that one byte of deflate can stand for

Masks = Mapping[str, npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class RankHashes:
    """What one rank hashed: R ``rows`` (schema.RANK_ROW) and ``hashes`` ``[R, len(names)]``."""

    rank: int
    rows: Records
    names: tuple[str, ...]
    hashes: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Part:
    """Rows and tensors of the target or of the draft."""

    rows: Records
    tensors: Mapping[str, Rows]
    ids: Mapping[str, Ints]
    present: Masks


def read_trace(path: str | os.PathLike[str]) -> Capture:
    """The capture of a trace: complete, incomplete, killed, or still being written (as far as it is flushed).

    Tensors stay in the file and are read in blocks when asked for. Raises UnreadableFile and UnknownFormat as
    :func:`drafttrace.tracer.trace.h5open.open_trace` does, and UnreadableFile where a dataset is missing.
    """
    return settled(path, capture_of)


def capture_of(trace: TraceFile) -> Capture:
    """The capture of an open trace, which it keeps open."""
    layout = layout_of(trace)
    # The row tables come first: a row that stands there has all its tensors, whatever the writer does meanwhile.
    target_rows = table_of(trace, schema.TARGET_ROWS, schema.TARGET_ROW)
    draft_rows = table_of(trace, schema.DRAFT_ROWS, schema.DRAFT_ROW)
    target = _part(trace, "target", layout.target, target_rows)
    about, notes = _about(trace)
    wiring = read_wiring(about.get("wiring"), len(_slots(target)))
    tokens, token_notes = _tokens(trace, target_rows)
    probes = _probes(trace)
    complete = bool(_attribute(trace, schema.ATTR_COMPLETE, False))
    prompt = _scalar(trace, schema.PROMPT_LENGTH, -1)
    return Capture(
        path=os.fspath(trace.path),
        format=f"{schema.FORMAT}/{schema.FORMAT_VERSION}",
        recognised_by=f"HDF5 with the attribute format={schema.FORMAT}",
        tokens=tokens,
        table=row_table(target_rows),
        slots=tuple(
            Slot(f"aux/{index}", target.tensors[f"aux/{index}"], *wiring.slot(place))
            for place, index in enumerate(_slots(target))
        ),
        embed=_embed(target),
        last=_last(target, wiring),
        boundaries={
            int(name.removeprefix("boundary/")): rows
            for name, rows in target.tensors.items()
            if name.startswith("boundary/")
        },
        draft=_draft(trace, layout, draft_rows),
        valid_length=len(tokens),
        prompt_length=None if prompt < 0 else prompt,
        complete=complete,
        probes=probes,
        about=about,
        notes=(*_state_notes(trace, complete), *notes, *wiring.notes, *token_notes, *_gap_notes(target, probes)),
        present={name: mask for name, mask in target.present.items() if not mask.all()},
        padded=target_rows["padded_rows"] > target_rows["live_rows"],
        padding=padding_of(trace),
    )


def read_rows(path: str | os.PathLike[str], side: str = "target") -> Records:
    """All fields of the row table of ``target`` or ``draft``, also those that a capture leaves out.

    Raises as :func:`read_trace` does.
    """
    name, record = {
        "target": (schema.TARGET_ROWS, schema.TARGET_ROW),
        "draft": (schema.DRAFT_ROWS, schema.DRAFT_ROW),
    }[side]
    return settled(path, lambda trace: table_of(trace, name, record))


def read_tokens(path: str | os.PathLike[str]) -> Ints:
    """The tokens of a trace alone, as its capture has them. Raises as :func:`read_trace` does."""
    return settled(path, lambda trace: _tokens(trace, table_of(trace, schema.TARGET_ROWS, schema.TARGET_ROW))[0])


def read_ranks(path: str | os.PathLike[str]) -> tuple[RankHashes, ...]:
    """The row hashes of every rank that reported any, by rank. Raises as :func:`read_trace` does."""
    return settled(path, ranks_of)


def row_table(rows: Records) -> RowTable:
    """The identity of stored rows in the form that captures use."""
    names = rows.dtype.names or ()

    def column(name: str) -> Ints:
        if name in names:
            return rows[name].astype(np.int64)
        return np.broadcast_to(np.int64(schema.DEFAULTS[name]), len(rows))

    return RowTable(**{name: column(name) for name in RowTable.__dataclass_fields__})


def recover_tokens(rows: Records, known: Ints) -> Ints:
    """Tokens of a trace whose writer never finished: ``known`` (the prompt), then what the rows say.

    Rows of the prompt and accepted rows count, the latest one for each position; a position without one is -1.
    The last token of the output is no row yet, so it is missing.
    """
    certain = (rows["accepted"] == Accepted.ACCEPTED) | (
        (rows["accepted"] != Accepted.REJECTED) & np.isin(rows["phase"], (Phase.PREFILL, Phase.DECODE))
    )
    chosen = rows[certain & (rows["position"] >= 0)]
    length = max(len(known), int(chosen["position"].max()) + 1 if len(chosen) else 0)
    if length > len(known) + len(rows) + int(rows["cached_prefix"].max(initial=0)):
        chosen, length = chosen[:0], len(known)  # positions of a damaged or foreign table
    tokens = np.full(length, -1, np.int64)
    tokens[chosen["position"]] = chosen["token_id"]
    tokens[: len(known)] = known
    return tokens


def layout_of(trace: TraceFile) -> TraceLayout:
    """What the trace declares that it holds."""
    text = _text(trace, schema.LAYOUT)
    try:
        return TraceLayout.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableFile(
            f"'{trace.path}' is damaged: its layout cannot be understood; copy it again, or record the request again."
        ) from error


def _whole(trace: TraceFile, name: str) -> Any:
    """All of a small dataset. Raises UnreadableFile, before memory is taken, for one that claims more than was written:
    HDF5 would fill it up with zeros."""
    dataset = trace.dataset(name)
    with trace.reading(f"/{name}"):
        claimed = math.prod(dataset.shape) * dataset.id.get_type().get_size()
        packed = dataset.id.get_create_plist().get_nfilters() > 0
        if claimed > int(dataset.id.get_storage_size()) * (_MOST_PACKED if packed else 1):
            raise UnreadableFile(
                f"'{trace.path}' is damaged: /{name} claims {claimed:,} bytes and {dataset.id.get_storage_size():,} were "
                "written; record the request again."
            )
        return dataset[()]


def _text(trace: TraceFile, name: str) -> str:
    return texts.get_text(_whole(trace, name))


def _scalar(trace: TraceFile, name: str, default: int) -> int:
    with trace.reading(f"/{name}"):
        if name not in trace.file:
            return default
    value = _whole(trace, name)
    with trace.reading(f"/{name}"):
        return int(value)


def _attribute(trace: TraceFile, name: str, default: Any) -> Any:
    with trace.reading(f"the attribute {name}"):
        return trace.file.attrs.get(name, default)


def table_of(trace: TraceFile, name: str, record: np.dtype[np.void]) -> Records:
    """A row table with the fields of this version, whatever version wrote it."""
    dataset = trace.dataset(name)
    with trace.reading(f"/{name}"):
        need = dataset.shape[0] * dataset.dtype.itemsize
        if dataset.ndim != 1 or dataset.dtype.names is None or need > dataset.id.get_storage_size():
            raise UnreadableFile(
                f"'{trace.path}' is damaged: /{name} is no table of rows; record the request again."
            )
        rows: Records = dataset[:]
    side, _, leaf = name.rpartition("/")
    if leaf == schema.ROWS and (sums := stored_sums(trace, side, len(rows))) is not None:
        sums.check(schema.ROWS, 0, rows)
    return schema.adopt(rows, record)


def bit_names(trace: TraceFile, name: str) -> list[str]:
    """The tensors of the bits of ``present`` in the row table ``name``, lowest bit first."""
    dataset = trace.dataset(name)
    with trace.reading(f"the present bits of /{name}"):
        return [str(tensor) for tensor in json.loads(texts.get_text(dataset.attrs[schema.ATTR_PRESENT]))]


def _part(trace: TraceFile, side: str, specs: tuple[TensorSpec, ...], rows: Records) -> _Part:
    bits = bit_names(trace, f"{side}/rows")
    sums = stored_sums(trace, side, len(rows))
    tensors: dict[str, Rows] = {}
    ids: dict[str, Ints] = {}
    present: dict[str, npt.NDArray[np.bool_]] = {}
    for spec in specs:
        dataset = trace.dataset(f"{side}/{spec.name}")
        count = len(rows)
        with trace.reading(f"/{side}/{spec.name}"):
            if spec.is_boundary:
                count = min(count, dataset.shape[0])
            check_tensor(trace, dataset, spec, count)
        if spec.name in bits:
            present[spec.name] = (rows["present"] >> bits.index(spec.name)) & 1 == 1
        if isinstance(spec.dtype, DType):
            tensors[spec.name] = H5Rows(trace, dataset, spec, count, sums)
        else:
            with trace.reading(f"/{side}/{spec.name}"):
                stored = bfloat16.read_rows(dataset.id, 0, count, spec)
            if sums is not None:
                sums.check(spec.name, 0, stored)
            ids[spec.name] = stored.astype(np.int64)
    return _Part(rows, tensors, ids, present)


def _slots(part: _Part) -> list[int]:
    return sorted(int(name.removeprefix("aux/")) for name in part.tensors if name.startswith("aux/"))


def _embed(target: _Part) -> Slot | None:
    rows = target.tensors.get("embed")
    return None if rows is None else Slot("embed", rows, 0, "recorded at the output of the embedding")


def _last(target: _Part, wiring: Wiring) -> LastState | None:
    rows = target.tensors.get("last")
    if rows is None:
        return None
    return LastState("last", rows, Norm(wiring.last_norm), wiring.last_proof, wiring.layers)


def _draft(trace: TraceFile, layout: TraceLayout, rows: Records) -> DraftRows | None:
    if not layout.draft and len(rows) == 0:
        return None
    part = _part(trace, "draft", layout.draft, rows)

    def flat(named: Mapping[str, Any]) -> dict[str, Any]:
        return {name.replace("/", "_"): value for name, value in named.items()}

    return DraftRows(row_table(rows), flat(part.tensors), flat(part.present), flat(part.ids))


def _about(trace: TraceFile) -> tuple[dict[str, Any], list[str]]:
    """Every block of /about, parsed; a block that cannot be is told in a note and left out."""
    blocks: dict[str, Any] = {}
    notes = []
    with trace.reading("/about"):
        names = sorted(set(trace.file[schema.ABOUT]) - {"layout"})
    for name in names:
        try:
            if text := _text(trace, f"{schema.ABOUT}/{name}"):
                blocks[name] = json.loads(text)
        except (ValueError, UnreadableFile):
            notes.append(f"the block about/{name} cannot be read and was left out")
    return blocks, notes


def _contradiction(rows: Records, known: Ints) -> list[str]:
    """A note where one token is another in the table of rows, which has checksums, as the list of tokens has not.

    Where many differ, it is no changed byte: a picture has other ids in the forward pass than in the request.
    """
    told = rows[(rows["accepted"] == Accepted.ACCEPTED) & (rows["position"] >= 0) & (rows["position"] < len(known))]
    told = told[(told["token_id"] >= 0) & (known[told["position"]] >= 0)]
    differs = told[told["token_id"] != known[told["position"]]]
    places = differs["position"]
    if len(places) == 0 or places.min() != places.max():
        return []
    at, ran = int(places[0]), int(differs["token_id"][-1])
    return [f"token {at} is {ran} in the row that the server computed and {int(known[at])} in the list of tokens: one of "
            "them was changed after it was written"]  # fmt: skip


def _tokens(trace: TraceFile, rows: Records) -> tuple[Ints, list[str]]:
    stored = _whole(trace, schema.TOKENS)
    with trace.reading(f"/{schema.TOKENS}"):
        known: Ints = np.asarray(stored).astype(np.int64).reshape(-1)
    if bool(_attribute(trace, schema.ATTR_COMPLETE, False)):
        return known, _contradiction(rows, known)
    tokens = recover_tokens(rows, known)
    if len(tokens) == len(known):
        return tokens, []
    return tokens, [f"{len(tokens) - len(known)} of {len(tokens)} tokens were taken from the row table"]


def _probes(trace: TraceFile) -> tuple[Probe, ...]:
    with trace.reading(f"/{schema.PROBES}"):
        if schema.PROBES not in trace.file:
            return ()
    rows = _whole(trace, schema.PROBES)
    with trace.reading(f"/{schema.PROBES}"):
        return tuple(
            Probe(texts.get_text(row["name"]), *(int(row[field]) for field in schema.PROBE_FIELDS)) for row in rows
        )


def ranks_of(trace: TraceFile) -> tuple[RankHashes, ...]:
    """The row hashes of an open trace."""
    with trace.reading("/ranks"):
        group = trace.file.get(schema.RANKS)
        ranks = [] if group is None else sorted(group, key=int)
    return tuple(_rank(trace, rank) for rank in ranks)


def _rank(trace: TraceFile, rank: str) -> RankHashes:
    name = f"{schema.RANKS}/{rank}"
    rows = table_of(trace, f"{name}/rows", schema.RANK_ROW)
    dataset = trace.dataset(f"{name}/hashes")
    with trace.reading(f"/{name}/hashes"):
        names = tuple(json.loads(texts.get_text(dataset.attrs[schema.ATTR_HASHED])))
        return RankHashes(int(rank), rows, names, dataset[: len(rows)])


def padding_of(trace: TraceFile) -> dict[str, dict[int, int]]:
    """Per tap the hash of the first padding row of every frame that was padded; empty in traces of older writers."""
    with trace.reading(f"/{schema.PADDING}"):
        if schema.PADDING not in trace.file:
            return {}
    found: dict[str, dict[int, int]] = {}
    for row in table_of(trace, schema.PADDING, schema.PADDED):
        found.setdefault(texts.get_text(row["tap"]), {})[int(row["frame"])] = int(row["hash"])
    return found


def _state_notes(trace: TraceFile, complete: bool) -> list[str]:
    if complete:
        return []
    reason = texts.get_text(_attribute(trace, schema.ATTR_REASON, ""))
    if reason:
        return [f"the trace is incomplete: {reason}"]
    if trace.closed_properly:
        return ["the trace is incomplete: its writer closed it without finishing"]
    return ["the trace is incomplete: its writer is still at work or was killed; everything flushed is here"]


def _gap_notes(target: _Part, probes: tuple[Probe, ...]) -> list[str]:
    notes = []
    for name, mask in target.present.items():
        missing = len(mask) - int(mask.sum())
        if missing:
            what = boundary_name(0) + " (embed)" if name == "embed" else name
            notes.append(f"{what}: {missing} of {len(mask)} rows were not recorded")
    for probe in probes:
        if probe.fired < probe.expected:
            notes.append(f"the probe {probe.name} fired {probe.fired} times of {probe.expected}")
        if probe.dropped:
            notes.append(f"the probe {probe.name} dropped {probe.dropped} rows")
    return notes
