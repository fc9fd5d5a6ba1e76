"""Two states with the same numbers cannot be two boundaries, whoever says so, and no target is needed to see it."""

from __future__ import annotations

import json
from pathlib import Path

import dump_layouts as made
import pytest
import torch

from drafttrace.tracer.convert import convert
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.inspecting import Inspection, inspect_capture


def v1(folder: Path, states: list[int], ids: list[int]) -> Inspection:
    """A speculators v1 dump of these boundaries, declared as these."""
    torch.save({"input_ids": made.tokens(), "loss_mask": torch.ones(len(made.tokens())).long(),
                "hidden_states": [made.state(k) for k in states]}, folder / "data_0.pt")  # fmt: skip
    (folder / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [k - 1 for k in ids]}}))
    return inspect_capture(str(folder / "data_0.pt"))


@pytest.mark.parametrize(
    ("states", "pairs"),
    [([2, 4, 5, 8], 0), ([2, 2, 5, 8], 1), ([5, 5, 5, 8], 3), ([2, 4, 8, 8], 1), ([2, 4, 5, 5], 1)],
)
def test_equal_states_that_are_declared_different_boundaries(states: list[int], pairs: int, tmp_path: Path) -> None:
    """[B3, B3, B28] of values passed as [B3, B16, B28], and a last state that is slot 2 was "confirmed"."""
    found = v1(tmp_path, states, [2, 4, 5, 8])
    assert sum("hold the same values" in problem for problem in found.problems) == pairs
    if pairs:
        k = next(k for k in range(3) if states.count(states[k]) > 1)
        assert "its values are those of" in found.states[k].probably and found.states[k].source.startswith(
            "REFUTED"
        )
    if pairs and states[k] != states[3]:  # a last state may be left out: that is a note
        with pytest.raises(DrafttraceError, match=r"hold the same values.*--lose layer-ids"):
            convert(str(tmp_path / "data_0.pt"), tmp_path / "out.safetensors", "safetensors")
    elif pairs:
        done = convert(str(tmp_path / "data_0.pt"), tmp_path / "out.safetensors", "safetensors")
        assert any("hold the same values" in note for note in done.notes)


def test_a_slot_of_the_last_boundary_is_the_last_state(tmp_path: Path) -> None:
    assert not v1(tmp_path, [2, 4, 8, 8], [2, 4, 8, 8]).problems


@pytest.mark.parametrize("wiring", [(2, 2, 5), (2, 4, 8)])
def test_equal_states_refute_an_assumed_default(wiring: tuple[int, ...], tmp_path: Path) -> None:
    """A slot that is the normed last state was "B27 if the trainer kept its default"."""
    aux = torch.cat([made.state(k) for k in wiring], -1)[None]
    value = {"input_ids": made.tokens(), "loss_mask": torch.ones(len(made.tokens())).long(),
             "aux_hidden_state": aux, "hidden_state": made.state(8)[None]}  # fmt: skip
    torch.save(value, tmp_path / "data_0.ckpt")
    found = inspect_capture(str(tmp_path / "data_0.ckpt"))
    assert any("The assumed default is not what was stored" in problem for problem in found.problems)
    assert all(state.probably.startswith("unknown") for state in found.states if state.role == "slot")
