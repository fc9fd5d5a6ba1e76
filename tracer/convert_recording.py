"""What only a recorder knows of a trace: what a conversion keeps of it, and what it must ask for before it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.tracer.convert_sample import Sample
    from drafttrace.tracer.trace.h5open import TraceFile
    from drafttrace.tracer.trace.reader import RankHashes
    from drafttrace.tracer.trace.schema import Records


@dataclass(frozen=True)
class Recording:
    """What a trace file holds that its capture leaves out.

    rows: all fields of the target's R rows. ranks: the row hashes of every rank. padding: the table of hashes of padding
    rows. head: the attributes of the file that say what was recorded, when and with what. reason: why it is incomplete,
    empty where it does not say. unreadable: names of about blocks that are damaged.
    """

    rows: Records
    ranks: tuple[RankHashes, ...]
    padding: Records
    head: dict[str, str]
    reason: str
    unreadable: tuple[str, ...]


def read_recording(capture: Capture) -> Recording | None:
    """The rest of a trace; None for a dump. Raises as ``reader.read_trace`` does."""
    if not is_trace(capture):
        return None
    from drafttrace.tracer.trace import reader, schema, texts
    from drafttrace.tracer.trace.h5open import settled

    def read(trace: TraceFile) -> Recording:
        with trace.reading("its head"):
            attributes = trace.file.attrs
            names = (schema.ATTR_REQUEST, schema.ATTR_CREATED, schema.ATTR_TOOL)
            head = {name: texts.get_text(attributes[name]) for name in names if name in attributes}
            reason = texts.get_text(attributes.get(schema.ATTR_REASON, ""))
            stored = set(trace.file[schema.ABOUT]) - {"layout"} - set(capture.about)
            padded = schema.PADDING in trace.file
        return Recording(
            rows=reader.table_of(trace, schema.TARGET_ROWS, schema.TARGET_ROW)[: len(capture.table)],
            ranks=reader.ranks_of(trace),
            padding=reader.table_of(trace, schema.PADDING, schema.PADDED)
            if padded
            else schema.records(schema.PADDED, 0),
            head=head,
            reason=reason,
            unreadable=tuple(sorted(name for name in stored if _is_unreadable(trace, name))),
        )

    return settled(capture.path, read)


def _is_unreadable(trace: TraceFile, name: str) -> bool:
    """Whether a block holds something that is not its JSON; one that was declared and never filled holds nothing."""
    from drafttrace.tracer.errors import UnreadableFile
    from drafttrace.tracer.trace import schema, texts

    try:
        with trace.reading(f"/{schema.ABOUT}/{name}"):
            return bool(texts.get_text(trace.file[schema.ABOUT][name][()]).strip("\0"))
    except UnreadableFile:
        return True


def is_trace(capture: Capture) -> bool:
    return capture.format.startswith("drafttrace.trace")


def is_reduced(source: Sample) -> bool:
    """Whether one row per token is less than the trace has: then ranks and padding, which speak of all rows, go too."""
    draft = source.capture.draft
    return (draft is not None and len(draft.table) > 0) or _spare(source) > 0


def left_out_of(source: Sample, layout: str) -> Iterator[str]:
    """What the conversion leaves behind: what was given up, the padding, and tokens that never had a row."""
    from drafttrace.tracer.convert_sample import before_norm

    yield from source.told.given_up
    yield from recording_of(source, layout)
    last = source.capture.last
    kept = (
        "last-state" not in source.lose or layout != "safetensors"
    )  # the others have a place for one, and need it
    if layout in _BEFORE_NORM and last is not None and kept and before_norm(source) is not None:
        yield f"the last state '{last.name}': {boundary_name(source.layers)}, which it is after the final norm, is stored"
    scaled = [slot.name for slot in source.capture.slots if slot.rows.scale(0, 1) is not None]
    if scaled:
        yield f"the fp8 form of {', '.join(scaled)} with its scales: stored as fp32, in four times the space"
    if not is_trace(source.capture):
        if _spare(source):
            yield f"{_spare(source)} rows that are padding, rejected or computed twice"
        if layout != "trace":
            yield from _rowless(source)
        yield from _origin(source.capture, layout)


# Layouts that store the last state before the final norm.
_BEFORE_NORM = ("safetensors", "speculators-v1", "speculators")
# What a reference says of its making, besides what it holds.
ORIGIN = ("target", "target_hash", "dtype", "asked_dtype", "asked_device_map", "made_with")


def _origin(capture: Capture, layout: str) -> Iterator[str]:
    """Where a dump says that it comes from; it stays in the layout that it was in."""
    config, metadata = capture.about.get("data_config"), capture.about.get("metadata")
    if isinstance(config, dict) and layout != "speculators-v1":
        names = [name for name in config if name not in {"version", "format", "hidden_states"}]
        if names:
            yield f"what data_config.json says of {' and '.join(names)}"
    if isinstance(metadata, dict) and layout != "safetensors":
        names = [name for name in ORIGIN if name in metadata]
        if names:
            yield f"what its metadata says of its making ({', '.join(names)})"


def recording_of(source: Sample, layout: str) -> list[str]:
    """What only a recorder knows and ``layout`` has no place for."""
    capture, recording = source.capture, source.recording
    if recording is None:
        return []
    draft = capture.draft
    found = [f"{len(draft.table)} draft rows"] if draft is not None and len(draft.table) else []
    if _spare(source):
        found.append(f"{_spare(source)} rows that are padding, rejected or computed twice")
    if layout != "trace" or is_reduced(source):
        found += [f"the row hashes of {len(recording.ranks)} ranks"] if recording.ranks else []
        found += ["hashes of padding rows"] if len(recording.padding) else []
    if layout != "trace":
        found += _rowless(source)
        found += (
            ["how its rows were computed (phase, round, pass, batch, cached prefix)"] if _told(recording) else []
        )
        found += [] if capture.complete else ["that it is incomplete"]
        found += [f"{len(capture.probes)} probes"] if capture.probes else []
        found += ["the prompt length"] if capture.prompt_length is not None else []
        found += [f"the block {name}" for name in capture.about if name != "wiring"]
    return found + [f"the block {name}, which cannot be read" for name in recording.unreadable]


def _rowless(source: Sample) -> list[str]:
    """The last token of an answer: it was sampled, and never read."""
    count = len(source.all_tokens) - len(source)
    return [f"{count} {'token' if count == 1 else 'tokens'} at the end without a row"] if count > 0 else []


def _told(recording: Recording) -> bool:
    """Whether the row table says more than position and token, as that of a converted dump does not."""
    from drafttrace.tracer.trace import schema

    own = {"position", "token_id", "accepted", "present"}
    fields: tuple[Any, ...] = recording.rows.dtype.names or ()
    return any((recording.rows[name] != schema.DEFAULTS[name]).any() for name in fields if name not in own)


def _spare(source: Sample) -> int:
    return max(0, len(source.capture.table) - len(source.index))


def refuse_recording(source: Sample, layout: str) -> None:
    """Raise DrafttraceError where a recording holds more than the layout, unless it is given up."""
    found = recording_of(source, layout)
    if found and "recording" not in source.lose:
        raise DrafttraceError(
            f"The layout {layout} cannot hold what only a recording has of '{source.capture.path}': {', '.join(found)}; "
            "give it up with --lose recording."
        )
