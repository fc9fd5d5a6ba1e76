"""The wiring block of a trace: what it says the server hands over, slot by slot."""

from __future__ import annotations

import pytest
from graph_modules import H, Target

from drafttrace.hooks.sglang_engine import wiring


def block(override: list[int] | None) -> dict[str, object]:
    model = Target()
    model.model.layers_to_capture = [0, 2, 3]
    return wiring.describe(
        model,
        n=4,
        hidden_size=H,
        config=None,
        draft_config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
        algorithm="EAGLE3",
        version="0.5.23",
        override=override,
    )


@pytest.mark.parametrize("order", [[3, 2, 0], [2, 0, 3], [0, 2, 3], [4, 1, 0]], ids=str)
def test_an_overridden_wiring_keeps_its_order(order: list[int]) -> None:
    """serve --wiring hands the slots over as they are listed: sorted, the trace would name another slot's boundary."""
    made = block(order)
    assert made["boundaries"] == order and made["source"] == "override"
    assert made["layers_to_capture"] == [0, 2, 3] and made["ids"] == [1, 2]


def test_without_an_override_the_layers_stand_in_ascending_order() -> None:
    assert block(None)["boundaries"] == [0, 2, 3] and block(None)["source"] != "override"
