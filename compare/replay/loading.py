"""Draft weights as torch tensors, the vocabulary map, and the embedding rows that texts need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from drafttrace.compare.audit.class_tensors import as_built, draft_class
from drafttrace.compare.draft_config import MLA_CLASS, PLAIN_CLASS, DraftConfig
from drafttrace.compare.draft_weights import (
    DraftWeights,
    expected_shapes,
    slots_of_fc,
    split_fused,
)
from drafttrace.compare.replay.model import UNSERVED, DraftModel, Reading
from drafttrace.compare.replay.products import linear
from drafttrace.compare.replay.switches import ABSOLUTE, ASCENDING, OWN, Switches
from drafttrace.compare.target_parts import TargetParts
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.errors import UnknownFormat, UnreadableFile
from drafttrace.tracer.rows import Floats

PLAIN_KEYS, LATENT_KEYS = (f"layers.0.self_attn.{name}.weight" for name in ("k_proj", "kv_a_proj_with_mqa"))

if TYPE_CHECKING:
    from drafttrace.compare.replay.score import Sayable
    from drafttrace.compare.replay.texts import Text


@dataclass(frozen=True)
class Replayer:
    """A loaded draft with what it needs of its target.

    unserved: biases that the config asks for and SGLang's draft classes do not have, by canonical name.
    """

    config: DraftConfig
    weights: DraftWeights
    parts: TargetParts
    model: DraftModel
    d2t: Ints | None
    unserved: tuple[str, ...] = ()

    @property
    def draft_vocabulary(self) -> int:
        """Tokens that the draft's head knows."""
        return int(self.model.weights["lm_head.weight"].shape[0])

    def targets(self, switches: Switches) -> Ints:
        """The target id of every draft id ``[draft_vocabulary]``."""
        place = np.arange(self.draft_vocabulary, dtype=np.int64)
        if self.d2t is None:
            return place
        if switches.d2t == ASCENDING:
            return np.sort(self.d2t + place)
        return self.d2t if switches.d2t == ABSOLUTE else self.d2t + place

    def sayable(self, switches: Switches) -> Sayable:
        """Which target tokens the draft can say."""
        from drafttrace.compare.replay.score import Sayable

        return Sayable(self.targets(switches), self.parts.vocabulary)

    def soft_targets(self, final: Floats, switches: Switches) -> torch.Tensor:
        """Log-probabilities of the target over the draft vocabulary ``[R, V]``, from its normed last states ``[R, H]``."""
        ids = np.clip(self.targets(switches), 0, self.parts.checkpoint.info(self.parts.head).shape[0] - 1)
        head = torch.from_numpy(self.parts.checkpoint.floats(self.parts.head, ids))
        return torch.log_softmax(linear(torch.from_numpy(final), head), dim=-1)

    def draft_ids(self, text: Text, rows: int, switches: Switches) -> Ints:
        """The draft id of the token that step 0 of each row should name ``[rows]``; -1 where there is none."""
        targets = self.targets(switches)
        table = np.full(self.parts.vocabulary, -1, np.int64)
        inside = (targets >= 0) & (targets < len(table))
        table[targets[inside]] = np.flatnonzero(inside)
        found = np.full(rows, -1, np.int64)
        wanted = text.tokens[2 : 2 + rows]
        known = (wanted >= 0) & (wanted < len(table))
        found[: len(wanted)] = np.where(known, table[np.where(known, wanted, 0)], -1)
        return found

    def reading(self, ids: Ints, switches: Switches) -> Reading:
        """What steps that read the tokens ``ids`` ``[steps, R]`` need of the embedding: every row of it once."""
        distinct, place = np.unique(ids, return_inverse=True)
        return Reading(self.embed(distinct, switches), torch.from_numpy(place.reshape(ids.shape)))

    def embed(self, ids: Ints, switches: Switches) -> torch.Tensor:
        """Rows of the table that the switches name."""
        if switches.embedding == OWN:
            stored = self.weights.names["embed_tokens.weight"]
            size = self.weights.checkpoint.info(stored).shape[0]
            table = self.weights.checkpoint.floats(stored, np.clip(ids, 0, size - 1))
            return torch.from_numpy(table)
        return torch.from_numpy(self.parts.embed(ids))


