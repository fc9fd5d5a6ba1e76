"""What a conversion does not carry over is refused, and where it was given up on purpose, the answer names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dump_layouts as made
import pytest
import torch
from convert_dumps import KNOWN, specforge, v1
from safetensors import safe_open
from safetensors.torch import save_file

from drafttrace.tracer.convert import Converted, convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture

N = made.LAYERS
IDS = Request(layers=N, layer_ids=(1, 3, 4))


def told(source: Path, out: Path, to: str, lose: list[str], request: Request = KNOWN, **more: Any) -> Converted:
    return convert(str(source), out, to, lose=lose, request=request, **more)


def test_target_probs_of_automodel_are_refused_and_named(tmp_path: Path) -> None:
    """They were gone, and the answer named the padding alone."""
    (tmp_path / "am").mkdir()
    source = made.write_am_eagle3(tmp_path / "am")
    one, lose = f"{source}#0", ["first-token"]
    with pytest.raises(
        DrafttraceError, match=r"besides tokens, states and mask: .*target_probs.*--lose other-fields"
    ):
        convert(one, tmp_path / "x.safetensors", "safetensors", lose=lose)
    done = convert(one, tmp_path / "x.safetensors", "safetensors", lose=[*lose, "other-fields"])
    assert any(what.startswith("the field target_probs (") for what in done.left_out)
    assert "1 unknown token ids, with 0 in their place" in done.left_out
    assert done.to_json()["left_out"] == list(done.left_out)


def test_logits_in_the_place_of_a_last_state_are_refused_and_named(tmp_path: Path) -> None:
    source = made.write_sf_logits(tmp_path)
    lose = ["loss-mask"]
    with pytest.raises(DrafttraceError, match=r"hidden_state \(fp32 .*--lose other-fields"):
        told(source, tmp_path / "x.h5", "trace", lose, IDS)
    done = told(source, tmp_path / "x.h5", "trace", [*lose, "other-fields"], IDS)
    assert any(what.startswith("the field hidden_state (fp32 [") for what in done.left_out)
    assert "the loss mask" in done.left_out


@pytest.mark.parametrize("write", [made.write_as_eagle3, made.write_sf_eagle3, made.write_mo])
def test_unknown_fields_of_a_file_are_refused_and_named(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    value = torch.load(path, weights_only=True)
    length = value["input_ids"].shape[-1]
    value |= {"inputs_embeds": torch.ones(1, length, 5), "position_ids": torch.arange(length)[None], "note": "mine"}
    torch.save(value, path)
    capture = open_capture(str(path), request=IDS)
    assert capture.unread["inputs_embeds"] == f"fp32 [1, {length}, 5]"
    assert (capture.unread["position_ids"], capture.unread["note"]) == ("", "")
    lose = ["loss-mask", "layer-ids"]
    with pytest.raises(DrafttraceError, match=r"besides tokens, states and mask: inputs_embeds \(fp32"):
        told(path, tmp_path / "x.h5", "trace", lose, IDS)
    done = told(path, tmp_path / "x.h5", "trace", [*lose, "other-fields"], IDS)
    assert f"the field inputs_embeds (fp32 [1, {length}, 5])" in done.left_out
    assert any("position_ids" in what and "note" in what for what in done.left_out)
    value["position_ids"] = torch.arange(length)[None] + 7  # not the numbers of the rows
    torch.save(value, path)
    assert open_capture(str(path), request=IDS).unread["position_ids"] == f"int64 [1, {length}]"


def test_no_layout_calls_its_own_states_unread(tmp_path: Path) -> None:
    """Only what no capture holds: probabilities, logits, embeddings of the input, and names and counters."""
    tensors = {}
    for number, case in enumerate(made.CASES):
        root = tmp_path / str(number)
        root.mkdir()
        path = case.write(root)
        capture = open_capture(str(path), sample=0, request=Request(**case.request))
        tensors[case.id] = {name for name, what in capture.unread.items() if what}
    rest = {case: names for case, names in tensors.items() if names}
    assert set(rest) <= {"AM-EAGLE3", "SF-D5DE56F7", "SF-LOGITS", *(case for case in rest if "logits" in case)}, (
        rest
    )


def test_everything_that_is_given_up_is_named(tmp_path: Path) -> None:
    dump = v1(tmp_path / "v1", range(2))
    done = told(dump, tmp_path / "st", "safetensors", ["loss-mask", "last-state"])
    assert done.left_out == ("the last state 'hidden_states[3]' (2 samples)", "the loss mask (2 samples)")
    done = told(dump, tmp_path / "again", "speculators-v1", ["layer-ids"])
    assert done.left_out == ("the layer ids (the wiring [B2, B4, B5], the last state B8) (2 samples)",)
    done = told(specforge(tmp_path / "sf", range(2)), tmp_path / "v1b", "trace", ["loss-mask"])
    assert done.left_out == ("the loss mask (2 samples)",)


def test_boundaries_that_are_given_up_are_counted_and_named(tmp_path: Path) -> None:
    source = made.write_drafttrace(tmp_path)
    with safe_open(source, "pt") as file:
        held, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    metadata["slots"] = json.dumps(json.loads(metadata["slots"])[:1])
    save_file(held, source, metadata)
    assert open_capture(str(source)).boundaries
    done = told(source, tmp_path / "v1", "speculators-v1", ["boundaries"], mask="ones")
    assert any("boundaries besides the slots, first B" in what for what in done.left_out), done.left_out


def test_what_is_given_up_is_named_by_a_run_that_goes_on(tmp_path: Path) -> None:
    """Samples of the first run are not written again, and what they lost is told all the same."""
    dump = v1(tmp_path / "v1", range(3))
    whole = (dump / "data_2.pt").read_bytes()
    (dump / "data_2.pt").write_bytes(whole[:-100])
    with pytest.raises(DrafttraceError, match="after 2 of 3 samples"):
        told(dump, tmp_path / "out", "safetensors", ["loss-mask"])
    (dump / "data_2.pt").write_bytes(whole)
    assert "the loss mask (3 samples)" in told(dump, tmp_path / "out", "safetensors", ["loss-mask"]).left_out
