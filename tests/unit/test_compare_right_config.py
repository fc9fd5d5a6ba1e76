"""The remedy set the config to what it was already, where the capture differs from a config that is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from edited_captures import Floats, dump, faults, trace, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.remedy import live_boundaries, wiring_remedy
from drafttrace.tracer.capture import Capture

IDS = {"kimi": [0, 3, 31], "llama": [1, 7, 12]}
PAIRS = pytest.mark.parametrize("pair", ["kimi", "llama"])


def late(pair: str, by: int = 1) -> Capture:
    """Slot 1 is another boundary than the server says."""
    left = trace(pair)
    other = left.boundaries[(left.slots[1].boundary or 0) + by].floats()

    def moved(values: Floats) -> Floats:
        values[: len(other)] = other
        return values

    return replace(with_slot(left, 1, moved), draft=None)


def swapped(pair: str) -> Capture:
    left = trace(pair)
    one, two = left.slots[1], left.slots[2]
    slots = (left.slots[0], replace(one, rows=two.rows), replace(two, rows=one.rows))
    return replace(left, slots=slots, draft=None)


def wired(left: Capture, **changes: Any) -> Capture:
    return replace(left, about={**left.about, "wiring": {**left.about["wiring"], **changes}})


@PAIRS
@pytest.mark.parametrize("name", ["boundary-offset", "wrong-boundary", "slot-permutation"])
def test_a_config_that_is_right_is_left_as_it_is(pair: str, name: str) -> None:
    left = swapped(pair) if name == "slot-permutation" else late(pair, 1 if name == "boundary-offset" else 4)
    found = diff(left, dump(pair)).findings[0]
    assert found.id == name, found
    folder = left.about["server_args"]["speculative_draft_model_path"]
    assert found.remedy.startswith(f"{folder}/config.json is right for this training dump")
    assert str(IDS[pair]) in found.remedy and "leave it as it is" in found.remedy
    assert " set " not in found.remedy and "restart" not in found.remedy
    for place in ("SGLang version", "model class", "patched", "draft folder"):
        assert place in found.remedy


@PAIRS
def test_a_config_that_is_wrong_is_still_put_right(pair: str) -> None:
    left = trace(pair)
    other = [k + 1 for k in left.about["wiring"]["boundaries"]]
    slots = tuple(replace(s, boundary=k, rows=left.boundaries[k]) for s, k in zip(left.slots, other, strict=True))
    table = replace(left.table, **{n: getattr(left.table, n)[: len(slots[0].rows)] for n in vars(left.table)})
    wrong = replace(
        wired(left, boundaries=other), slots=slots, table=table, last=None, embed=None, draft=None, padded=None
    )
    found = diff(wrong, dump(pair)).findings[0]
    assert f'set "eagle_aux_hidden_state_layer_ids": {IDS[pair]}' in found.remedy


@PAIRS
def test_a_default_that_is_right_is_not_blamed_for_another_capture(pair: str) -> None:
    result = diff(wired(late(pair), source="default"), dump(pair))
    assert faults(result) == ["boundary-offset"]
    assert result.findings[0].remedy.startswith("The wiring that the server says it uses")
    given = diff(wired(late(pair), source="override"), dump(pair)).findings[0]
    assert given.remedy.startswith("--wiring B") and "is right for this training dump" in given.remedy


@PAIRS
def test_what_is_live_is_read_from_ids_and_rule_where_no_boundaries_stand(pair: str) -> None:
    block = dict(trace(pair).about["wiring"])
    said = tuple(block.pop("boundaries"))
    assert live_boundaries(block) == said
    assert "leave it as it is" in wiring_remedy(said, block)
    assert live_boundaries({"ids": [1, 7, 12]}) is None and live_boundaries({}) is None
