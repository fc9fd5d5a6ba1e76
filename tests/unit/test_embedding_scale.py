"""What a config says that its target multiplies the embedding by: one reading for inspect, check and diff."""

from __future__ import annotations

from typing import Any

import pytest

from drafttrace.tracer.embedding_scale import multipliers


@pytest.mark.parametrize(
    ("config", "kind", "found"),
    [
        ({}, "llama", {}),
        ({}, "gemma3_text", {"sqrt(H)": 8.0}),
        ({"scale_emb": 12}, "minicpm", {"scale_emb": 12.0}),
        ({"embedding_multiplier": 12.0}, "granite", {"embedding_multiplier": 12.0}),
        ({"embedding_multiplier": 1.0}, "granite", {}),
    ],
)
def test_multipliers_by_name(config: dict[str, Any], kind: str, found: dict[str, float]) -> None:
    assert multipliers(config, kind, 64) == found


@pytest.mark.parametrize("value", [True, 0, -2.0, None, "12", float("nan"), float("inf"), [12]])
def test_what_is_no_multiplier(value: Any) -> None:
    assert multipliers({"scale_emb": value}, "minicpm", 64) == {}