def step_tokens(tokens: Ints, step: int, rows: int, shift: int = 0) -> Ints:
    """The token that row t of a step reads ``[rows]``: t + 1 + step + shift; -1 beyond the text."""
    place = np.arange(rows) + 1 + step + shift
    inside = (place >= 0) & (place < len(tokens))
    return np.where(inside, tokens[np.where(inside, place, 0)], -1)


def load_replayer(config: DraftConfig, weights: DraftWeights, parts: TargetParts, longest: int) -> Replayer:
    """Load a draft for texts of up to ``longest`` tokens.

    Raises UnreadableFile where a tensor is missing or has another shape than the config says, UnknownFormat where the
    draft has no fc over whole slots or is wider than its embedding.
    """
    config = _with_stored_biases(with_its_attention(config, weights), weights)
    slots = slots_of_fc(weights, config)
    if slots is None:
        shape = weights.shape("fc.weight")
        raise UnknownFormat(
            f"{weights.checkpoint.root} has an fc of shape {shape} for slots {config.slot_width} wide: it is no EAGLE-3 "
            "draft; give the draft's own folder."
        )
    if config.heads % config.kv_heads:
        raise UnknownFormat(
            f"{config.path} has {config.heads} heads and {config.kv_heads} key-value heads, which do not divide; "
            "copy the training run's config."
        )
    loaded = _tensors(weights)
    _split_fused(loaded, config)
    shapes = _read_shapes(config, slots, loaded)
    for name, wanted in shapes.items():
        if name.endswith(".hidden_norm.weight") and not name.startswith("layers.0.") and name not in loaded:
            wanted_name = name.replace("hidden_norm", "input_layernorm")
            if wanted_name in loaded:
                continue
        found = tuple(loaded[name].shape) if name in loaded else None
        if found != wanted:
            raise UnreadableFile(
                f"{weights.checkpoint.root} has {'no' if found is None else f'the shape {list(found)} for'} '{name}', the "
                f"config asks for {list(wanted)}; make config and checkpoint come from one training run."
            )
    _check_embedding(config, weights, parts)
    if "lm_head.weight" not in loaded:
        loaded["lm_head.weight"] = _shared_head(config, weights, parts)
    head = tuple(loaded["lm_head.weight"].shape)
    if len(head) != 2 or head[0] == 0 or head[1] != config.hidden_size:
        raise UnreadableFile(
            f"{weights.checkpoint.root} has an lm_head of shape {list(head)} for a draft {config.hidden_size} wide; "
            "export the draft's head again."
        )
    d2t = _map(weights, head[0])
    loaded = {name: tensor for name, tensor in loaded.items() if name in shapes or name == "lm_head.weight"}
    return Replayer(
        config,
        weights,
        parts,
        DraftModel(config, loaded, slots, longest),
        d2t,
        unserved=tuple(name for name in shapes if name.endswith(UNSERVED)),
    )


def with_its_attention(config: DraftConfig, weights: DraftWeights) -> DraftConfig:
    """The config as the server's class builds it, with the attention that the weights are for; where they are for both,
    with that of the class that it names.

    Sizes of multi-latent attention in a config (the target's, often) make no draft a multi-latent one.
    """
    have = {part for name in weights.names for part in split_fused(name)}
    if PLAIN_KEYS in have and LATENT_KEYS not in have:
        built = as_built(replace(config, architecture=PLAIN_CLASS, mla=None))
        return replace(built, architecture=config.architecture)
    return as_built(config) if PLAIN_KEYS in have or draft_class(config) == MLA_CLASS else config


def _with_stored_biases(config: DraftConfig, weights: DraftWeights) -> DraftConfig:
    """The config without the biases of which the checkpoint holds none: the flag is copied from targets, and a draft that
    was trained without them is served without them."""
    kinds = {name.split(".")[-3] for name in weights.names if name.endswith("_proj.bias")}
    attention, mlp = "self_attn" in kinds, "mlp" in kinds
    return replace(config, attention_bias=config.attention_bias and attention, mlp_bias=config.mlp_bias and mlp)


_MLP_BIAS = {"gate_proj": "intermediate_size", "up_proj": "intermediate_size", "down_proj": "hidden_size"}


