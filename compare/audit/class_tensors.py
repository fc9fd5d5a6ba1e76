"""The parameters that SGLang's draft classes build, and which stored name fills which: their own words, name by name.

By SGLang 0.5.23's ``models/llama_eagle3.py`` and ``models/kimi_k25_eagle3.py``. The plain class renames four old words
wherever they stand in a name, fuses projections, then looks for the name and for ``model.`` and the name; what is no
parameter then is passed over without a word. The class with multi-latent attention puts ``model.`` before every name
but the head's itself. No class knows ``module.`` or ``draft_model.``, and ``model.lm_head.weight`` is no parameter of any.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from drafttrace.compare.audit.class_defaults import (
    HEAD_DIM,
    KV_HEADS,
    implied_sizes,
    latent_sizes,
    mlp_size,
    takes_no_head_dim,
)
from drafttrace.compare.audit.mla_checks import ATTENTION, as_served
from drafttrace.compare.draft_config import MLA_CLASS, PLAIN_CLASS, DraftConfig
from drafttrace.compare.draft_weights import (
    VOCABULARY_MAPS,
    DraftWeights,
    canonical_name,
    expected_shapes,
    slots_of_fc,
    split_fused,
)

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
_BIASED_TYPES = frozenset({"gpt_oss"})
"""Types whose config class switches ``attention_bias`` on where the file does not say."""
_LEGACY = {
    "midlayer": "layers.0", "aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2",
}  # fmt: skip
_FUSED = (".qkv_proj.", ".gate_up_proj.")


def draft_class(draft: DraftConfig) -> str:
    """The draft class that loads the weights; of a config that names none, the one that the remedy tells to write."""
    if draft.architecture in (PLAIN_CLASS, MLA_CLASS):
        return draft.architecture
    return MLA_CLASS if draft.mla is not None else PLAIN_CLASS


def as_built(draft: DraftConfig) -> DraftConfig:
    """The draft with the sizes that the class which it names is built with: what is absent is the config class's."""
    served, config = as_served(draft), draft.flat
    if draft_class(draft) == MLA_CLASS:
        return replace(served, mla=latent_sizes(config, served.mla))
    implied = implied_sizes(config, draft.heads, draft.hidden_size)
    if config.get(KV_HEADS) is None:
        served = replace(served, kv_heads=implied[KV_HEADS])
    if config.get(HEAD_DIM) is None or takes_no_head_dim(config):
        served = replace(served, head_dim=implied[HEAD_DIM])
    wide = mlp_size(config)
    return served if wide is None else replace(served, intermediate_size=wide)


def built_shapes(draft: DraftConfig, slots: int) -> dict[str, tuple[int, ...]]:
    """Every parameter that the class builds and that has to be filled, by canonical name; embedding and head left out.

    ``qkv_proj`` has no bias, whatever the config says; ``o_proj``'s starts at zero, so that it need not be there.
    """
    return {
        name: shape
        for name, shape in expected_shapes(as_built(draft), slots).items()
        if not (ATTENTION in name and name.endswith(".bias"))
    }


def optional_shapes(draft: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Parameters that the class builds and that change nothing where the checkpoint has none."""
    if draft_class(draft) == MLA_CLASS:
        return {}
    said = draft.flat.get("attention_bias")
    biased = (
        draft.attention_bias
        or draft.fc_bias
        or (said is None and str(draft.flat.get("model_type")) in _BIASED_TYPES)
    )
    return {f"layers.{k}{ATTENTION}o_proj.bias": (draft.hidden_size,) for k in range(draft.layers) if biased}


def parameters(draft: DraftConfig, slots: int) -> frozenset[str]:
    """Canonical names of all parameters of the class; of a tied draft without a head."""
    found = {*built_shapes(draft, slots), *optional_shapes(draft), EMBEDDING}
    return frozenset(found if draft.tied else {*found, HEAD})


def filled_by(stored: str, held: Collection[str], latent: bool) -> str | None:
    """The canonical name of what a stored tensor fills: a parameter of ``held``, or a vocabulary map; None for nothing.

    latent: by the class with multi-latent attention.
    """
    name = _latent_name(stored) if latent else _plain_name(stored)
    if name in VOCABULARY_MAPS:
        return name
    if name is None or (name.startswith("model.") if latent else name == f"model.{HEAD}"):
        return None
    name = name.removeprefix("model.")
    return name if set(split_fused(name)) <= set(held) else None


def _plain_name(stored: str) -> str:
    for old, new in _LEGACY.items():
        stored = stored.replace(old, new)
    return next((word for word in VOCABULARY_MAPS if word in stored), stored)


def _latent_name(stored: str) -> str | None:
    last = stored.rsplit(".", 1)[-1]
    if last in VOCABULARY_MAPS:
        return last
    name = re.sub(r"^midlayer\.", "layers.0.", stored)
    return None if _FUSED[0] in name else name


def as_loaded(weights: DraftWeights, draft: DraftConfig) -> DraftWeights:
    """The tensors by what SGLang takes each for; what it passes over by the name that others read, where that is free."""
    held, latent = _held(weights, draft)
    taken = {stored: name for stored in weights.checkpoint if (name := filled_by(stored, held, latent)) is not None}
    names: dict[str, str] = {}
    clashes: list[tuple[str, str]] = []
    filled = set(taken.values())
    for stored in weights.checkpoint:
        name = taken.get(stored)
        if name is None:
            meant = canonical_name(stored)
            name = stored if meant in names or meant in filled else meant
        if name in names:
            clashes.append((names[name], stored))
        else:
            names[name] = stored
    return DraftWeights(weights.checkpoint, names, tuple(clashes))


def passed_over(weights: DraftWeights, draft: DraftConfig) -> tuple[str, ...]:
    """Stored names that mean a parameter of the class to other readers and fill none; without an embedding that SGLang
    replaces by the target's anyway."""
    held, latent = _held(weights, draft)
    shared = {EMBEDDING} if draft.hidden_size == draft.slot_width else set()
    return tuple(
        stored
        for name, stored in weights.names.items()
        if set(split_fused(name)) & (held - shared) and filled_by(stored, held, latent) is None
    )


def _held(weights: DraftWeights, draft: DraftConfig) -> tuple[frozenset[str], bool]:
    return parameters(draft, slots_of_fc(weights, draft) or 3), draft_class(draft) == MLA_CLASS
