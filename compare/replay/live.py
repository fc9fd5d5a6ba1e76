"""Where a live draft and its replay part: fc's input, fc's output, the state, the proposals, step by step.

The replay reads the slots that the server handed over and the tokens that the server fed, and computes in the number
format of the server: in bf16 two of a thousand-odd tokens often have exactly the same logit, and only the same roundings
show which ones. Draft-decode rows of a trace are numbered from 0 and follow the step that draft extend computed, so
decode step k is replayed as step k + 1. In a tree only the first decode step's parents are known, and only those rows
are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from drafttrace.compare.replay.blame import Blame, blame_proposals, blame_state
from drafttrace.compare.replay.loading import Replayer, step_tokens
from drafttrace.compare.replay.model import Reading, StepOut
from drafttrace.compare.replay.proposals import ProposedBy, proposed_by
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.replay.texts import Key, Text
from drafttrace.tracer.capture import Accepted, Capture, DraftRows, Ints, Phase
from drafttrace.tracer.rows import DType, Floats

_PARTED_COSINE, _PARTED_AGREEMENT = 0.99, 0.9
_UNIT = 2.0**-8
"""bf16's rounding, the coarsest that a draft computes in. A trace in float32 may hold rounded or TF32 results, too, so
that no finer one can be expected of it."""
_LIMITS = {"fc_in": (8 * _UNIT, 4 * _UNIT), "fc_out": (8 * _UNIT, 4 * _UNIT), "hidden_out": (32 * _UNIT, 8 * _UNIT)}
"""Relative L2 and distance of the norm ratio from 1 that roundings explain: of one norm or product, or of a layer."""
_FORMATS = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16}
_EXTEND = (Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY)


@dataclass(frozen=True)
class Stage:
    """One tensor of one step, live against replayed: rows compared, cosine (None for proposals) or the share of equal
    first choices (None for tensors).

    rel_l2_p50, norm_ratio_p50: medians of ``|live - replayed| / |replayed|`` and ``|live| / |replayed|``, without which a
    tensor that is only scaled would pass; None for proposals and where no row is finite.
    equal_top1: the replay's first choice is the id that the server proposed. tied_top1: it is that, or one that had
    exactly the same logit on the server.
    """

    step: int
    tensor: str
    rows: int
    cosine_min: float | None
    cosine_p50: float | None
    equal_top1: float | None
    tied_top1: float | None = None
    rel_l2_p50: float | None = None
    norm_ratio_p50: float | None = None

    @property
    def parted(self) -> bool:
        """Whether live and replay are different things here."""
        if self.tied_top1 is not None:
            return self.tied_top1 < _PARTED_AGREEMENT
        if self.cosine_p50 is not None and self.cosine_p50 < _PARTED_COSINE:
            return True
        distance, scale = _LIMITS[self.tensor]
        return (self.rel_l2_p50 is not None and self.rel_l2_p50 > distance) or (
            self.norm_ratio_p50 is not None and abs(self.norm_ratio_p50 - 1) > scale
        )


@dataclass(frozen=True)
class LiveComparison:
    """All stages in the order of the computation, and the first at which they part (None: they agree).

    accept_lengths: observed per round, bonus included. steps: draft steps of the server, as the trace shows them.
    number_format: what the server's draft computes in, and so the replay here. layers: of the draft. proposed_by: the head
    or map that explains the proposals, where they are the first to part. blame: the parts of the draft that the fault may
    lie in, where a state or the proposals are the first to part and no other head or map explains them.
    """

    stages: tuple[Stage, ...]
    parted: Stage | None
    accept_lengths: tuple[int, ...]
    steps: int
    topk: int
    number_format: str
    layers: int
    proposed_by: ProposedBy | None = None
    blame: Blame | None = None

    @property
    def observed(self) -> float | None:
        """Mean accept length per round."""
        return float(np.mean(self.accept_lengths)) if self.accept_lengths else None

    @property
    def top1_agreement(self) -> float | None:
        """Share of proposals, over all steps, that are the very ids that the server proposed."""
        found = [(stage.rows, stage.equal_top1) for stage in self.stages if stage.equal_top1 is not None]
        rows = sum(count for count, _ in found)
        return sum(count * share for count, share in found) / rows if rows else None


def draft_steps(capture: Capture) -> int:
    """Draft steps per round that a trace shows (draft extend's own proposal included); 0 without draft rows."""
    if capture.draft is None:
        return 0
    table = capture.draft.table
    decode = table.step[table.phase == Phase.DRAFT_DECODE]
    return int(decode.max()) + 2 if len(decode) else 1


def compare_live(
    replayer: Replayer, capture: Capture, text: Text, wiring: Sequence[Key], switches: Switches
) -> LiveComparison | None:
    """Replay what the server did and compare; None where the trace has no draft rows or its slots do not fit."""
    draft = capture.draft
    if draft is None or len(draft.table) == 0 or len(wiring) != replayer.model.slots:
        return None
    kind = _number_format(draft)
    number_format = _FORMATS.get(kind, torch.float32)
    if number_format is not torch.float32:
        replayer = replace(replayer, model=replayer.model.rounded(number_format))
    places = _places(draft, text)
    steps = max((step for step, _ in places), default=0) + 1
    tokens = _tokens(draft, text, places, steps)
    reading = replayer.reading(np.stack(tokens), switches)
    model = replayer.model
    slots = [torch.from_numpy(text.state(key)) for key in wiring]
    fc_in = model.fc_in(slots, switches)
    fc_out = model.fc(fc_in)
    done = model.steps(fc_out[None], reading, switches)
    targets, drafted = replayer.targets(switches), _drafted(capture, text)
    stages = []
    for step, (rows, live) in sorted((step, pairs) for (step, _), pairs in _grouped(places).items()):
        made: dict[str, Floats] = {"hidden_out": done[step].handed[0].numpy()}
        if step == 0:
            made = {"fc_in": fc_in.numpy(), "fc_out": fc_out.numpy(), **made}
        stages += [_stage(step, name, made[name][rows], draft, name, live) for name in made]
        scores = model.logits(done[step].normed[0])
        stages.append(_proposals(step, rows, targets[scores.argmax(-1).numpy()][rows], draft, live, drafted))
    kept = tuple(stage for stage in stages if stage is not None)
    parted = next((stage for stage in kept if stage.parted), None)
    explained, blame = None, None
    if parted is not None:
        seen = _Seen(replayer, draft, *_grouped(places)[parted.step, 0], switches)
        if parted.tensor == "proposal":
            explained = seen.proposed_by(done[parted.step])
        if explained is None:
            blame = seen.blame(parted, done[parted.step], fc_out, reading)
    request = capture.about.get("request")
    counts = request.get("accept_counts") if isinstance(request, dict) else None
    return LiveComparison(
        stages=kept,
        parted=parted,
        accept_lengths=tuple(int(k) for k in counts) if isinstance(counts, list) else (),
        steps=draft_steps(capture),
        topk=_topk(draft),
        number_format=str(kind),
        layers=replayer.config.layers,
        proposed_by=explained,
        blame=blame,
    )


@dataclass(frozen=True)
class _Seen:
    """One step as a server ran it: rows of the text, and the draft rows ``live`` of the trace that computed them."""

    replayer: Replayer
    draft: DraftRows
    rows: Ints
    live: Ints
    switches: Switches

    def proposed_by(self, done: StepOut) -> ProposedBy | None:
        """The head or map that explains the proposals."""
        normed = done.normed[0][torch.from_numpy(self.rows)]
        return proposed_by(self.replayer, normed, self.draft, self.live, self.switches)

    def blame(self, parted: Stage, done: StepOut, fc_out: torch.Tensor, reading: Reading) -> Blame | None:
        """The parts that the fault may lie in; None before the draft's layers, where the tensor's name says it."""
        if parted.tensor == "proposal":
            return blame_proposals(self.replayer, done, self.rows, self.draft, self.live, self.switches)
        if parted.tensor != "hidden_out":
            return None
        present = self.draft.present.get("hidden_out")
        kept = np.ones(len(self.live), bool) if present is None else present[self.live]
        theirs = self.draft.tensors["hidden_out"].take(self.live[kept])

        def silenced(parts: Sequence[str]) -> torch.Tensor:
            first = replace(reading, place=reading.place[:1])
            return self.replayer.model.steps(fc_out[None], first, self.switches, silent=parts)[0].handed[0]

        silence = silenced if parted.step == 0 else None
        before = () if "fc_out" in self.draft.tensors else ("fc",)
        return blame_state(self.replayer, done, self.rows[kept], theirs, self.switches, silence, before)


def _number_format(draft: DraftRows) -> DType:
    """What the server's draft computes in: the format of its own results."""
    kinds = (draft.tensors[name].dtype for name in ("hidden_out", "fc_out", "fc_in") if name in draft.tensors)
    return next(kinds, DType.FP32)


def _drafted(capture: Capture, text: Text) -> dict[tuple[int, int], int]:
    """(step, row of the text) to the id that the server really drafted there: what its target then verified.

    A round of a chain verifies the bonus token, at the position after the row that drafted, and the drafted ones after it.
    """
    table, found = capture.table, dict[tuple[int, int], int]()
    if capture.draft is None or _topk(capture.draft) > 1:
        return found
    verified = np.flatnonzero((table.phase == Phase.VERIFY) & (table.token_id >= 0))
    for number in np.unique(table.round[verified]):
        rows = verified[table.round[verified] == number]
        first = int(table.position[rows].min())
        for i in rows[table.position[rows] > first]:
            found[int(table.position[i]) - first - 1, first - 1 - text.first] = int(table.token_id[i])
    return found


def _topk(draft: DraftRows) -> int:
    """Rows per round and decode step: 1 in a chain."""
    table = draft.table
    decode = np.flatnonzero(table.phase == Phase.DRAFT_DECODE)
    if not len(decode):
        return 1
    _, counts = np.unique(np.c_[table.round[decode], table.step[decode]], axis=0, return_counts=True)
    return int(counts.max())


def _places(draft: DraftRows, text: Text) -> dict[tuple[int, int], int]:
    """(step, row of the text) to the number of the draft row that computed it."""
    table, found = draft.table, {}
    chain = _topk(draft) == 1
    for i in range(len(table)):
        phase, step = int(table.phase[i]), int(table.step[i])
        if phase in _EXTEND and table.accepted[i] == Accepted.ACCEPTED:
            key = (0, int(table.position[i]) - text.first)
        elif phase == Phase.DRAFT_DECODE and (chain or step == 0):
            key = (step + 1, int(table.position[i]) - 1 - step - text.first)
        else:
            continue
        if 0 <= key[1] < text.rows and (phase in _EXTEND or key not in found):
            found[key] = i
    return found


def _tokens(draft: DraftRows, text: Text, places: Mapping[tuple[int, int], int], steps: int) -> list[Ints]:
    """The tokens that every step of every row reads: the server's own where it drafted there, else the text's."""
    found = [step_tokens(text.tokens, s, text.rows) for s in range(steps)]
    for (step, row), i in places.items():
        given = int(draft.table.token_id[i])
        if given >= 0:
            found[step][row] = given
    return found


def _grouped(places: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], tuple[Ints, Ints]]:
    """Per step: rows of the text and rows of the trace's draft table."""
    steps = sorted({step for step, _ in places})
    groups = {}
    for wanted in steps:
        pairs = sorted((row, i) for (step, row), i in places.items() if step == wanted)
        groups[wanted, 0] = (np.array([r for r, _ in pairs], np.int64), np.array([i for _, i in pairs], np.int64))
    return groups


