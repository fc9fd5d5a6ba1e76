"""Which targets add a vector per position to the embedding of a token, so that B0 is the two together, as configs say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = frozenset(
    {"opt", "gpt2", "gpt_neo", "gpt_bigcode", "openai-gpt", "imagegpt", "biogpt", "ctrl", "xglm", "bert", "roberta"}
)
_KINDS = frozenset({"absolute", "learned", "learned_absolute", "sinusoidal"})


def adds_positions(config: Mapping[str, Any]) -> bool:
    """Whether a config names a model type that does, or an embedding of positions; rope and alibi change no B0."""
    kinds = {str(config.get(name, "")).lower() for name in ("position_embedding_type", "pos_emb_type")}
    return str(config.get("model_type", "")).lower() in _TYPES or bool(kinds & _KINDS)
