"""Checks inside one trace, without any reference: what the target produced against what the draft consumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drafttrace.compare.about import config_number
from drafttrace.compare.broken import CONSTANT, BrokenTap, Measured, find_broken
from drafttrace.compare.draft_embed import compare_embedding, own_b0
from drafttrace.compare.fc_input import (
    EXTEND,
    MAX_ROWS,
    FcSlot,
    check_fc_in,
    is_state,
    position_offsets,
    same_rows,
)
from drafttrace.compare.hypotheses import Fit, explain
from drafttrace.compare.kernels.blocks import hash_rows
from drafttrace.compare.measure import BLOCK_BYTES, Bools
from drafttrace.compare.own_slots import OwnSlot, own_slots
from drafttrace.tracer.capture import Accepted, Capture, DraftRows, Ints, Phase, RowTable

_TORN, _TORN_SHARE = 3, 0.2  # tokens with several embeddings, at least, and their share of those that occur again


@dataclass(frozen=True)
class Seam:
    """Draft-decode positions after an extend: round, last position of the extend, positions of the steps."""

    round: int
    last: int
    steps: tuple[int, ...]

    @property
    def broken(self) -> bool:
        """Whether the steps do not follow the extend, one by one."""
        return any(step != self.last + 1 + number for number, step in enumerate(self.steps))


@dataclass(frozen=True)
class Recycled:
    """The state that a draft-decode step takes up against the one that the step before left behind.

    rows, equal: all steps. fits: how the taken-up state follows from the left-behind one where they differ. by_step:
    (rows, equal) of every step. copies: rows that differ and take up what some earlier pass left behind.
    """

    rows: int
    equal: int
    fits: tuple[Fit, ...]
    by_step: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    copies: int = 0


@dataclass(frozen=True)
class VocabMap:
    """The draft's ids before and after the vocabulary map, as its top-k rows show them.

    seen: different draft ids seen. identity: all stand for themselves. clashes: target ids that two draft ids mean.
    outside: ids beyond the target's vocabulary. doubled: neighbouring ids are never closer than twice their distance,
    as absolute ids read as offsets give. draft_size / size: the vocabularies, None where no config says so.
    """

    seen: int
    identity: bool
    clashes: int
    outside: int
    doubled: bool
    draft_size: int | None
    size: int | None


@dataclass(frozen=True)
class Torn:
    """Tokens that the draft embeds now so, now so. tokens: how many, of ``repeated`` ones that occur more than once. moved:
    d where equal tokens have equal rows if every row is the one of the token d rows on; None where no d does that."""

    tokens: int
    repeated: int
    moved: int | None


@dataclass(frozen=True)
class InsideFacts:
    """What one trace says about itself.

    fc_in: per slot; empty where the draft's fc input was not recorded. fc_ran: False where the draft was seen but
    fc's input never was, None where no draft was recorded. norm_configured: the draft config asks for a norm before
    fc. seams: see :class:`Seam`. embed_equal: share of rows where the draft's embedding equals the target's, or
    its B0, for the same token, None where not comparable. broken: taps with rows that can be no state.
    offsets: by extend phase, how far its positions are off. slots: those that hold another state than the server says.
    embed_fit: how the draft's embedding follows from the target's where it differs. embed_torn: see :class:`Torn`.
    """

    fc_in: tuple[FcSlot, ...] = ()
    fc_ran: bool | None = None
    norm_configured: bool | None = None
    seams: tuple[Seam, ...] = ()
    embed_equal: float | None = None
    recycled: Recycled | None = None
    vocab: VocabMap | None = None
    broken: tuple[BrokenTap, ...] = ()
    offsets: Mapping[str, int] = field(default_factory=dict)
    slots: tuple[OwnSlot, ...] = ()
    embed_fit: Fit | None = None
    embed_torn: Torn | None = None

    def alike(self, *names: str) -> frozenset[int | None]:
        """The slots (None for a tensor of none) of the taps of these names whose rows are all one."""
        return frozenset(b.slot for b in self.broken if b.kind == CONSTANT and b.tap.name.split("/")[0] in names)

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


def look_inside(trace: Capture, measured: Measured | None = None) -> InsideFacts:
    """All checks of one trace that need no reference. measured: what is known from comparing it with one."""
    draft = trace.draft
    broken = find_broken(trace, measured)
    norm = _norm_configured(trace.about.get("draft_config"))
    if draft is None or len(draft.table) == 0:
        return InsideFacts(fc_ran=_fc_fired(trace), norm_configured=norm, broken=broken, slots=own_slots(trace))
    present = draft.present.get("fc_in")
    recorded = "fc_in" in draft.tensors and present is not None and bool(present.any())
    seams = _seams(draft.table)
    broken_seams = [seam for seam in seams if seam.broken]
    offsets = position_offsets(trace, draft, 2 * len(broken_seams) <= len(seams))
    fc_in = check_fc_in(trace, draft, offsets) if recorded else ()
    fired = _fc_fired(trace)
    share, embed_fit = compare_embedding(trace, draft, own_b0(trace))
    return InsideFacts(
        fc_in=fc_in,
        fc_ran=recorded if fired is None else fired,
        norm_configured=norm,
        seams=seams,
        embed_equal=share,
        embed_fit=embed_fit,
        embed_torn=_torn(draft),
        recycled=_recycled(draft),
        vocab=_vocab_map(trace, draft),
        broken=broken,
        offsets={Phase(phase).name.lower(): d for phase, d in offsets.items()},
        slots=own_slots(trace),
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


def _is_norm(slot: FcSlot) -> bool:
    return bool(slot.fits) and slot.fits[0].name in {"normed", "rms"} and slot.fits[0].residual < 0.05


def _seams(table: RowTable) -> tuple[Seam, ...]:
    """Every round's decode positions against the end of the extend pass before them. A request that was retracted computes
    its rounds again, behind another extend."""
    extend = np.isin(table.phase, EXTEND) & (table.accepted == Accepted.ACCEPTED)
    passes = np.unique(table.frame[extend])
    decode = np.flatnonzero((table.phase == Phase.DRAFT_DECODE) & (table.position >= 0))
    behind = np.searchsorted(passes, table.frame[decode])
    seams = []
    for number in np.unique(table.round[decode]):
        for count in np.unique(behind[table.round[decode] == number]):
            here = decode[(table.round[decode] == number) & (behind == count)]
            if count == 0:
                continue
            last = table.position[extend & (table.frame == passes[count - 1])].max()
            # The branches of a tree stand at one position.
            steps = [int(table.position[here[table.step[here] == s]].min()) for s in np.unique(table.step[here])]
            seams.append(Seam(int(number), int(last), tuple(steps)))
    return tuple(seams)


def _torn(draft: DraftRows) -> Torn | None:
    """The tokens that have several embeddings in the draft; None where all have one. A few may have: pictures stand in the
    rows of a placeholder."""
    rows, present = draft.tensors.get("embed_in"), draft.present.get("embed_in")
    if rows is None or present is None:
        return None
    index = np.flatnonzero(present & (draft.table.token_id >= 0) & (draft.table.position >= 0))
    tokens, keys = draft.table.token_id[index], hash_rows(rows, index, BLOCK_BYTES)

    def torn(named: Ints) -> tuple[int, int]:
        pairs = np.unique(np.stack([named.astype(np.uint64), keys]), axis=1)[0]
        _, vectors = np.unique(pairs, return_counts=True)
        return int((vectors > 1).sum()), int((np.unique(named, return_counts=True)[1] > 1).sum())

    count, repeated = torn(tokens)
    if count < _TORN or count < _TORN_SHARE * repeated:
        return None
    moved = [d for d in (-1, 1) if torn(np.roll(tokens, -d))[0] <= _TORN_SHARE * count]
    return Torn(count, repeated, moved[0] if moved else None)


def _recycled(draft: DraftRows) -> Recycled | None:
    """Every decode step's incoming state against the outgoing states of the pass before it."""
    taken, left = draft.tensors.get("hidden_in"), draft.tensors.get("hidden_out")
    if taken is None or left is None:
        return None
    table, width = draft.table, left.width
    here = draft.present.get("hidden_in", np.ones(len(table), np.bool_)) & (table.phase == Phase.DRAFT_DECODE)
    made = draft.present.get("hidden_out", np.ones(len(table), np.bool_))
    taken_rows, sources = [], []
    for row in np.flatnonzero(here)[:MAX_ROWS]:
        source = _source_of(table, made, int(row))
        if source is not None:
            taken_rows.append(int(row))
            sources.append(source)
    if not taken_rows:
        return None
    x = taken.take(np.array(taken_rows))[:, :width]
    candidates = [left.take(np.array(group)) for group in sources]
    sound = [bool(is_state(r[None]).all() and is_state(g).all()) for r, g in zip(x, candidates, strict=True)]
    if not any(sound):
        return None
    x, taken_rows = x[sound], [row for row, ok in zip(taken_rows, sound, strict=True) if ok]
    sources = [group for group, ok in zip(sources, sound, strict=True) if ok]
    candidates = [group for group, ok in zip(candidates, sound, strict=True) if ok]
    equal = np.array(
        [bool(same_rows(np.repeat(r[None], len(g), 0), g).any()) for r, g in zip(x, candidates, strict=True)]
    )
    single = np.array([len(g) == 1 for g in sources]) & ~equal
    fits = explain(x[single], np.stack([g[0] for g in candidates])[single]) if single.sum() >= 4 else ()
    steps = table.step[np.array(taken_rows)]
    by_step = {int(s): (int((steps == s).sum()), int(equal[steps == s].sum())) for s in np.unique(steps)}
    copies = 0
    if not equal.all():
        known = {row.tobytes() for row in left.take(np.flatnonzero(made))}
        copies = sum(x[row].tobytes() in known for row in np.flatnonzero(~equal))
    return Recycled(len(x), int(equal.sum()), fits, by_step, copies)


