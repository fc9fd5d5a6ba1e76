"""Integer reasoning about two wirings, and the ids that put one right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafttrace.compare.remedy import wiring_remedy
from drafttrace.compare.wiring import read

REMEDY_BLOCK = {"n": 61, "model_class": "DeepseekV3ForCausalLM", "sglang_version": "0.5.23"}


def test_the_incident_is_a_shift_and_then_an_offset() -> None:
    found = read((2, 30, 58), (0, 3, 31), 59)
    assert (found.shift, found.offset, found.moved, found.wrong) == (1, -1, (), ())
    assert found.order == (1, 2, 3)


def test_the_incident_of_older_releases_is_a_pure_shift() -> None:
    found = read((3, 31, 59), (0, 3, 31), 59)
    assert (found.shift, found.offset) == (1, 0)


@pytest.mark.parametrize("tail", [None, 61])
def test_the_shift_is_seen_without_the_dump_s_fourth_entry(tail: int | None) -> None:
    found = read((2, 30, 58), (0, 3, 31), tail)
    assert found.shift == 1


def test_an_extra_embedding_is_a_shift_the_other_way() -> None:
    found = read((0, 2, 8), (2, 8, 13), None)
    assert found.shift == -1 and found.order == (None, 0, 1)


def test_one_slot_off_by_one_is_named_alone() -> None:
    found = read((2, 9, 13), (2, 8, 13), 16)
    assert (found.moved, found.shift, found.offset, found.wrong) == ((1,), 0, 0, ())


def test_an_unrelated_boundary_is_wrong_not_moved() -> None:
    assert read((2, 8, 7), (2, 8, 13), 16).wrong == (2,)
    assert read((0, 1, 2), (2, 8, 13), 16).wrong == (0, 1, 2)


def test_a_permutation_beats_wrong_boundaries() -> None:
    found = read((8, 2, 13), (2, 8, 13), 16)
    assert found.permuted and found.order == (1, 0, 2)


def test_a_permutation_with_an_offset_is_both() -> None:
    found = read((9, 3, 14), (2, 8, 13), 16)
    assert found.permuted and found.offset == 1


def test_unknown_boundaries_prove_nothing() -> None:
    assert read((None, None, None), (2, 8, 13), None).same
    assert read((2, None, 13), (2, 8, 13), None).same


@given(st.lists(st.integers(0, 90), min_size=1, max_size=6, unique=True), st.integers(0, 90))
def test_equal_lists_agree(wiring: list[int], tail: int) -> None:
    assert read(wiring, wiring, tail).same


@given(st.lists(st.integers(2, 90), min_size=2, max_size=6, unique=True), st.sampled_from([-1, 1]))
def test_one_step_everywhere_is_one_offset(wiring: list[int], step: int) -> None:
    found = read([k + step for k in wiring], wiring, None)
    assert not found.same and not found.wrong
    assert found.cost <= 2.0


@pytest.mark.parametrize(
    ("rule", "wanted", "ids"),
    [
        ("plus_one_if_first_is_one", (0, 3, 31), "[0, 3, 31]"),
        ("plus_one_if_first_is_one", (2, 30, 58), "[1, 29, 57]"),
        ("plus_one", (0, 3, 31), "[-1, 2, 30]"),
        ("raw", (2, 30, 58), "[2, 30, 58]"),
    ],
)
def test_the_config_line_fits_the_class(rule: str, wanted: tuple[int, ...], ids: str) -> None:
    text = wiring_remedy(wanted, REMEDY_BLOCK | {"rule": rule})
    assert f'"eagle_aux_hidden_state_layer_ids": {ids}' in text
    assert "DeepseekV3ForCausalLM in SGLang 0.5.23" in text


def test_what_ids_cannot_say_is_served_by_the_plugin() -> None:
    text = wiring_remedy((31, 3, 0), REMEDY_BLOCK | {"rule": "plus_one"})
    assert "eagle_aux_hidden_state_layer_ids" not in text
    assert "drafttrace serve --wiring B31,B3,B0" in text


def test_without_a_rule_both_conventions_are_told() -> None:
    text = wiring_remedy((0, 3, 31), {})
    assert "[-1, 2, 30]" in text and "[0, 3, 31]" in text


def test_an_unknown_wiring_asks_for_a_sweep() -> None:
    assert "layer sweep" in wiring_remedy((0, None, 31), {})


def test_the_last_state_is_no_slot_of_a_shift() -> None:
    """B29 in slot 2 was called "one boundary early: B29 where training had B30"; training had B28 there, B30 was stored
    as the last state only."""
    found = read((16, 28, 29), (0, 16, 28), 30)
    assert (found.shift, found.offset, found.moved, found.wrong) == (1, 0, (), ())
    assert found.order == (1, 2, None)
    # Where it is the trainer's fourth boundary and fits, it is: the incident on both pairs.
    assert read((16, 28, 29), (0, 16, 28), 29).order == (1, 2, 3)
    assert read((2, 30, 58), (0, 3, 31), 59).offset == -1


@pytest.mark.parametrize("rule", ["plus_one", "raw"])
def test_a_wiring_given_to_the_server_is_put_right_there_and_not_in_the_config(rule: str) -> None:
    """While ``serve --wiring`` stands, no config is read: changing it and restarting the same way changes nothing."""
    block = REMEDY_BLOCK | {"rule": rule, "source": "override", "boundaries": [31, 61, 0]}
    text = wiring_remedy((0, 3, 31), block)
    assert "--wiring B31,B61,B0" in text and "drafttrace serve --wiring B0,B3,B31" in text
    assert "or without --wiring" in text
    assert "without --wiring" not in wiring_remedy((31, 3, 0), block)  # no config says that order
    config = wiring_remedy((0, 3, 31), block | {"source": "draft config"})
    assert config.startswith("In the draft's config.json")


@pytest.mark.parametrize(
    ("left", "reference", "shift", "order"),
    [
        ((8, 13, None), (2, 8, 13), 1, (1, 2, None)),
        ((8, 13, 15), (None, 8, 13), 1, (1, 2, None)),
        ((None, 2, 8), (2, 8, 13), -1, (None, 0, 1)),
    ],
)
def test_an_unlocated_slot_is_not_the_free_hole_of_a_permutation(
    left: tuple[int | None, ...], reference: tuple[int | None, ...], shift: int, order: tuple[int | None, ...]
) -> None:
    """The slot that nothing was known of was called the reference's slot that nobody else held, and a shift by one a
    permutation of all three."""
    found = read(left, reference, None)
    assert (found.shift, found.permuted, found.order) == (shift, False, order)
    exchanged = read((13, None, 2), (2, 8, 13), None)
    assert exchanged.permuted and exchanged.order == (2, 1, 0)


@pytest.mark.parametrize(
    ("left", "reference", "shift", "order"),
    [
        ((2, 7, 12), (0, 7, 2), 1, (2, 1, None)),
        ((2, 7, 12), (2, 0, 7), 1, (0, 2, None)),
        ((2, 7, 12), (12, 7, 16), -1, (None, 1, 0)),
        ((0, 3, 31), (3, 59, 31), -1, (None, 0, 2)),
    ],
)
def test_a_shift_of_slots_in_another_order_is_two_faults(
    left: tuple[int, ...], reference: tuple[int, ...], shift: int, order: tuple[int | None, ...]
) -> None:
    """Two slots were "other boundaries than training", and neither fault was named."""
    found = read(left, reference)
    assert (found.shift, found.permuted, found.order) == (shift, True, order)
    assert not found.wrong and not found.moved and not found.same


def test_one_wrong_slot_beside_another_order_is_no_shift() -> None:
    assert (read((2, 7, 12), (7, 2, 5)).shift, read((2, 7, 12), (7, 2, 5)).wrong) == (0, (2,))
    assert read((2, 7, 12), (7, 12, 2)).shift == 0 and read((2, 7, 12), (0, 2, 7)).permuted is False
