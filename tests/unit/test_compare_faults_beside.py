"""Faults that were silent, or misnamed, behind another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import compare_faults as made
import numpy as np
import pytest
from compare_world import bf16, dumped, make_world, served
from edited_captures import Floats, dump, faults, trace, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.hypotheses import halves
from drafttrace.compare.result import FAULT, NOTE
from drafttrace.tracer.capture import Capture

WORLD = make_world(layers=16, tokens=100)
NOISY = WORLD.noisy(0.004)
WIRING = (2, 7, 12)


def gained(rows: Floats) -> Floats:
    return rows * (1 + 0.06 * np.random.default_rng(0).standard_normal(rows.shape[1])).astype(np.float32)


def mixed(rows: Floats) -> Floats:
    return np.random.default_rng(3).permuted(rows, axis=1)


@pytest.mark.parametrize(
    ("wiring", "named", "slot"),
    [((2, 8, 12), "boundary-offset", 1), ((2, 12, 13), "boundary-offset", 2), ((7, 12, 16), "slot-shift", 1)],
)
def test_a_gain_on_the_reference_s_slot_is_told_beside_its_wiring(
    wiring: tuple[int, ...], named: str, slot: int
) -> None:
    """A slot that stands at another boundary was not looked at for a gain."""
    found = diff(served(WORLD, WIRING), with_slot(dumped(NOISY, wiring), slot, gained))
    assert named in faults(found)
    gains = [f for f in found.findings if f.id == "norm-gain"]
    assert [f.slots for f in gains] == [(slot,)] and gains[0].summary.startswith(f"The reference's slot {slot} ")


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_a_gain_is_told_beside_slots_in_another_order(pair: str) -> None:
    found = diff(trace(pair), with_slot(made.permuted((1, 0, 2))(dump(pair)), 0, gained))
    assert faults(found) == ["slot-permutation", "norm-gain"]


def test_the_last_state_is_looked_at_under_a_shift_of_all_rows() -> None:
    """What differs in it was taken for a consequence of the shift."""
    moved = made.shifted_states(1)(dumped(NOISY, WIRING))
    left = served(WORLD, WIRING)
    assert faults(diff(left, moved)) == ["token-shift"]
    assert faults(diff(left, made.over_last(mixed)(moved))) == ["token-shift", "unexplained"]
    slots_alone = made.over_slots(lambda x: np.roll(x, 1, axis=0))(dumped(NOISY, WIRING))
    assert faults(diff(left, slots_alone)) == ["token-shift"]


def with_embed(capture: Capture, change: Callable[[Floats], Floats]) -> Capture:
    assert capture.embed is not None
    return replace(capture, embed=replace(capture.embed, rows=bf16(change(capture.embed.rows.floats().copy()))))


@pytest.mark.parametrize("reference", [True, False])
def test_a_negated_embedding_is_a_fault(reference: bool) -> None:
    """It was a match with a note: "a target that multiplies its embedding looks like that"."""
    found = diff(with_embed(trace("llama"), lambda x: -x), dump("llama") if reference else None)
    assert faults(found) == ["scale"] and "times -1" in found.findings[0].summary and found.exit_code == 1


def of_positions(capture: Capture) -> Capture:
    """The embedding's tap before the positions are added."""
    width, last = capture.slots[0].rows.width, int(capture.table.position.max())
    added = np.random.default_rng(1).standard_normal((last + 1, width)).astype(np.float32)
    return with_embed(capture, lambda x: x - added[capture.table.position] * np.abs(x).mean())


@pytest.mark.parametrize("known", ["config", "rows"])
def test_learned_positions_are_no_fault_of_the_embedding(known: str) -> None:
    """OPT adds them to its embedding before layer 0: "none of the known causes fits"."""
    left = replace(trace("llama"), draft=None, probes=())
    if known == "config":
        left = replace(left, about={**left.about, "target_config": {"model_type": "opt"}})
    else:
        world = make_world(layers=16, tokens=100)
        plain = served(world, WIRING, prompt=40)
        rejected = plain.table.accepted == 0
        assert rejected.sum() >= 4
        left = plain
    for reference in (None, dump("llama") if known == "config" else dumped(NOISY, WIRING)):
        found = diff(of_positions(left), reference)
        told = [f for f in found.findings if f.evidence.get("of") == "embed"]
        assert [f.severity for f in told] == [NOTE] and "adds positions" in told[0].summary, found.findings
        assert not [f for f in found.findings if f.severity == FAULT]