def _source_of(table: RowTable, made: Bools, row: int) -> list[int] | None:
    """The rows that a decode step may go on from: the step before it, or the extend pass' last accepted row."""
    step, number = int(table.step[row]), int(table.round[row])
    if step > 0:
        before = np.flatnonzero(
            made & (table.phase == Phase.DRAFT_DECODE) & (table.round == number) & (table.step == step - 1)
        )
        return [int(k) for k in before] or None
    extend = made & np.isin(table.phase, EXTEND) & (table.accepted == Accepted.ACCEPTED)
    earlier = np.flatnonzero(extend & (table.frame < table.frame[row]))
    if len(earlier) == 0:
        return None
    latest = earlier[table.frame[earlier] == table.frame[earlier].max()]
    return [int(latest[np.argmax(table.position[latest])])]


def _vocab_map(trace: Capture, draft: DraftRows) -> VocabMap | None:
    before, after = draft.ids.get("topk_draft_ids"), draft.ids.get("topk_ids")
    if before is None or after is None:
        return None
    present = draft.present.get("topk_ids", np.ones(len(before), np.bool_))
    pairs = np.unique(np.stack([before[present].ravel(), after[present].ravel()], axis=1), axis=0)
    pairs = pairs[pairs[:, 0] >= 0]
    if len(pairs) < 2:
        return None
    # Pseudonyms keep apart what was apart; they are of no vocabulary, and each side has its own.
    size = None if trace.redacted else config_number(trace, "target_config", "vocab_size")
    draft_size = config_number(trace, "draft_config", "draft_vocab_size")
    steps = np.diff(pairs, axis=0)
    return VocabMap(
        seen=len(pairs),
        identity=bool((pairs[:, 0] == pairs[:, 1]).all()),
        clashes=len(pairs) - len(np.unique(pairs[:, 1])),
        outside=int(((pairs[:, 1] >= size) | (pairs[:, 1] < 0)).sum()) if size is not None else 0,
        doubled=not trace.redacted and bool((steps[:, 1] >= 2 * steps[:, 0]).all()),
        draft_size=draft_size,
        size=size,
    )
