"""Checks inside one trace, without any reference: what the target produced against what the draft consumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafttrace.compare.hypotheses import Fit, explain
from drafttrace.tracer.capture import Accepted, Capture, DraftRows, Ints, Phase, RowTable
from drafttrace.tracer.rows import Floats

_EXTEND = (int(Phase.DRAFT_EXTEND_PREFILL), int(Phase.DRAFT_EXTEND_VERIFY))
_MAX_ROWS = 512


@dataclass(frozen=True)
class FcSlot:
    """One slot of fc's input against the aux rows of the same positions.

    equal: rows that agree bit for bit. fits: how fc's input follows from aux where they do not. same_as: another
    slot of aux that it equals. stale: rows that equal aux of another, earlier position, as (position, position of
    the copy).
    """

    slot: int
    rows: int
    equal: int
    fits: tuple[Fit, ...]
    same_as: int | None
    stale: tuple[tuple[int, int], ...]
    equal_by_phase: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Seam:
    """Draft-decode positions after an extend: round, last position of the extend, positions of the steps."""

    round: int
    last: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class InsideFacts:
    """What one trace says about itself.

    fc_in: per slot; empty where the draft's fc input was not recorded. fc_ran: False where the draft was seen but
    fc's input never was, None where no draft was recorded. norm_configured: the draft config asks for a norm before
    fc. seams: see :class:`Seam`. embed_equal: share of rows where the draft's embedding equals the target's for the
    same token, None where not comparable.
    """

    fc_in: tuple[FcSlot, ...] = ()
    fc_ran: bool | None = None
    norm_configured: bool | None = None
    seams: tuple[Seam, ...] = ()
    embed_equal: float | None = None

    @property
    def fc_state(self) -> str:
        """equal, normed, raw (equal though a norm is configured), differs, or unknown."""
        if not self.fc_in or not any(s.rows for s in self.fc_in):
            return "unknown"
        if all(s.equal == s.rows for s in self.fc_in):
            return "raw" if self.norm_configured else "equal"
        if self.norm_configured and all(_is_norm(s) for s in self.fc_in):
            return "normed"
        return "differs"


def look_inside(trace: Capture) -> InsideFacts:
    """All checks of one trace that need no reference."""
    draft = trace.draft
    norm = _norm_configured(trace.about.get("draft_config"))
    if draft is None or len(draft.table) == 0:
        return InsideFacts(fc_ran=_fc_fired(trace), norm_configured=norm)
    present = draft.present.get("fc_in")
    recorded = "fc_in" in draft.tensors and present is not None and bool(present.any())
    fc_in = _check_fc_in(trace, draft) if recorded else ()
    fired = _fc_fired(trace)
    return InsideFacts(
        fc_in=fc_in,
        fc_ran=recorded if fired is None else fired,
        norm_configured=norm,
        seams=_seams(draft.table),
        embed_equal=_embed_equal(trace, draft),
    )


def _norm_configured(config: Any) -> bool | None:
    if not isinstance(config, Mapping):
        return None
    blocks: list[Mapping[str, Any]] = [config]
    nested = config.get("eagle_config")
    if isinstance(nested, Mapping):
        blocks.append(nested)
    return any(bool(block.get(key)) for block in blocks for key in ("fc_norm", "norm_before_fc", "use_aux_norm"))


def _fc_fired(trace: Capture) -> bool | None:
    """Whether fc's tap fired; None where the trace has no such tap."""
    taps = [p for p in trace.probes if "fc_in" in p.name or p.name.endswith(("fc", "fc_out"))]
    return any(p.fired > 0 for p in taps) if taps else None


def _check_fc_in(trace: Capture, draft: DraftRows) -> tuple[FcSlot, ...]:
    wide = draft.tensors["fc_in"]
    count = len(trace.slots)
    if count == 0 or wide.width != count * trace.slots[0].rows.width:
        return ()
    ours, theirs = pair_draft_rows(trace, draft)
    if len(ours) > _MAX_ROWS:
        keep = np.linspace(0, len(ours) - 1, _MAX_ROWS).round().astype(np.int64)
        ours, theirs = ours[keep], theirs[keep]
    if len(ours) == 0:
        return ()
    values = wide.take(ours)
    width = wide.width // count
    aux = [slot.rows.take(theirs) for slot in trace.slots]
    phases, positions = draft.table.phase[ours], draft.table.position[ours]
    return tuple(_fc_slot(i, values[:, i * width : (i + 1) * width], aux, phases, positions) for i in range(count))