def test_other_embeddings_are_none_of_positions() -> None:
    found = diff(with_embed(served(WORLD, WIRING, prompt=40), mixed), None)
    assert [f.id for f in found.findings if f.severity == FAULT] == ["unexplained"]


@pytest.mark.parametrize("step", [2, 3, 4])
def test_no_period_falls_on_one_half_alone(step: int) -> None:
    """Fits were made on the even rows and judged on the odd ones: garbage in every even row took all of them."""
    made_on, judged = halves(96)
    assert sorted([*made_on, *judged]) == list(range(96)) and len(made_on) == len(judged)
    for start in range(step):
        share = np.isin(np.arange(start, 96, step), made_on).mean()
        assert 0.25 < share < 0.75
    assert all(np.array_equal(a, b) for a, b in zip(halves(96), (made_on, judged), strict=True))


def test_a_factor_is_told_beside_garbage_in_every_third_row() -> None:
    def change(x: Floats) -> Floats:
        x = 1.5 * x
        x[::3] = mixed(x[::3])
        return x

    found = diff(served(WORLD, WIRING), with_slot(dumped(NOISY, WIRING), 1, change))
    assert "scale" in faults(found)


@pytest.mark.parametrize("side", ["left", "reference"])
def test_a_row_that_was_copied_from_the_same_token_is_told(side: str) -> None:
    """Equal rows of equal tokens said nothing, also where the other side's differ: it was a match."""
    left, reference = trace("llama"), dump("llama")
    first, second = (int(np.flatnonzero(left.table.position == p)[0]) for p in (7, 43))
    assert left.table.token_id[first] == left.table.token_id[second]
    here, there = (first, second) if side == "left" else (7, 43)

    def copied(x: Floats) -> Floats:
        x[there] = x[here]
        return x

    changed = with_slot(left if side == "left" else reference, 1, copied)
    found = diff(*((changed, reference) if side == "left" else (left, changed)))
    assert faults(found) == ["stale-rows"], [(f.id, f.summary) for f in found.findings]
    assert found.findings[0].slots == (1,) and not any("few_rows" in f.evidence for f in found.findings)


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2)])
def test_a_shift_and_another_order_of_the_reference_s_slots_are_both_told(order: tuple[int, ...]) -> None:
    found = diff(served(WORLD, WIRING), made.permuted(order)(dumped(NOISY, (0, 2, 7))))
    assert sorted(faults(found)) == ["slot-permutation", "slot-shift"]
    shift = next(f for f in found.findings if f.id == "slot-shift")
    assert "the embedding (B0) that training fed is missing" in shift.summary and "B12" in shift.summary


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_a_gain_of_one_of_two_exchanged_slots_is_one_finding_without_a_sweep(pair: str) -> None:
    """The slot was told as a gain of the other side's, and that one as a gain of this: three findings for two faults."""
    left = replace(trace(pair), boundaries={}, embed=None)
    found = diff(left, with_slot(made.permuted((1, 0, 2))(dump(pair)), 0, lambda x: gained(gained(gained(x)))))
    assert sorted(faults(found)) == ["norm-gain", "slot-permutation"], [(f.id, f.summary) for f in found.findings]


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_a_last_state_that_is_no_boundary_is_told(pair: str) -> None:
    """A note that it is declared as an early one, or that nobody declared it, silenced that it is none at all."""
    assert faults(diff(trace(pair), dump(pair))) == []
    found = diff(trace(pair), made.over_last(mixed)(dump(pair)))
    assert faults(found) == ["unexplained"] and found.findings[0].summary.startswith("The last state differs")
