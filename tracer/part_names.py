"""How families of targets name their embedding, final norm and head, and how they store a norm's gain."""

from __future__ import annotations

from collections.abc import Iterable

EMBED = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight", "embed_in.weight")
HEAD = ("lm_head.weight", "embed_out.weight", "output.weight")
NORM = ("model.norm.weight", "language_model.norm.weight", "backbone.norm_f.weight", "transformer.ln_f.weight",
        "final_layernorm.weight", "final_layer_norm.weight", "norm.weight", "ln_f.weight",
        "embedding_norm.weight")  # fmt: skip
"""The last is LFM2's, whose final norm has that name."""
# Families whose norm multiplies by (1 + w).
_ONE_PLUS = ("gemma", "qwen3_5", "qwen3_next", "recurrent_gemma")
_ONE_PLUS_ALONE = {"nemotron"}  # and not nemotron_h, whose norms are plain
# Draft layers and towers have parts of the same names.
_ELSEWHERE = (".layers.", "visual", "vision", "audio")


def stored_name(names: Iterable[str], endings: tuple[str, ...]) -> str | None:
    """The stored name of a part, whatever wraps the model: the shortest with the first ending that any name has."""
    found = [name for name in names if name.endswith(endings) and not any(part in name for part in _ELSEWHERE)]
    for ending in endings:
        fitting = [name for name in found if name == ending or name.endswith("." + ending)]
        if fitting:
            return min(fitting, key=len)
    return None


def gain_is_one_plus(model_type: str) -> bool:
    """Whether a target of this type stores the gain of its norms as w and multiplies by 1 + w."""
    return model_type.startswith(_ONE_PLUS) or model_type in _ONE_PLUS_ALONE
