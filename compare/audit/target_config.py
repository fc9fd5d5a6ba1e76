"""What the audit needs of a target's ``config.json``: layers, widths, vocabulary, positions, embedding scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafttrace.compare.draft_config import MOST_LAYERS
from drafttrace.compare.odd_ids import short_value
from drafttrace.tracer.checkpoint import read_json
from drafttrace.tracer.embedding_scale import multipliers
from drafttrace.tracer.errors import UnreadableFile

_MOST = 2**40
VOCABULARIES = {"gemma3_text": 262208, "gemma4_text": 262144}
"""What a config class takes for a missing ``vocab_size``, of types whose public configs leave it out."""
TEXT_KEYS = ("text_config", "llm_config", "language_config")


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
    if not path.exists():
        raise UnreadableFile(f"{folder} has no config.json; give the folder of the target model.")
    return parse_target_config(read_json(path), path)


def parse_target_config(raw: Mapping[str, Any], path: Path) -> TargetConfig:
    """See :func:`read_target_config`."""
    text = next((raw[key] for key in TEXT_KEYS if isinstance(raw.get(key), dict)), raw)
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
        layers=_count(text, ("num_hidden_layers", "n_layer"), path, most=MOST_LAYERS),
        hidden_size=hidden,
        vocab_size=_count({"vocab_size": VOCABULARIES.get(kind), **text}, ("vocab_size",), path, raw),
        max_positions=int(_number(text.get("max_position_embeddings"), 0.0) or 0),
        rope_theta=_number(theta, None),
        tied=bool(raw.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        dtype=str(dtype).removeprefix("torch.") if dtype else None,
        embed_scale=next(iter(multipliers(text, kind, hidden).values()), 1.0),
        eps=_number(text.get("rms_norm_eps") or text.get("layer_norm_epsilon"), None) or 1e-6,
    )


def _number(value: object, default: float | None) -> float | None:
    """A finite number of a sane size; ``default`` for anything else (no check rests on these alone)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _MOST:
        return default
    return float(value)


def _count(
    text: Mapping[str, Any],
    keys: tuple[str, ...],
    path: Path,
    outer: Mapping[str, Any] | None = None,
    most: int = _MOST,
) -> int:
    for place in (text, outer or {}):
        for key in keys:
            value = place.get(key)
            if type(value) is int and 0 < value <= most:
                return value
    for place in (text, outer or {}):
        for key in keys:
            if place.get(key) is not None:
                raise UnreadableFile(
                    f"{path} has '{key}': {short_value(place[key])}, no whole number from 1 to {most}; give the target's "
                    "folder with its own config."
                )
    raise UnreadableFile(
        f"{path} has no '{keys[0]}', so it is no language model's config; give the target's folder."
    )