def _stage(step: int, tensor: str, made: Floats, draft: DraftRows, name: str, live: Ints) -> Stage | None:
    if name not in draft.tensors:
        return None
    present = draft.present.get(name)
    kept = np.ones(len(live), bool) if present is None else present[live]
    if not kept.any() or draft.tensors[name].width != made.shape[1]:
        return None
    theirs, mine = draft.tensors[name].take(live[kept]), made[kept]
    size, expected = np.linalg.norm(theirs, axis=1) + 1e-30, np.linalg.norm(mine, axis=1) + 1e-30
    cosine = (theirs * mine).sum(1) / (size * expected)
    cosine = np.where(np.isfinite(cosine), cosine, 0.0)
    return Stage(
        step,
        tensor,
        int(kept.sum()),
        float(cosine.min()),
        float(np.median(cosine)),
        None,
        rel_l2_p50=_median(np.linalg.norm(theirs - mine, axis=1) / expected),
        norm_ratio_p50=_median(size / expected),
    )


def _median(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _proposals(
    step: int, rows: Ints, mine: Ints, draft: DraftRows, live: Ints, drafted: Mapping[tuple[int, int], int]
) -> Stage | None:
    """The replay's first choices against the server's.

    The server's own are the ids that its target verified; in rows from which nothing was drafted, the first of the best
    logits, as its argmax takes it (a top-k lists equal ones in any order).
    """
    if "topk_ids" not in draft.ids:
        return None
    present = draft.present.get("topk_ids")
    kept = np.ones(len(live), bool) if present is None else present[live]
    if not kept.any():
        return None
    listed, chosen = draft.ids["topk_ids"][live[kept]], mine[kept]
    best = np.zeros(listed.shape, bool)
    best[:, 0] = True
    if "topk_logits" in draft.tensors:
        logits = draft.tensors["topk_logits"].take(live[kept])[:, : listed.shape[1]]
        best[:, : logits.shape[1]] = logits == logits[:, :1]
    order = draft.ids["topk_draft_ids"][live[kept]] if "topk_draft_ids" in draft.ids else listed
    argmax = np.where(best, order, np.iinfo(np.int64).max).argmin(1)
    theirs = listed[np.arange(len(listed)), argmax]
    for k, row in enumerate(rows[kept]):
        theirs[k] = drafted.get((step, int(row)), theirs[k])
    equal = theirs == chosen
    tied = equal | ((listed == chosen[:, None]) & best).any(1)
    return Stage(step, "proposal", int(kept.sum()), None, None, float(equal.mean()), float(tied.mean()))
