"""What the draft's fc received against what the target handed over, row by row and slot by slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from drafttrace.compare.hypotheses import Fit, explain, far_fits, identity, near_fits, normed, usable
from drafttrace.compare.measure import Bools
from drafttrace.tracer.capture import Accepted, Capture, DraftRows, Ints, Phase
from drafttrace.tracer.rows import Floats

EXTEND = (int(Phase.DRAFT_EXTEND_PREFILL), int(Phase.DRAFT_EXTEND_VERIFY))
MAX_ROWS = 512
FITS = {"rotation": 0.15, "bytes": 0.2}
FIT = 0.1
"""The residual below which a fit explains: that of :data:`FITS`, else this."""
_FITTED = 64  # rows that hypotheses about other slots and other tokens are tried on
_SURE = 0.05
_TURNED = 0.6  # relative L2 below which two states are alike without being turned


@dataclass(frozen=True)
class FcSlot:
    """One slot of fc's input against the aux rows of the same positions. Rows that can be no state are left out.

    equal: rows that agree bit for bit. fits: how fc's input follows from aux where they do not. same_as: another
    slot of aux that it equals. stale: rows that equal aux of another, earlier position, as (position, position of
    the copy). shift: d where nearly all rows that differ are aux of position p + d. phases: those whose rows differ, where
    other phases' rows do not. made_of: the slot of aux that ``fits`` start from, where it is not its own.
    """

    slot: int
    rows: int
    equal: int
    fits: tuple[Fit, ...]
    same_as: int | None
    stale: tuple[tuple[int, int], ...]
    equal_by_phase: Mapping[str, tuple[int, int]]
    shift: int | None = None
    phases: tuple[str, ...] = ()
    made_of: int | None = None

    @property
    def explained(self) -> bool:
        """Whether nothing differs, or a cause other than copied rows is known."""
        known = (self.same_as, self.shift, self.made_of, self.fit)
        return self.equal == self.rows or any(one is not None for one in known)

    @property
    def fit(self) -> Fit | None:
        """The best fit, where it explains the rows that differ."""
        best = self.fits[0] if self.fits else None
        if best is None or best.residual >= FITS.get(best.name, FIT):
            return None
        plain = next((fit.residual for fit in self.fits if fit.name == "identity"), _TURNED)
        return None if best.name == "rotation" and plain < _TURNED else best


@dataclass(frozen=True)
class _Pairs:
    """fc's input ``[n, K*H]`` and the aux rows ``[n, H]`` of the same positions. passes: the target's verify pass that
    computed a row, -1 for one of another kind."""

    values: Floats
    aux: list[Floats]
    phases: Ints
    positions: Ints
    passes: Ints
    width: int

    def __len__(self) -> int:
        return len(self.values)

    def only(self, rows: Bools) -> _Pairs:
        """Some of the rows."""
        aux = [state[rows] for state in self.aux]
        return _Pairs(
            self.values[rows], aux, self.phases[rows], self.positions[rows], self.passes[rows], self.width
        )

    def slot(self, index: int) -> Floats:
        return self.values[:, index * self.width : (index + 1) * self.width]


def check_fc_in(trace: Capture, draft: DraftRows, offsets: Mapping[int, int]) -> tuple[FcSlot, ...]:
    """Every slot of fc's input; none where it is no concatenation of the target's. offsets: of :func:`position_offsets`."""
    wide = draft.tensors["fc_in"]
    count = len(trace.slots)
    if count == 0 or wide.width != count * trace.slots[0].rows.width:
        return ()
    ours, theirs = pair_draft_rows(trace, draft, offsets)
    if len(ours) > MAX_ROWS:
        keep = np.linspace(0, len(ours) - 1, MAX_ROWS).round().astype(np.int64)
        ours, theirs = ours[keep], theirs[keep]
    if len(ours) == 0:
        return ()
    pairs = _Pairs(
        wide.take(ours),
        [slot.rows.take(theirs) for slot in trace.slots],
        draft.table.phase[ours],
        trace.table.position[theirs],
        np.where(trace.table.phase[theirs] == Phase.VERIFY, trace.table.frame[theirs], -1),
        wide.width // count,
    )
    slots = tuple(one for i in range(count) for one in _by_phase(i, pairs, _fc_slot(i, pairs)))
    whole = _joint_norm(pairs) if any(s.equal < s.rows for s in slots) else None
    return (
        slots
        if whole is None
        else tuple(replace(s, fits=(whole,), stale=(), same_as=None, shift=None, made_of=None) for s in slots)
    )


def _joint_norm(pairs: _Pairs) -> Fit | None:
    """One RMS norm over all slots together (norm_before_fc), which no slot shows by itself; None where it fits badly."""
    x, y = usable(pairs.values, np.concatenate(pairs.aux, axis=1))
    fit = normed(x, y) if len(x) >= 4 else None
    known = fit is not None and fit.residual < _SURE and identity(x, y).residual > fit.residual
    return fit if known else None


def pair_draft_rows(trace: Capture, draft: DraftRows, offsets: Mapping[int, int]) -> tuple[Ints, Ints]:
    """(accepted draft extend rows with an fc input, the target rows that they were made from).

    That is the target's latest accepted row of the same position before the draft's pass: a retracted request
    computes its positions again.
    """
    table, target = draft.table, trace.table
    by_position: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(target.accepted != Accepted.REJECTED):
        by_position.setdefault(int(target.position[row]), []).append((int(target.frame[row]), int(row)))
    usable = draft.present["fc_in"] & np.isin(table.phase, EXTEND) & (table.accepted == Accepted.ACCEPTED)
    ours, theirs = [], []
    for row in np.flatnonzero(usable):
        position = int(table.position[row]) - offsets.get(int(table.phase[row]), 0)
        candidates = by_position.get(position, [])
        before = [c for c in candidates if c[0] <= table.frame[row]] or candidates[:1]
        if before:
            ours.append(int(row))
            theirs.append(max(before)[1])
    return np.array(ours, np.int64), np.array(theirs, np.int64)


def position_offsets(trace: Capture, draft: DraftRows, decode_follows: bool) -> dict[int, int]:
    """By extend phase, how far its rows' positions are from those of their tokens.

    The draft's row of position p is fed the token after it; where another distance fits nearly all of a phase's rows and
    that one hardly any, their positions are off. Where all phases agree on another one, and the decode steps follow them
    (``decode_follows``), it is how that server counts.
    """
    table, tokens = draft.table, trace.tokens
    found = {}
    for phase in EXTEND:
        rows = np.flatnonzero(
            (table.phase == phase) & (table.accepted == Accepted.ACCEPTED) & (table.token_id >= 0)
        )
        agree = {}
        for d in (0, 1, -1, 2, -2):
            place = table.position[rows] + 1 - d
            inside = (place >= 0) & (place < len(tokens))
            agree[d] = (
                float((tokens[place[inside]] == table.token_id[rows][inside]).mean()) if inside.any() else 0.0
            )
        best = max(agree, key=lambda d: (agree[d], -abs(d)))
        if len(rows) >= 4 and agree[best] > 0.9:
            found[phase] = best
    if len(set(found.values())) == 1 and decode_follows:
        return {}
    return {phase: d for phase, d in found.items() if d}


def _by_phase(index: int, pairs: _Pairs, whole: FcSlot) -> tuple[FcSlot, ...]:
    """The slot, or one of each phase where its rows differ by one cause after prefill and by another after verify."""
    touched = [name for name, (same, rows) in whole.equal_by_phase.items() if same < rows]
    if whole.explained or whole.phases or len(touched) < 2:
        return (whole,)
    parts = [_fc_slot(index, pairs.only(pairs.phases == phase)) for phase in np.unique(pairs.phases)]
    parts = [part for part in parts if part.equal < part.rows]
    if not any(part.explained for part in parts):
        return (whole,)
    return tuple(replace(part, phases=tuple(part.equal_by_phase)) for part in parts)


def _fc_slot(index: int, pairs: _Pairs) -> FcSlot:
    raw, own = pairs.slot(index), pairs.aux[index]
    states = is_state(raw) & is_state(own)  # rows that can be no state are told as such
    values, aux = raw[states], own[states]
    others = [rows[states] for rows in pairs.aux]
    phases, positions, passes = pairs.phases[states], pairs.positions[states], pairs.passes[states]
    equal = same_rows(values, aux)
    by_phase = {
        Phase(int(p)).name.lower(): (int(equal[phases == p].sum()), int((phases == p).sum()))
        for p in np.unique(phases)
    }
    found = FcSlot(index, len(values), int(equal.sum()), (), None, (), by_phase)
    if len(values) < 4 and len(raw) >= 4:
        misread = replace(found, fits=far_fits(raw, own))  # misread bytes may be NaN everywhere
        return misread if misread.fit is not None else found
    if equal.all():
        return found
    odd = np.flatnonzero(~equal)
    touched = tuple(name for name, (same, rows) in by_phase.items() if same < rows)
    whole = all(2 * same < rows for name, (same, rows) in by_phase.items() if name in touched)
    found = replace(found, phases=touched if whole and len(touched) < len(by_phase) else ())
    alike = [j for j in range(len(others)) if j != index and same_rows(values[odd], others[j][odd]).mean() > 0.9]
    alike = alike if 2 * len(odd) > len(values) or found.phases else []
    if alike:
        return replace(found, same_as=alike[0])
    shift = _shift(values, aux, positions, odd)
    if shift is not None and (_in_prefill(~equal, phases) or _in_one_pass(shift, positions, passes, odd)):
        return replace(found, shift=shift)
    where = {row.tobytes(): int(p) for row, p in zip(aux, positions, strict=True)}
    stale = []
    for row in odd:
        copy = where.get(values[row].tobytes())
        if copy is not None and copy != int(positions[row]):
            stale.append((int(positions[row]), copy))
    if 2 * len(stale) > len(odd):
        return replace(found, stale=tuple(stale[:20]))
    found = replace(found, stale=tuple(stale[:20]), fits=explain(values[odd], aux[odd]))
    return found if found.fit is not None or stale else _made_otherwise(found, values, others, positions, odd)


def _made_otherwise(found: FcSlot, values: Floats, aux: Sequence[Floats], positions: Ints, odd: Ints) -> FcSlot:
    """The slot with what it is a function of, another slot's or another token's state; as it is where nothing fits."""
    at = {int(p): row for row, p in enumerate(positions)}
    best: tuple[float, int, int, tuple[Fit, ...]] | None = None
    for d in (0, -1, 1, -2, 2):
        rows = [(row, at[int(positions[row]) + d]) for row in odd if int(positions[row]) + d in at][:_FITTED]
        if len(rows) < max(4, min(_FITTED, 0.9 * len(odd))):
            continue
        ours, theirs = np.array(rows, np.int64).T
        for j, state in enumerate(aux):
            if (j, d) == (found.slot, 0):
                continue
            x, y = values[ours], state[theirs]
            near = near_fits(x, y)
            plain = next((fit.residual for fit in near if fit.name == "identity"), 0.0)
            for fits in (near, far_fits(x, y) if plain >= _TURNED else ()):
                if fits and fits[0].residual < _SURE and (best is None or fits[0].score < best[0]):
                    best = fits[0].score, j, d, fits
    if best is None:
        return found
    _, j, d, fits = best
    fits = () if fits[0].name == "identity" else fits
    return replace(found, fits=fits, made_of=j if j != found.slot else None, shift=d or None)


def _in_prefill(differing: Bools, phases: Ints) -> bool:
    """Whether prefill's rows are among them, where there are any: after verify, the pass before may be a token before."""
    prefill = phases == Phase.DRAFT_EXTEND_PREFILL
    return not prefill.any() or bool(differing[prefill].any())


