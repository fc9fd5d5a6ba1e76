"""Sizes that a draft's config has lost, read off its weights: what to write, before anything else can be said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.attention_sizes import HEADS, alternatives, attention_sizes, nearest
from drafttrace.compare.audit.class_tensors import as_built
from drafttrace.compare.draft_config import (
    MLA_CLASS,
    DraftConfig,
    MissingSize,
    flat_config,
    parse_draft_config,
    read_draft_config,
)
from drafttrace.compare.draft_weights import DraftWeights, draft_weights, matrix_shape
from drafttrace.tracer.checkpoint import open_checkpoint, read_json
from drafttrace.tracer.errors import UnreadableFile

_LATENT = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")


def read_draft(folder: Path) -> DraftConfig:
    """The config of a draft, with the latent sizes that only its config class has. Raises UnreadableFile as
    ``read_draft_config`` does, with the sizes of the folder's weights where the config lacks some."""
    try:
        return _built(read_draft_config(folder))
    except MissingSize as error:
        said = _by_weights(folder)
        if said is None:
            raise
        raise UnreadableFile(said) from error


def parsed_draft(config: Mapping[str, Any], path: Path) -> DraftConfig:
    """:func:`read_draft` of a config that is at hand. path: where it would stand."""
    return _built(parse_draft_config(config, path))


def _built(draft: DraftConfig) -> DraftConfig:
    return as_built(draft) if draft.architecture == MLA_CLASS else draft


def _by_weights(folder: Path) -> str | None:
    """What is lost and what the stored tensors say of it, as a sentence; None where they are no draft's."""
    path = folder / "config.json"
    try:
        config, weights = flat_config(read_json(path)), draft_weights(open_checkpoint(folder))
        fc = matrix_shape(weights, "fc.weight")
        if fc is None:
            return None
        plain, sets = _plain_sizes(weights, config, fc[0]), []
        attention = [HEADS, *(_LATENT if config.get("kv_lora_rank") is not None else ())]
        if any(config.get(key) is None for key in attention):
            sets = nearest(attention_sizes(weights), config, fc[0])
    except (UnreadableFile, ArithmeticError):
        return None
    lost = [*plain, *(key for key in attention if config.get(key) is None)]
    known = [f'"{key}": {value}' for key, value in plain.items() if value is not None]
    lines = [", ".join(known)] if known else []
    if sets:
        lines.append(f"{'one of these: ' if len(sets) > 1 else ''}{alternatives(sets)}")
    unknown = [key for key, value in plain.items() if value is None]
    unknown += [key for key in attention if config.get(key) is None and not sets]
    if unknown:
        lines.append(f"{' and '.join(unknown)} of the training run's config")
    return (
        f"{path} has no {' and no '.join(f'{key!r}' for key in lost)}, for which a server takes the default of a whole "
        f"model; the stored tensors say what to write: {', and '.join(lines)}."
        if len(lines) > bool(unknown)
        else f"{path} has no {' and no '.join(f'{key!r}' for key in lost)}; copy {' and '.join(unknown)} from the training "
        "run's config."
    )


def _plain_sizes(weights: DraftWeights, config: Mapping[str, Any], hidden: int) -> dict[str, int | None]:
    """The lost sizes outside the attention, and what the tensors say of each (None: nothing)."""
    at = "layers.0.mlp"
    gate = matrix_shape(weights, f"{at}.gate_proj.weight")
    joint = matrix_shape(weights, f"{at}.gate_up_proj.weight")
    own = matrix_shape(weights, "embed_tokens.weight")
    said = {
        "hidden_size": hidden,
        "intermediate_size": gate[0] if gate else joint[0] // 2 if joint else None,
        "vocab_size": own[0] if own else None,
    }
    return {key: value for key, value in said.items() if config.get(key) is None}
