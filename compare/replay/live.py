"""Where a live draft and its replay part: embedding, incoming state, fc, outgoing state, proposals, step by step.

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

from drafttrace.compare.replay.blame import Blame, blame_logits, blame_proposals, blame_state
from drafttrace.compare.replay.loading import Replayer, step_tokens
from drafttrace.compare.replay.model import Reading, StepOut
from drafttrace.compare.replay.proposals import ProposedBy, proposed_by
from drafttrace.compare.replay.rounds import expected_lengths
from drafttrace.compare.replay.stages import (
    EMBED_IN,
    HIDDEN_IN,
    LOGITS,
    PROPOSAL,
    Stage,
    held_rows,
    listed_ids,
    logits_stage,
    proposal_stage,
    row_local,
    tensor_stage,
)
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.replay.texts import Key, Text
from drafttrace.tracer.capture import Accepted, Capture, DraftRows, Ints, Phase
from drafttrace.tracer.rows import DType, Floats

_FORMATS = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16}
_EXTEND = (Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY)


@dataclass(frozen=True)
class LiveComparison:
    """All stages in the order of the computation, and the first at which they part (None: they agree).

    accept_lengths: observed per round, bonus included. steps: draft steps of the server, as the trace shows them.
    number_format: what the server's draft computes in, and so the replay here. layers: of the draft. proposed_by: the head
    or map that explains the proposals, where they are the first to part. blame: the parts of the draft that the fault may
    lie in, where a state or the proposals are the first to part and no other head or map explains them. lacking: of the
    first so many rows of the text the draft's attention saw tokens that the replay has no states of; there only what a
    row makes by itself is compared. expected_lengths: what ``accept_lengths`` have to be by the proposals and the text,
    None for a round that the text's end cuts; () where that does not follow (see ``rounds``).
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
    lacking: int = 0
    expected_lengths: tuple[int | None, ...] = ()

    @property
    def contradicted(self) -> tuple[int, ...]:
        """The rounds, from 0, whose observed accept length is not the one that follows from proposals and text."""
        pairs = zip(self.accept_lengths, self.expected_lengths, strict=False)
        return tuple(k for k, (seen, due) in enumerate(pairs) if due is not None and seen != due)

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
    model, stages = replayer.model, list[Stage | None]()
    slots = [torch.from_numpy(text.state(key)) for key in wiring]
    fc_in = model.fc_in(slots, switches)
    fc_out = model.fc(fc_in)
    done = model.steps(fc_out[None], reading, switches)
    targets, drafted = replayer.targets(switches), _drafted(capture, text)
    lacking = text.rows_lacking(switches.windows, replayer.config.layers)
    for step, (rows, live) in sorted((step, pairs) for (step, _), pairs in _grouped(places).items()):
        made: dict[str, Floats] = {EMBED_IN: reading.table[reading.place[step]].to(number_format).float().numpy()}
        if step == 0:
            made |= {HIDDEN_IN: torch.cat(slots, -1).numpy(), "fc_in": fc_in.numpy(), "fc_out": fc_out.numpy()}
        else:
            made[HIDDEN_IN] = done[step - 1].handed[0].numpy()
        made["hidden_out"] = done[step].handed[0].numpy()
        known = {EMBED_IN: (tokens[step][rows] >= 0) & (tokens[step][rows] < replayer.parts.vocabulary)}
        whole = rows >= lacking
        for name in made:
            sure = np.ones(len(rows), bool) if row_local(name, step) else whole
            stages.append(tensor_stage(step, name, made[name][rows], draft, live, known.get(name, sure) & sure))
        rows, live = rows[whole], live[whole]
        scores = model.logits(done[step].normed[0]).numpy()[rows]
        stages.append(proposal_stage(step, rows, targets[scores.argmax(-1)], draft, live, drafted))
        stages.append(logits_stage(step, scores, targets, draft, live))
    kept = tuple(stage for stage in stages if stage is not None)
    parted = next((stage for stage in kept if stage.parted), None)
    explained, blame = None, None
    if parted is not None:
        rows, live = _grouped(places)[parted.step, 0]
        seen = _Seen(replayer, draft, rows[rows >= lacking], live[rows >= lacking], switches)
        explained, blame = seen.explained(parted, done[parted.step], fc_out, reading)
    follows = _topk(draft) == 1 and not lacking and not text.left_out
    return LiveComparison(
        stages=kept,
        parted=parted,
        accept_lengths=_accept_lengths(capture),
        steps=draft_steps(capture),
        topk=_topk(draft),
        number_format=str(kind),
        layers=replayer.config.layers,
        proposed_by=explained,
        blame=blame,
        lacking=lacking,
        expected_lengths=expected_lengths(capture, text, drafted) if follows else (),
    )


def _accept_lengths(capture: Capture) -> tuple[int, ...]:
    request = capture.about.get("request")
    counts = request.get("accept_counts") if isinstance(request, dict) else None
    return tuple(int(k) for k in counts) if isinstance(counts, list) else ()


@dataclass(frozen=True)
class _Seen:
    """One step as a server ran it: rows of the text, and the draft rows ``live`` of the trace that computed them."""

    replayer: Replayer
    draft: DraftRows
    rows: Ints
    live: Ints
    switches: Switches

    def explained(
        self, parted: Stage, done: StepOut, fc_out: torch.Tensor, reading: Reading
    ) -> tuple[ProposedBy | None, Blame | None]:
        """The head or map that explains the proposals, else the parts of the draft that the fault may lie in."""
        by = self.proposed_by(done) if parted.tensor == PROPOSAL else None
        return by, self.blame(parted, done, fc_out, reading) if by is None else None

    def proposed_by(self, done: StepOut) -> ProposedBy | None:
        """The head or map that explains the proposals."""
        normed = done.normed[0][torch.from_numpy(self.rows)]
        return proposed_by(self.replayer, normed, self.draft, self.live, self.switches)

    def blame(self, parted: Stage, done: StepOut, fc_out: torch.Tensor, reading: Reading) -> Blame | None:
        """The parts that the fault may lie in; None before the draft's layers, where the tensor's name says it, and
        where only some rows part: weights are the same for all."""
        if not parted.whole:
            return None
        if parted.tensor == PROPOSAL:
            return blame_proposals(self.replayer, done, self.rows, self.draft, self.live, self.switches)
        if parted.tensor == LOGITS:
            return self._blame_logits(done)
        if parted.tensor != "hidden_out":
            return None
        kept = held_rows(self.draft, "hidden_out", self.live)
        theirs = self.draft.tensors["hidden_out"].take(self.live[kept])

        def silenced(parts: Sequence[str]) -> torch.Tensor:
            first = replace(reading, place=reading.place[:1])
            return self.replayer.model.steps(fc_out[None], first, self.switches, silent=parts)[0].handed[0]

        silence = silenced if parted.step == 0 else None
        before = () if "fc_out" in self.draft.tensors else ("fc",)
        return blame_state(self.replayer, done, self.rows[kept], theirs, self.switches, silence, before)

    def _blame_logits(self, done: StepOut) -> Blame:
        kept = held_rows(self.draft, "topk_ids", self.live)
        ids = listed_ids(self.draft, self.live[kept], self.replayer.targets(self.switches))
        theirs = self.draft.tensors["topk_logits"].take(self.live[kept])
        before = "hidden_out" in self.draft.tensors
        return blame_logits(self.replayer, done, self.rows[kept], ids, theirs, self.switches, before)


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
