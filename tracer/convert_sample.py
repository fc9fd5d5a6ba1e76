"""A capture cut down to one row per token, and what a layout cannot hold of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drafttrace.tracer.boundary import boundary_name, canonical_wiring, wiring_name
from drafttrace.tracer.capture import Accepted, Capture, Ints, Norm, Phase
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.tensor import Array
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import DType, Rows

BLOCK = 256


@dataclass(frozen=True)
class Sample:
    """One row per token: ``index[t]`` is the row of token t. layers: n where it is known."""

    capture: Capture
    index: Ints
    tokens: Ints
    mask: Ints | None
    layers: int | None
    lose: frozenset[str]
    target: Path | None

    def __len__(self) -> int:
        return len(self.index)


# --- one row per token ---------------------------------------------------------------------------------------


def one_row_per_token(capture: Capture, request: Request, lose: frozenset[str], target: Path | None) -> Sample:
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
        raise DrafttraceError(
            f"'{capture.path}' has no row for token {int(missing[0])} ({len(missing)} of {last + 1} are missing, as after "
            "a prefix-cache hit), and a training dump needs one for every token; record it again with a cold cache."
        )
    for name, present in getattr(capture, "present", {}).items():
        given_up = {"embed": "boundaries", "last": "last-state"}.get(name) in lose
        if (name.startswith("aux/") or name in {"embed", "last"}) and not given_up and not present[index].all():
            raise DrafttraceError(f"'{capture.path}' lacks {name} for some tokens; record it again.")
    mask = capture.mask
    tokens = capture.tokens[: last + 1]
    if (tokens < 0).any() and "first-token" not in lose:
        raise DrafttraceError(
            f"'{capture.path}' does not keep token {int(np.flatnonzero(tokens < 0)[0])}; give up 'first-token' to write "
            "0 in its place."
        )
    tokens = np.where(tokens < 0, 0, tokens)
    if mask is not None:
        mask = np.concatenate([mask, np.zeros(max(0, last + 1 - len(mask)), np.int64)])[: last + 1]
    layers = request.layers if request.layers is not None else capture.about.get("target_layers")
    if layers is None and capture.last is not None and capture.format.startswith("drafttrace.trace"):
        wiring = capture.about.get("wiring")
        layers = wiring.get("n") if isinstance(wiring, dict) else None
    return Sample(capture, index, tokens, mask, layers if type(layers) is int else None, lose, target)


def left_out_of(source: Sample, layout: str) -> Iterator[str]:
    """What the conversion leaves behind: what was given up, and the padding."""
    yield from recording_of(source, layout)
    if not _is_trace(source.capture) and _spare(source):
        yield f"{_spare(source)} rows that are padding, rejected or computed twice"


def recording_of(source: Sample, layout: str) -> list[str]:
    """What only a recorder knows and ``layout`` has no place for."""
    capture = source.capture
    found = [f"{len(capture.draft.table)} draft rows"] if capture.draft is not None else []
    if _is_trace(capture) and _spare(source):
        found.append(f"{_spare(source)} rows that are padding, rejected or computed twice")
    if capture.padding:
        found.append("hashes of padding rows")
    if layout != "trace":
        found += [f"{len(capture.probes)} probes"] if capture.probes else []
        found += ["the prompt length"] if capture.prompt_length is not None else []
        if _is_trace(capture):
            found += [f"the block {name}" for name in capture.about if name != "wiring"]
    return found


def refuse_recording(source: Sample, layout: str) -> None:
    """Raise DrafttraceError where a recording holds more than the layout, unless it is given up."""
    found = recording_of(source, layout)
    if found and "recording" not in source.lose:
        raise DrafttraceError(
            f"The layout {layout} cannot hold what only a recording has of '{source.capture.path}': {', '.join(found)}; "
            "give it up with --lose recording."
        )


def _is_trace(capture: Capture) -> bool:
    return capture.format.startswith("drafttrace.trace")


def _spare(source: Sample) -> int:
    return max(0, len(source.capture.table) - len(source.index))


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
            f"The states of '{source.capture.path}' have the number formats {', '.join(sorted(kinds))}; a stacked layout "
            "holds one."
        )
    return kinds.pop()


# --- what a layout cannot hold -------------------------------------------------------------------------------


def refuse(source: Sample, loss: str, layout: str, why: str) -> None:
    if loss not in source.lose:
        raise DrafttraceError(f"{layout} cannot hold the {loss.replace('-', ' ')} of '{source.capture.path}': {why}; "
                              f"give it up with --lose {loss}.")  # fmt: skip


def need_slots(source: Sample, layout: str) -> None:
    if not source.capture.slots:
        raise DrafttraceError(
            f"'{source.capture.path}' has no slots, and {layout} needs them; choose another layout."
        )


def refuse_ids(source: Sample, layout: str) -> None:
    """For layouts without layer ids: what is declared must be what the layout's default means."""
    wiring, n = source.capture.wiring, source.layers
    last = source.capture.last.boundary if source.capture.last is not None else None
    known = [k for k in wiring if k is not None]
    if not known and last is None:
        return
    if n is not None and (not known or wiring == canonical_wiring(n)) and last in {None, n}:
        return
    declared = f"the wiring {wiring_name(known)}" + (
        f" with the last state {boundary_name(last)}" if last not in {None, n} else ""
    )
    why = "is not its default" if n is not None else "may not be its default (give --target DIR)"
    refuse(source, "layer-ids", layout, f"it records none, and {declared} {why}")


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
    refuse(source, "layer-ids", layout, why)