def _in_one_pass(shift: int, positions: Ints, passes: Ints, odd: Ints) -> bool:
    """Whether most rows hold a row of the same verify pass of the target, so that no pass before was read."""
    of = dict(zip(positions.tolist(), passes.tolist(), strict=True))
    same = [passes[row] >= 0 and of.get(int(positions[row]) + shift) == int(passes[row]) for row in odd]
    return 2 * int(np.sum(same)) > len(same)


def _shift(values: Floats, aux: Floats, positions: Ints, differing: Ints) -> int | None:
    """The d for which the differing rows hold aux of position p + d; None where no d explains nine of ten."""
    at = {int(p): row for row, p in enumerate(positions)}
    for d in (-1, 1, -2, 2):
        pairs = [(row, at[int(positions[row]) + d]) for row in differing if int(positions[row]) + d in at]
        if len(pairs) < max(4, 0.9 * len(differing)):
            continue
        ours, theirs = np.array(pairs, np.int64).T
        if same_rows(values[ours], aux[theirs]).mean() >= 0.9:
            return d
    return None


def is_state(rows: Floats) -> Bools:
    """Rows that can be a state: finite, and not zero everywhere."""
    return np.asarray(np.isfinite(rows).all(1) & rows.any(1), np.bool_)


def same_rows(x: Floats, y: Floats) -> Bools:
    """Rows that agree bit for bit (NaN agrees with the same NaN)."""
    if x.shape != y.shape:
        return np.zeros(len(x), np.bool_)
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    same: Bools = np.asarray((x.view(np.uint32) == y.view(np.uint32)).all(1), np.bool_)
    return same
