"""``drafttrace diff TRACE``: what fc, the embedding and the slots themselves show, which was 'unexplained' or a match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16
from edited_captures import Floats, columns_of, draft_of, faults, in_phase, trace, with_draft, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.result import NOTE, Finding
from drafttrace.tracer.capture import Capture, Phase

PAIRS = pytest.mark.parametrize("pair", ["kimi", "llama"])


def only(left: Capture, name: str, slots: tuple[int, ...]) -> Finding:
    result = diff(left, None)
    assert faults(result) == [name], [(f.id, f.summary) for f in result.findings]
    found = result.findings[0]
    assert found.slots == slots and result.exit_code == 1, found
    return found


def turned(width: int) -> Callable[[Floats], Floats]:
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0].astype(np.float32)
    return lambda values: values @ q


def reread(values: Floats) -> Floats:
    return bf16(values).raw(0, len(values)).view(np.float16).astype(np.float32)


@PAIRS
def test_fc_input_read_as_fp16_is_named(pair: str) -> None:
    only(with_draft(trace(pair), "fc_in", reread), "dtype-reinterpretation", (0, 1, 2))


@PAIRS
def test_a_rotated_slot_of_fc_input_is_named(pair: str) -> None:
    left = trace(pair)
    columns = columns_of(left, 1)
    width = left.slots[0].rows.width
    only(with_draft(left, "fc_in", turned(width), columns=columns), "rotation", (1,))


@PAIRS
def test_a_broken_slot_of_fc_input_is_not_unexplained_besides(pair: str) -> None:
    left = trace(pair)

    def one_nan(values: Floats) -> Floats:
        values[5, 3] = np.nan
        return values

    only(with_draft(left, "fc_in", np.zeros_like), "zero-rows", (0, 1, 2))
    only(with_draft(left, "fc_in", np.zeros_like, columns=columns_of(left, 1)), "zero-rows", (1,))
    only(with_draft(left, "fc_in", one_nan), "nan-inf", (0,))


@PAIRS
def test_slots_that_are_swapped_after_verify_alone_are_named_with_the_pass(pair: str) -> None:
    left, width = trace(pair), trace(pair).slots[0].rows.width

    def swapped(values: Floats) -> Floats:
        return np.concatenate([values[:, width : 2 * width], values[:, :width], values[:, 2 * width :]], axis=1)

    after = in_phase(left, Phase.DRAFT_EXTEND_VERIFY)
    found = only(with_draft(left, "fc_in", swapped, after), "slot-permutation", (0, 1))
    assert "in the draft's extend after verify alone" in found.summary
    assert "alone" not in only(with_draft(left, "fc_in", swapped), "slot-permutation", (0, 1)).summary


@PAIRS
def test_a_factor_is_told_with_the_pass_that_has_it(pair: str) -> None:
    left = trace(pair)
    after = in_phase(left, Phase.DRAFT_EXTEND_VERIFY)
    found = only(with_draft(left, "fc_in", lambda x: x * 4, after, columns_of(left, 2)), "scale", (2,))
    assert "a factor of 4, in the draft's extend after verify alone" in found.summary


@PAIRS
def test_a_slot_of_another_scale_in_another_place_is_both(pair: str) -> None:
    left, width = trace(pair), trace(pair).slots[0].rows.width

    def changed(values: Floats) -> Floats:
        return np.concatenate([3 * values[:, width : 2 * width], values[:, width:]], axis=1)

    result = diff(with_draft(left, "fc_in", changed), None)
    assert set(faults(result)) == {"slot-permutation", "scale"}, [(f.id, f.summary) for f in result.findings]
    assert "slot 0 of fc's input holds the target's slot 1" in result.findings[0].summary


@PAIRS
def test_an_embedding_times_the_root_of_the_hidden_size_is_named(pair: str) -> None:
    """It was a match: an embedding that agrees nowhere was taken for one of the draft's own."""
    width = trace(pair).slots[0].rows.width
    found = only(with_draft(trace(pair), "embed_in", lambda x: x * width**0.5), "scale", ())
    assert "the root of the hidden size" in found.summary
    only(with_draft(trace(pair), "embed_in", reread), "dtype-reinterpretation", ())
    # One of the draft's own.
    assert faults(diff(with_draft(trace(pair), "embed_in", turned(width)), None)) == []


@PAIRS
def test_a_recycled_state_times_a_factor_is_no_stale_row(pair: str) -> None:
    decode = in_phase(trace(pair), Phase.DRAFT_DECODE)
    found = only(with_draft(trace(pair), "hidden_in", lambda x: x * 2, decode), "scale", ())
    assert "a factor of 2" in found.summary


@PAIRS
@pytest.mark.parametrize("swept", [True, False], ids=["sweep", "no sweep"])
def test_two_equal_slots_are_named(pair: str, swept: bool) -> None:
    """aux, hidden_in and fc_in all agreed with one another: MATCH."""
    left = trace(pair) if swept else replace(trace(pair), boundaries={})
    first, second = columns_of(left, 1), columns_of(left, 2)

    def doubled(values: Floats) -> Floats:
        values[:, second] = values[:, first]
        return values

    extend = in_phase(left, Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY)
    left = with_slot(left, 2, lambda _: trace(pair).slots[1].rows.floats())
    left = with_draft(with_draft(left, "fc_in", doubled), "hidden_in", doubled, extend)
    found = only(left, "wrong-boundary", (2,) if swept else (1, 2))
    assert ("slot 2 holds B" in found.summary) == swept and "config" in found.remedy
    # A draft may have been trained on one boundary twice.
    slots = (*left.slots[:2], replace(left.slots[2], boundary=left.slots[1].boundary))
    assert faults(diff(replace(left, slots=slots), None)) == []


