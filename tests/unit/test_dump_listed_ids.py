"""speculators v1 stores layers in ascending order, each once; its data_config.json has the list as the user gave it."""

from __future__ import annotations

import json
from pathlib import Path

import dump_layouts as made
import pytest
import torch

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture

STORED = (3, 5, 6, made.LAYERS)  # what write_spec_v1 stores, as B(k); its ids are 2, 4, 5, 7


def listed(folder: Path, ids: list[int]) -> str:
    path = made.write_spec_v1(folder)
    (folder / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": ids}}))
    return str(path)


@pytest.mark.parametrize("ids", [[7, 2, 5, 4], [5, 4, 2, 7], [2, 4, 4, 5, 7], [7, 2, 5, 2, 4]])
def test_ids_in_any_order_are_those_of_ascending_layers(ids: list[int], tmp_path: Path) -> None:
    """They were believed as given: every slot another boundary, and the last state an inner layer."""
    capture = open_capture(listed(tmp_path, ids))
    assert capture.wiring == STORED[:3]
    assert capture.last is not None and capture.last.boundary == STORED[3]
    assert "in ascending order" in capture.slots[0].source
    said = f"lists layer_ids {', '.join(map(str, ids))}, and speculators v1 stores every layer once, in ascending order"
    assert any(said in note and "read as 2, 4, 5, 7" in note for note in capture.notes)


@pytest.mark.parametrize("ids", [[2, 4, 5, 7], [2, 4, 5], [2, 2, 5, 7], [-1, 2, 4, 5]])
def test_ids_in_order_are_believed_without_a_word(ids: list[int], tmp_path: Path) -> None:
    capture = open_capture(listed(tmp_path, ids))
    assert capture.wiring == tuple(k + 1 for k in ids[:3])
    assert not any("in ascending order" in note for note in capture.notes)


@pytest.mark.parametrize("ids", [[2, -1, 4, 7], [5, 2, 4], [5, 2, 2, 7]])
def test_a_list_that_the_writer_never_makes_leaves_the_layers_unknown(ids: list[int], tmp_path: Path) -> None:
    capture = open_capture(listed(tmp_path, ids), request=Request(layers=made.LAYERS))
    assert capture.wiring == (None, None, None)
    assert capture.slots[0].source.startswith("ASSUMED default")
    assert any("out of order" in note and "say it with --layer-ids" in note for note in capture.notes)


def test_ids_of_the_user_that_go_down_are_believed_and_said(tmp_path: Path) -> None:
    given = Request(layer_ids=(5, 4, 2))
    capture = open_capture(listed(tmp_path, [2, 4, 5, 7]), request=given)
    assert capture.wiring == (6, 5, 3)
    assert any("speculators v1 stores slots in ascending order" in note for note in capture.notes)
    (tmp_path / "a").mkdir()
    path = made.write_spec_arrow(tmp_path / "a")
    capture = open_capture(str(path), request=given)
    assert capture.wiring == (5, 4, 2)
    assert any("vLLM stores slots in ascending order" in note for note in capture.notes)


def test_convert_writes_no_list_that_a_reader_would_sort(tmp_path: Path) -> None:
    parts = {name: made.state(k) for name, k in (("a", 6), ("b", 0), ("c", 3), ("z", made.LAYERS))}
    path = tmp_path / "x.pt"
    torch.save({"input_ids": made.tokens(), "loss_mask": made.loss_mask(), **parts}, path)

    def fields(*boundaries: int) -> FieldMap:
        return FieldMap(slots=("a", "b", "c"), tokens="input_ids", mask="loss_mask", last="z", last_norm="pre",
                        boundaries=boundaries)  # fmt: skip

    known = Request(layers=made.LAYERS)
    with pytest.raises(
        DrafttraceError, match=r"in ascending order.*\[B6, B0, B3\], then B8.*--to safetensors.*--lose"
    ):
        convert(str(path), tmp_path / "out", "speculators-v1", mapping=fields(6, 0, 3), request=known)
    assert not (tmp_path / "out").exists()
    convert(str(path), tmp_path / "out.safetensors", "safetensors", mapping=fields(6, 0, 3), request=known)
    assert open_capture(str(tmp_path / "out.safetensors")).wiring == (6, 0, 3)
    convert(
        str(path), tmp_path / "no", "speculators-v1", mapping=fields(6, 0, 3), request=known, lose=["layer-ids"]
    )
    assert not (tmp_path / "no/data_config.json").exists()
    convert(str(path), tmp_path / "up", "speculators-v1", mapping=fields(2, 3, 5), request=known)
    assert open_capture(str(tmp_path / "up/data_0.pt")).wiring == (2, 3, 5)