def _read_shapes(config: DraftConfig, slots: int, loaded: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Every tensor that the forward reads: what the config asks for, and norms that are there without being asked for."""
    shapes = expected_shapes(config, slots)
    for layer in range(config.layers):
        if config.mlp_bias:
            shapes |= {f"layers.{layer}.mlp.{k}.bias": (getattr(config, size),) for k, size in _MLP_BIAS.items()}
        shapes |= _if_there(f"layers.{layer}.input_layernorm.weight", (config.hidden_size,), loaded)
    shapes |= _if_there("input_norm.weight", (slots * config.slot_width,), loaded)
    if "fc_norm.0.weight" in loaded:
        shapes |= {f"fc_norm.{k}.weight": (config.slot_width,) for k in range(slots)}
    return shapes


def _if_there(name: str, shape: tuple[int, ...], loaded: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: shape} if name in loaded else {}


def _map(weights: DraftWeights, rows: int) -> Ints | None:
    """The vocabulary map ``[rows]`` as stored; None where there is none. Raises UnreadableFile where it is no such list."""
    if "d2t" not in weights:
        return None
    info = weights.info("d2t")
    if info.float_dtype is not None or info.shape != (rows,):
        raise UnreadableFile(
            f"{weights.checkpoint.root} stores d2t as {info.dtype} {list(info.shape)} beside an lm_head of {rows} rows, "
            f"where {rows} whole numbers belong; make both come from one training run."
        )
    return weights.checkpoint.array(weights.names["d2t"]).astype(np.int64)


def _check_embedding(config: DraftConfig, weights: DraftWeights, parts: TargetParts) -> None:
    """Raise UnreadableFile where the embedding that the draft reads is not as wide as the draft."""
    own = "embed_tokens.weight" in weights
    shape = weights.shape("embed_tokens.weight") if own else parts.checkpoint.info(parts.embedding).shape
    if shape is None or len(shape) != 2 or shape[1] != config.hidden_size:
        where = weights.checkpoint.root if own else parts.checkpoint.root
        raise UnreadableFile(
            f"{where} has the shape {list(shape or ())} for the embedding, and the draft is {config.hidden_size} wide; "
            "give the target that the draft was trained for."
        )


def _shared_head(config: DraftConfig, weights: DraftWeights, parts: TargetParts) -> torch.Tensor:
    """What SGLang takes for a head that the checkpoint does not have: of a tied draft the embedding, else the target's."""
    own = weights.names.get("embed_tokens.weight")
    if config.tied and own is not None:
        return torch.from_numpy(weights.checkpoint.floats(own))
    stored = parts.embedding if config.tied else parts.head
    rows, width = parts.checkpoint.info(stored).shape
    what = "embedding" if config.tied else "head"
    if config.draft_vocab_size not in (None, rows) or width != config.hidden_size:
        raise UnreadableFile(
            f"{config.path.parent} has no lm_head.weight, and the target's {what} [{rows}, {width}] does not fit a draft "
            f"of draft_vocab_size {config.draft_vocab_size}; export the draft's head."
        )
    return torch.from_numpy(parts.checkpoint.floats(stored))


def _tensors(weights: DraftWeights) -> dict[str, torch.Tensor]:
    """Every floating-point tensor but the embedding, as float32, fused projections split."""
    loaded: dict[str, torch.Tensor] = {}
    for name, stored in weights.names.items():
        if name == "embed_tokens.weight" or weights.info(name).float_dtype is None:
            continue
        loaded[name] = torch.from_numpy(np.ascontiguousarray(weights.checkpoint.floats(stored)))
    return loaded


def _split_fused(loaded: dict[str, torch.Tensor], config: DraftConfig) -> None:
    """Split fused projections in place."""
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    parts = {
        "qkv_proj": (("q_proj", query), ("k_proj", key), ("v_proj", key)),
        "gate_up_proj": (("gate_proj", config.intermediate_size), ("up_proj", config.intermediate_size)),
    }
    for fused, names in parts.items():
        for name in [name for name in loaded if f".{fused}." in name]:
            tensor = loaded.pop(name)
            rows = sum(size for _, size in names)
            if not tensor.ndim or tensor.shape[0] != rows:
                raise UnreadableFile(
                    f"{config.path.parent} has the shape {list(tensor.shape)} for '{name}', the config asks for {rows} "
                    "rows; make config and checkpoint come from one training run."
                )
            for (part, _), piece in zip(names, torch.split(tensor, [size for _, size in names]), strict=True):
                loaded[name.replace(fused, part)] = piece.contiguous()
