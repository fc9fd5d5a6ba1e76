"""What the draft consumes against what was produced: rows a token off, and steps that start from an old state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from compare_world import bf16, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT
from drafttrace.tracer.capture import Capture, DraftRows, Phase, Probe, RowTable

WIDTH = 64
PROBES = (Probe("fc_in", 2, 2, 9, 0),)


def trace() -> Capture:
    left = served(make_world(layers=8, tokens=40), (1, 3, 6), prompt=30)
    return replace(left, probes=PROBES, about={**left.about, "request": {"accept_counts": [3, 3, 3]}})


def with_fc_in(left: Capture, offset: int) -> Capture:
    """Draft extend rows of the prompt that hold aux of position p + offset."""
    index = np.flatnonzero(left.table.phase == Phase.PREFILL)
    count = len(index)
    table = replace(
        RowTable.of_tokens(left.table.token_id[index]),
        position=left.table.position[index],
        phase=np.full(count, Phase.DRAFT_EXTEND_PREFILL, np.int64),
    )
    aux = np.concatenate([slot.rows.floats() for slot in left.slots], axis=1)[index]
    held = aux[np.clip(np.arange(count) + offset, 0, count - 1)]
    return replace(left, draft=DraftRows(table, {"fc_in": bf16(held)}, {"fc_in": np.ones(count, np.bool_)}))


def faults_of(left: Capture) -> list[str]:
    return [f.id for f in diff(left, None).findings if f.severity == FAULT]


def test_rows_that_are_handed_over_a_token_off_are_no_stale_rows() -> None:
    """A constant offset is one mistake of indexing, and was told as copies of other rows."""
    left = trace()
    assert faults_of(with_fc_in(left, 0)) == []
    for offset in (-1, 1, 2):
        found = diff(with_fc_in(left, offset), None).findings[0]
        assert found.id == "token-shift" and f"p{offset:+d}" in found.summary, found.summary


def test_a_pass_that_was_a_token_before_is_stale_and_no_shift() -> None:
    """With one token accepted per round, the rows of the pass before are those of position p - 1."""
    left = with_fc_in(trace(), 0)
    assert left.draft is not None
    table, held = left.draft.table, left.draft.tensors["fc_in"].floats().copy()
    phase, late = table.phase.copy(), np.arange(20, len(table))
    phase[late] = Phase.DRAFT_EXTEND_VERIFY
    held[late] = held[late - 1]
    table = replace(table, phase=phase)
    found = diff(
        replace(left, draft=DraftRows(table, {"fc_in": bf16(held)}, {"fc_in": np.ones(len(table), np.bool_)})), None
    )
    assert [f.id for f in found.findings if f.severity == FAULT] == ["stale-rows"]


def steps(left: Capture, stale: bool) -> Capture:
    """Rounds of one extend and three draft steps; the first step of each may start where the round before started."""
    rng = np.random.default_rng(0)
    rounds, per = 8, 4
    count = rounds * per
    out = rng.standard_normal((count, WIDTH)).astype(np.float32)
    taken = rng.standard_normal((count, WIDTH)).astype(np.float32)
    for row in range(count):
        if row % per:
            source = row - 1
            if stale and row % per == 1 and row > per:
                source -= per
            taken[row] = out[source]
    order = np.arange(count)
    decode = order % per > 0
    table = replace(
        RowTable.of_tokens(order),
        phase=np.where(decode, Phase.DRAFT_DECODE, Phase.DRAFT_EXTEND_VERIFY).astype(np.int64),
        position=30 + order // per + order % per,
        round=order // per + (~decode).astype(np.int64) - 1,
        step=np.where(decode, order % per - 1, -1),
        frame=order,
    )
    tensors = {"hidden_in": bf16(taken), "hidden_out": bf16(out)}
    return replace(left, draft=DraftRows(table, tensors, {name: np.ones(count, np.bool_) for name in tensors}))


def test_a_round_that_starts_from_an_old_state_is_seen_though_its_other_steps_are_right() -> None:
    """Only one step of three is wrong: less than half of all, and all of the first ones."""
    left = trace()
    assert faults_of(steps(left, stale=False)) == []
    found = diff(steps(left, stale=True), None).findings[0]
    assert found.id == "stale-rows" and "step 1 of a round" in found.summary, found.summary
    assert found.evidence["copies"] == 7 and found.confidence >= 0.9
