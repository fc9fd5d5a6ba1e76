"""Configs with any value in any field: an answer or one sentence, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_folders import (
    DEEPSEEK_TARGET,
    draft_tensors,
    mla,
    modelopt,
    specforge,
    speculators,
    write_draft,
    write_target,
)

from drafttrace.compare.audit import render
from drafttrace.compare.audit.check import check
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.capture import Capture, RowTable, Slot
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import ArrayRows, DType

JUNK: list[Any] = [None, -1, 10**30, float("nan"), "<b>|`", [None], {"a": {}}]
DRAFTS = {
    "specforge": specforge(
        [1, 15, 28],
        rope_scaling={"rope_type": "yarn", "factor": 2.0},
        rope_parameters={"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0},
        target_hidden_size=16,
        head_dim=4,
        fc_norm=False,
        norm_output=False,
        sliding_window=None,
        layer_types=["full_attention"],
        kv_lora_rank=None,
        num_aux_hidden_states=3,
    ),
    "speculators": speculators([2, 16, 29]),
    "modelopt": modelopt([1, 15, 28]),
}


def capture() -> Capture:
    tokens = np.arange(20, dtype=np.int64)
    states = np.random.default_rng(0).normal(size=(3, 20, 16)).astype(np.float32)
    slots = tuple(Slot(f"s{k}", ArrayRows(states[k], DType.FP32), b, "test") for k, b in enumerate((2, 16, 29)))
    return Capture("d.pt", "SPEC-V1", "test", tokens, RowTable.of_tokens(tokens), slots)


def survives(target: Path, draft: Path) -> None:
    try:
        result = check(target, draft, sglang_version="0.5.23")
        json.dumps(result.to_json(), allow_nan=False)
        render.markdown(result)
    except DrafttraceError as error:
        assert str(error) and "\n" not in str(error)
    try:
        json.dumps(replay(capture(), draft, target, steps=1).to_json(), allow_nan=False)
    except DrafttraceError as error:
        assert str(error) and "\n" not in str(error)


def places(config: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of a config, nested ones too."""
    found = []
    for key, value in config.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += places(value, (*path, key))
    return found


def changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(config))
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


@pytest.mark.parametrize("kind", sorted(DRAFTS))
def test_junk_in_a_drafts_config(kind: str, tmp_path: Path) -> None:
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", DRAFTS[kind])
    for path in places(DRAFTS[kind]):
        for value in JUNK:
            (draft / "config.json").write_text(json.dumps(changed(DRAFTS[kind], path, value)))
            survives(target, draft)


def test_junk_in_a_targets_config(tmp_path: Path) -> None:
    nested = {**DEEPSEEK_TARGET, "text_config": dict(DEEPSEEK_TARGET), "rope_parameters": {"rope_theta": 1.0}}
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", DRAFTS["specforge"])
    for config in (DEEPSEEK_TARGET, nested):
        for path in places(config):
            for value in JUNK:
                (target / "config.json").write_text(json.dumps(changed(config, path, value)))
                survives(target, draft)


@pytest.mark.parametrize("name", sorted(draft_tensors()))
def test_tensors_of_other_shapes_and_kinds(name: str, tmp_path: Path) -> None:
    import torch

    target = write_target(tmp_path / "target")
    for k, tensor in enumerate(
        (
            torch.zeros(0),
            torch.zeros(3, 0),
            torch.tensor(1.0),
            torch.ones(2, 2, 2),
            torch.arange(5),
            torch.zeros(5).bool(),
        )
    ):
        survives(
            target, write_draft(tmp_path / f"draft{k}", specforge([1, 15, 28]), {**draft_tensors(), name: tensor})
        )


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"])
def test_targets_with_odd_tensors(name: str, tmp_path: Path) -> None:
    import torch
    from audit_folders import target_tensors
    from safetensors.torch import save_file

    draft = write_draft(tmp_path / "draft", specforge([1, 15, 28]))
    target = write_target(tmp_path / "target")
    for tensor in (torch.zeros(0), torch.tensor(1.0), torch.ones(4, 16), torch.ones(96, 8), torch.arange(5)):
        save_file({**target_tensors(), name: tensor}, target / "model.safetensors")
        survives(target, draft)


@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_million_layers_are_refused_and_not_listed_one_by_one(whose: str, tmp_path: Path) -> None:
    more = {"num_hidden_layers": 1_000_000}
    target = write_target(tmp_path / "target", {**DEEPSEEK_TARGET, **(more if whose == "target" else {})})
    draft = write_draft(tmp_path / "draft", specforge([1, 15, 28], **(more if whose == "draft" else {})))
    with pytest.raises(DrafttraceError, match="num_hidden_layers"):
        check(target, draft)


@pytest.mark.parametrize("key", ["head_dim", "qk_rope_head_dim", "max_position_embeddings", "num_key_value_heads"])
def test_a_size_of_billions_takes_no_memory(key: str, tmp_path: Path) -> None:
    """A head_dim of 2147483648 asked for tables of 8 GB, and the machine ended the check."""
    resource = pytest.importorskip("resource")
    config = mla([1, 15, 28]) if key.startswith("qk") else specforge([1, 15, 28])
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", {**config, key: 2**31})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    survives(target, draft)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kilobytes