@PAIRS
def test_a_slot_one_boundary_late_is_named_by_the_trace_s_own_sweep(pair: str) -> None:
    left = trace(pair)
    said = left.slots[1].boundary
    assert said is not None
    late = left.boundaries[said + 1].floats()

    def moved(values: Floats) -> Floats:
        values[: len(late)] = late[: len(values)]
        return values

    left = with_slot(left, 1, moved)
    aux = left.slots[1].rows.floats()
    positions = {int(p): row for row, p in enumerate(left.table.position) if left.table.accepted[row] != 0}
    table = draft_of(left).table
    index = np.array([positions.get(int(p), 0) for p in table.position])
    left = with_draft(left, "fc_in", lambda _: aux[index], columns=columns_of(left, 1))
    result = diff(left, None)
    assert (
        "boundary-offset" in faults(result)
        and f"slot 1 holds B{said + 1} where the server says B{said}" in result.summary
    )


@PAIRS
def test_positions_that_are_off_after_verify_are_no_stale_rows(pair: str) -> None:
    """fc's input is right, and its rows are numbered one too high: 'rows of fc's input are copies'."""
    draft = draft_of(trace(pair))
    after = in_phase(trace(pair), Phase.DRAFT_EXTEND_VERIFY)
    table = replace(draft.table, position=np.where(after, draft.table.position + 1, draft.table.position))
    found = only(replace(trace(pair), draft=replace(draft, table=table)), "position-seam", ())
    assert "extend after verify are 1 too high" in found.summary


@PAIRS
def test_default_ids_are_told_without_a_dump(pair: str) -> None:
    left = trace(pair)
    wiring = {**left.about["wiring"], "source": "default"}
    left = replace(left, about={**left.about, "wiring": wiring})
    result = diff(left, None)
    [note] = [f for f in result.findings if f.id == "default-wiring"]
    assert note.severity == NOTE and result.exit_code == 0 and "only a training dump can tell" in note.summary
    config = {**left.about["draft_config"], "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    found = diff(replace(left, about={**left.about, "draft_config": config}), None).findings[0]
    assert (found.id, found.severity) == ("default-wiring", "fault") and "[1, 2, 3]" in found.summary


@PAIRS
def test_prefill_and_verify_may_have_a_cause_each(pair: str) -> None:
    """Two slots swapped after verify, and every row a token late: 'stale-rows' beside what is no stale row."""
    left, width = trace(pair), trace(pair).slots[0].rows.width
    table = draft_of(left).table
    extend = in_phase(left, Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY) & (table.accepted == 1)
    rows = np.flatnonzero(extend)
    rows = rows[np.argsort(table.position[rows], kind="stable")]

    def swapped(values: Floats) -> Floats:
        return np.concatenate([values[:, width : 2 * width], values[:, :width], values[:, 2 * width :]], axis=1)

    def late(values: Floats) -> Floats:
        moved = values.copy()
        moved[rows[1:]] = values[rows[:-1]]
        return moved

    after = in_phase(left, Phase.DRAFT_EXTEND_VERIFY)
    result = diff(with_draft(with_draft(left, "fc_in", swapped, after), "fc_in", late), None)
    assert set(faults(result)) == {"slot-permutation", "token-shift"}, [(f.id, f.summary) for f in result.findings]
    turned_late = with_draft(with_draft(left, "fc_in", turned(width), columns=columns_of(left, 1)), "fc_in", late)
    assert set(faults(diff(turned_late, None))) == {"rotation", "token-shift"}


@PAIRS
@pytest.mark.parametrize("off", [-1, 1, 2])
def test_positions_that_are_off_after_prefill_are_no_token_shift(pair: str, off: int) -> None:
    """The states were accused first, and then the positions after verify, which were right, the other way round."""
    draft = draft_of(trace(pair))
    far = f"{abs(off)} too {'high' if off > 0 else 'low'}"
    for phases, told in (
        ((Phase.DRAFT_EXTEND_PREFILL,), f"extend after prefill are {far}"),
        (
            (Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY),
            f"extend after prefill and after verify are {far}",
        ),
    ):
        moved = np.where(in_phase(trace(pair), *phases), draft.table.position + off, draft.table.position)
        left = replace(trace(pair), draft=replace(draft, table=replace(draft.table, position=moved)))
        assert told in only(left, "position-seam", ()).summary
    # A server that counts otherwise throughout is none whose positions are off.
    everywhere = replace(draft.table, position=draft.table.position + off)
    assert "position-seam" not in faults(diff(replace(trace(pair), draft=replace(draft, table=everywhere)), None))


@PAIRS
@pytest.mark.parametrize("rows", ["one step", "a whole round"])
def test_one_broken_seam_is_a_fault(pair: str, rows: str) -> None:
    """Positions of one round three too high were no word below half of the seams, with exit 0."""
    table = draft_of(trace(pair)).table
    steps = np.flatnonzero(in_phase(trace(pair), Phase.DRAFT_DECODE))
    moved = steps[table.round[steps] == table.round[steps[0]]] if rows == "a whole round" else steps[2:3]
    position = table.position.copy()
    position[moved] += 3
    left = replace(trace(pair), draft=replace(draft_of(trace(pair)), table=replace(table, position=position)))
    only(left, "position-seam", ())
    assert not faults(diff(trace(pair), None))
