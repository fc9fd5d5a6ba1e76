"""What the audit needs of a target's ``config.json``: layers, widths, vocabulary, positions, embedding scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafttrace.tracer.checkpoint import read_json
from drafttrace.tracer.errors import UnreadableFile

_TEXT_KEYS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True)
class TargetConfig:
    """Sizes of a target. ``embed_scale`` is what its model multiplies embeddings with (1 for most).

    ``layers`` is n of the boundaries B0..B(n). ``raw`` is the file's object, ``text`` the language model's part.
    """

    path: Path
    raw: Mapping[str, Any]
    text: Mapping[str, Any]
    architecture: str | None
    model_type: str
    layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    rope_theta: float | None
    tied: bool
    dtype: str | None
    embed_scale: float
    eps: float


def read_target_config(folder: Path) -> TargetConfig:
    """The config of the target in ``folder``. Raises UnreadableFile where it is absent, damaged or no model's."""
    path = folder / "config.json"
    if not path.is_file():
        raise UnreadableFile(f"{folder} has no config.json; give the folder of the target model.")
    return parse_target_config(read_json(path), path)


def parse_target_config(raw: Mapping[str, Any], path: Path) -> TargetConfig:
    """See :func:`read_target_config`."""
    text = next((raw[key] for key in _TEXT_KEYS if isinstance(raw.get(key), dict)), raw)
    names = raw.get("architectures")
    hidden = _count(text, ("hidden_size", "n_embd"), path)
    parameters = text.get("rope_parameters")
    theta = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    theta = text.get("rope_theta") if theta is None else theta
    kind = str(text.get("model_type") or raw.get("model_type") or "")
    dtype = raw.get("torch_dtype") or raw.get("dtype") or text.get("torch_dtype") or text.get("dtype")
    return TargetConfig(
        path=path,
        raw=raw,
        text=text,
        architecture=str(names[0]) if isinstance(names, list) and names else None,
        model_type=kind,
        layers=_count(text, ("num_hidden_layers", "n_layer"), path),
        hidden_size=hidden,
        vocab_size=_count(text, ("vocab_size",), path, raw),
        max_positions=int(text.get("max_position_embeddings") or 0),
        rope_theta=float(theta) if isinstance(theta, (int, float)) else None,
        tied=bool(raw.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        dtype=str(dtype).removeprefix("torch.") if dtype else None,
        embed_scale=_embed_scale(kind, text, hidden),
        eps=float(text.get("rms_norm_eps") or text.get("layer_norm_epsilon") or 1e-6),
    )


def _embed_scale(kind: str, text: Mapping[str, Any], hidden: int) -> float:
    if kind.startswith("gemma"):
        return math.sqrt(hidden)
    for key in ("scale_emb", "embedding_multiplier"):
        value = text.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value:
            return float(value)
    return 1.0


def _count(
    text: Mapping[str, Any], keys: tuple[str, ...], path: Path, outer: Mapping[str, Any] | None = None
) -> int:
    for place in (text, outer or {}):
        for key in keys:
            value = place.get(key)
            if type(value) is int and value > 0:
                return value
    raise UnreadableFile(
        f"{path} has no usable '{keys[0]}', so it is no language model's config; give the target's folder."
    )