def pair_draft_rows(trace: Capture, draft: DraftRows) -> tuple[Ints, Ints]:
    """(draft extend rows with an fc input, target rows of the same position and round)."""
    table, target = draft.table, trace.table
    present = draft.present["fc_in"]
    by_round: dict[tuple[int, int], int] = {}
    accepted: dict[int, int] = {}
    for row in range(len(target)):
        by_round[(int(target.position[row]), int(target.round[row]))] = row
        if target.accepted[row] != Accepted.REJECTED:
            accepted[int(target.position[row])] = row
    ours, theirs = [], []
    for row in np.flatnonzero(present & np.isin(table.phase, _EXTEND)):
        position, number = int(table.position[row]), int(table.round[row])
        match = by_round.get((position, number), accepted.get(position))
        if match is not None:
            ours.append(int(row))
            theirs.append(match)
    return np.array(ours, np.int64), np.array(theirs, np.int64)


def _fc_slot(index: int, values: Floats, aux: list[Floats], phases: Ints, positions: Ints) -> FcSlot:
    equal = same_rows(values, aux[index])
    by_phase = {
        Phase(int(p)).name.lower(): (int(equal[phases == p].sum()), int((phases == p).sum()))
        for p in np.unique(phases)
    }
    if equal.all():
        return FcSlot(index, len(values), len(values), (), None, (), by_phase)
    others = [j for j in range(len(aux)) if j != index and same_rows(values, aux[j]).mean() > 0.9]
    where = {row.tobytes(): int(p) for row, p in zip(aux[index], positions, strict=True)}
    stale = []
    for row in np.flatnonzero(~equal):
        copy = where.get(values[row].tobytes())
        if copy is not None and copy != int(positions[row]):
            stale.append((int(positions[row]), copy))
    fits = explain(values[~equal], aux[index][~equal])
    return FcSlot(
        index, len(values), int(equal.sum()), fits, others[0] if others else None, tuple(stale[:20]), by_phase
    )


def same_rows(x: Floats, y: Floats) -> np.ndarray:
    """Rows that agree bit for bit (NaN agrees with the same NaN)."""
    if x.shape != y.shape:
        return np.zeros(len(x), np.bool_)
    same: np.ndarray = (x.view(np.uint32) == y.view(np.uint32)).all(1)
    return same


def _is_norm(slot: FcSlot) -> bool:
    return bool(slot.fits) and slot.fits[0].name in {"normed", "rms"} and slot.fits[0].residual < 0.05


def _seams(table: RowTable) -> tuple[Seam, ...]:
    seams = []
    for number in np.unique(table.round):
        # A round is draft, verify, extend: its draft steps continue the extend of the round before (-1: prefill).
        before = table.round == number - 1
        extend = before & np.isin(table.phase, _EXTEND) & (table.accepted != Accepted.REJECTED)
        decode = (table.round == number) & (table.phase == Phase.DRAFT_DECODE)
        if not extend.any() or not decode.any():
            continue
        order = np.argsort(table.step[decode], kind="stable")
        steps, positions = table.step[decode][order], table.position[decode][order]
        first = [int(positions[np.flatnonzero(steps == s)[0]]) for s in np.unique(steps)]
        seams.append(Seam(int(number), int(table.position[extend].max()), tuple(first)))
    return tuple(seams)


def _embed_equal(trace: Capture, draft: DraftRows) -> float | None:
    rows, present = draft.tensors.get("embed_in"), draft.present.get("embed_in")
    if rows is None or present is None or trace.embed is None or rows.width != trace.embed.rows.width:
        return None
    vector_row: dict[int, int] = {}
    for row in range(min(len(trace.table), len(trace.embed.rows))):
        vector_row.setdefault(int(trace.table.token_id[row]), row)
    pairs = [
        (int(row), vector_row[int(draft.table.token_id[row])])
        for row in np.flatnonzero(present)
        if int(draft.table.token_id[row]) in vector_row
    ][:_MAX_ROWS]
    if not pairs:
        return None
    ours, theirs = np.array(pairs, np.int64).T
    return float(same_rows(rows.take(ours), trace.embed.rows.take(theirs)).mean())
