"""Rope tables as the installed SGLang makes them, and as the trainer made them: equal where SGLang does nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_folders import specforge

from drafttrace.compare.draft_config import DraftConfig, parse_draft_config
from drafttrace.compare.rope_tables import RopeTable, distance, served_table, trained_table

HEAD, POSITIONS, ROWS = 32, 256, 200
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.0 + 0.01 * k for k in range(HEAD // 2)],
    "long_factor": [1.0 + 0.1 * k for k in range(HEAD // 2)],
}
ALIKE: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {"rope_scaling": LLAMA3},
    "yarn": {"rope_scaling": YARN},
    "yarn, not truncated": {"rope_scaling": {**YARN, "factor": 32.0, "truncate": False}},
    "yarn, mscale": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}},
    "yarn, attn_factor": {"rope_scaling": {**YARN, "attn_factor": 1.7}},
    "longrope": {"rope_scaling": LONG},
    "neox, the default": {"rope_is_neox_style": True},
    "a Llama's part inside": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "a part": {"partial_rotary_factor": 0.5},
}
OTHERWISE: dict[str, tuple[dict[str, Any], float]] = {
    "dynamic": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 0.1),
    "dynamic by alpha": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}}, 0.1),
    "yarn, attention_factor": ({"rope_scaling": {**YARN, "attention_factor": 0.5}}, 0.63),
    "yarn, mscale_all_dim 0": ({"rope_scaling": {**YARN, "mscale": 0.2, "mscale_all_dim": 0.0}}, 0.05),
    "longrope, attention_factor": ({"rope_scaling": {**LONG, "attention_factor": 0.5}}, 0.3),
    "longrope, factor": ({"rope_scaling": {**LONG, "factor": 32.0}}, 0.05),
    "neighbours": ({"rope_is_neox_style": False}, 1.0),
    "neighbours by 0": ({"rope_is_neox_style": 0}, 1.0),
    "Glm's part inside": (
        {"model_type": "glm4_moe", "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        0.5,
    ),
}
DRAFT = {"head_dim": HEAD, "hidden_size": 4 * HEAD, "max_position_embeddings": POSITIONS}


def config_of(changes: dict[str, Any]) -> DraftConfig:
    return parse_draft_config(specforge(**DRAFT, **changes), Path("config.json"))


LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 16, "qk_rope_head_dim": HEAD, "v_head_dim": 16}
LATENTS: dict[str, dict[str, Any]] = {
    f"latent, {name}": {**LATENT, "rope_scaling": scaling}
    for name, scaling in {
        "yarn": YARN,
        "mscale": {**YARN, "mscale": 0.7},
        "both": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        "linear": {"rope_type": "linear", "factor": 4.0},
    }.items()
}


def asked(config: DraftConfig, rows: int) -> dict[str, Any]:
    """What ``models/llama.py``, or ``models/deepseek_v2.py``, asks ``get_rope`` for."""
    scaling = config.raw.get("rope_parameters") or config.raw.get("rope_scaling")
    latent = config.mla is not None
    if scaling and latent:
        scaling = {**scaling, "rope_type": "deepseek_yarn"}
    return {
        "head_size": HEAD,
        "rotary_dim": int(config.raw.get("partial_rotary_factor", 1) * HEAD),
        "max_position": config.max_positions,
        "base": config.rope.theta,
        "rope_scaling": scaling,
        "is_neox_style": not latent and config.raw.get("rope_is_neox_style", True),
        "rows": rows,
        "original": 64,
    }


def tables(table: RopeTable, length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    angle = np.arange(length)[:, None] * table.inverse
    return np.cos(angle) * table.scale, np.sin(angle) * table.scale


@pytest.mark.slow
def test_the_served_tables_are_sglangs_own(tmp_path: Path) -> None:
    """A latent draft is served with DeepSeek's YaRN, whatever scaling it asks for."""
    pytest.importorskip("sglang")
    every = {**ALIKE, **{key: value for key, (value, _) in OTHERWISE.items()}, **LATENTS}
    cases = [(name, config_of(changes), rows) for name, changes in every.items() for rows in (40, ROWS)]
    (tmp_path / "request.json").write_text(json.dumps([asked(config, rows) for _, config, rows in cases]))
    subprocess.run(
        [sys.executable, str(Path(__file__).with_name("sglang_rope.py")), "request.json", "out.npz"],
        cwd=tmp_path,
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        check=True,
    )
    found = np.load(tmp_path / "out.npz")
    for k, (name, config, rows) in enumerate(cases):
        made = served_table(config, rows)
        cos, sin = tables(made, rows)
        assert made.interleaved == (not found[f"neox{k}"]), name
        assert cos.shape == found[f"cos{k}"].shape and np.abs(cos - found[f"cos{k}"]).max() < 1e-4, name
        assert np.abs(sin - found[f"sin{k}"]).max() < 1e-4, name


@pytest.mark.parametrize("changes", ALIKE.values(), ids=ALIKE)
def test_what_sglang_does_as_the_trainer_is_no_difference(changes: dict[str, Any]) -> None:
    config = config_of(changes)
    assert distance(trained_table(config, ROWS), served_table(config, ROWS), HEAD, ROWS) < 1e-6


@pytest.mark.parametrize(("changes", "least"), OTHERWISE.values(), ids=OTHERWISE)
def test_what_sglang_does_otherwise_has_a_number(changes: dict[str, Any], least: float) -> None:
    config = config_of(changes)
    assert distance(trained_table(config, ROWS), served_table(config, ROWS), HEAD, ROWS) >= least


@pytest.mark.parametrize("changes", [{}, {"rope_scaling": YARN}], ids=["default", "yarn"])
def test_a_plain_rope_interleave_turns_nothing_in_a_llama(changes: dict[str, Any]) -> None:
    """Neither transformers' Llama nor SGLang's reads it; a multi-latent layer does."""
    config = config_of({**changes, "rope_interleave": True})
    assert not trained_table(config, ROWS).interleaved and not served_table(config, ROWS).interleaved