def refuse_sweep(source: Sample, layout: str) -> None:
    held = {k for k in source.capture.wiring if k is not None}
    if source.capture.last is not None and source.capture.last.boundary is not None:
        held.add(source.capture.last.boundary)
    own = set(source.capture.boundaries) | ({0} if source.capture.embed is not None else set())
    spare = sorted(own - held - ({source.layers} if source.capture.last else set()))
    if spare:
        refuse(
            source,
            "boundaries",
            layout,
            f"{len(spare)} boundaries besides the slots, first {boundary_name(spare[0])}",
        )


def refuse_mask(source: Sample, layout: str) -> None:
    if source.mask is not None:
        refuse(source, "loss-mask", layout, "it has no place for one")


def need_mask(source: Sample, layout: str) -> Ints:
    if source.mask is None:
        raise DrafttraceError(
            f"'{source.capture.path}' has no loss mask, which {layout} needs; give --mask-ones to weight every token."
        )
    return source.mask


def last_on(source: Sample, wanted: Norm, layout: str) -> Rows:
    """The last state on the wanted side of the final norm. Raises DrafttraceError where it is not to be had."""
    last = source.capture.last
    if last is None:
        raise DrafttraceError(
            f"'{source.capture.path}' has no last state, and {layout} stores one; choose another layout."
        )
    if last.norm is wanted:
        return last.rows
    side = {Norm.PRE: "before", Norm.POST: "after", Norm.UNKNOWN: "on an unknown side of"}
    if wanted is Norm.POST and last.norm is Norm.PRE and source.target is not None:
        return _Normed(last.rows, source.target)
    remedy = "give --target DIR to norm it" if last.norm is Norm.PRE else "make it with drafttrace reference"
    raise DrafttraceError(
        f"{layout} stores the last state {side[wanted]} the final norm, and '{source.capture.path}' has it "
        f"{side[last.norm]} it; {remedy}."
    )


class _Normed(Rows):
    """A last state after the target's final norm, rounded to the number format that it came in."""

    def __init__(self, rows: Rows, target: Path) -> None:
        from drafttrace.tracer.target_weights import TargetWeights

        self._rows, self._target = rows, TargetWeights(target)
        self.shape, self.dtype = rows.shape, rows.dtype

    def raw(self, start: int, stop: int) -> Array:
        values = self._target.final_norm(self._rows.floats(start, stop))
        if self.dtype is DType.BF16:
            bits = values.view(np.uint32)
            rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            return rounded
        if self.dtype in {DType.FP8_E4M3, DType.FP8_E5M2}:
            raise DrafttraceError("A last state in fp8 cannot be normed without loss; store it as bf16 first.")
        return values.astype(self.dtype.storage)
