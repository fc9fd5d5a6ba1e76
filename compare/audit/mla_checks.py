"""The draft class that a config names, against the attention in the checkpoint: plain, or multi-latent (MLA).

What SGLang's class with multi-latent attention does is by ``models/kimi_k25_eagle3.py``: its constructor raises without
a ``q_lora_rank`` and for any number of layers but one. The plain class (``models/llama_eagle3.py``) passes over what it has
no parameter for. Which names they load, and which not, is ``class_tensors``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from drafttrace.compare.audit.attention_sizes import attention_sizes, nearest, pasted
from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.draft_config import MLA_CLASS, PLAIN_CLASS, DraftConfig
from drafttrace.compare.draft_weights import expected_shapes, split_fused
from drafttrace.compare.result import Finding

ATTENTION = ".self_attn."
_LATENT, _PLAIN = "layers.0.self_attn.kv_a_proj_with_mqa.weight", "layers.0.self_attn.k_proj.weight"
_LATENT_PARTS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_ALL_DIMS = "kv_lora_rank, q_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim"


@dataclass(frozen=True)
class OtherAttention:
    """Attention tensors of the checkpoint that are another class's than the config's. missing: those that the named class
    builds and nothing fills. unused: stored ones that it does not have. right: the class that reads them."""

    missing: tuple[str, ...]
    unused: tuple[str, ...]
    right: str


def as_served(draft: DraftConfig) -> DraftConfig:
    """The draft's config as the class that it names reads it: the plain class builds plain projections, whatever else
    stands in the config."""
    return replace(draft, mla=None) if draft.architecture == PLAIN_CLASS and draft.mla is not None else draft


def other_attention(subject: Subject) -> OtherAttention | None:
    """What the class that the config names does not find and does not read of the attention; None where the two fit."""
    draft, names = subject.draft, subject.draft_weights.names
    have = {part for name in names for part in split_fused(name)}
    latent, plain = _LATENT in have, _PLAIN in have
    right = {PLAIN_CLASS: MLA_CLASS, MLA_CLASS: PLAIN_CLASS}.get(draft.architecture or "")
    if right is None or latent == plain or latent == (draft.architecture == MLA_CLASS):
        return None
    asked = expected_shapes(as_served(draft), subject.fc_slots or 1)
    wanted = [name for name in asked if ATTENTION in name and name.endswith(".weight")]
    if draft.architecture == MLA_CLASS and draft.mla is None:
        wanted = [f"layers.0{ATTENTION}{part}.weight" for part in _LATENT_PARTS]
    unused = [
        stored for name, stored in names.items() if ATTENTION in name and not set(split_fused(name)) & set(wanted)
    ]
    return OtherAttention(tuple(name for name in wanted if name not in have), tuple(unused), right)


def class_findings(subject: Subject) -> Iterator[Finding]:
    """That the config names the class of another attention than the checkpoint's."""
    other = other_attention(subject)
    if other is None:
        return
    kinds = {PLAIN_CLASS: "plain", MLA_CLASS: "multi-latent"}
    named = subject.draft.architecture or ""
    dims = ""
    if other.right == MLA_CLASS and subject.draft.mla is None:
        dims = f", and {_lost_sizes(subject) or f'{_ALL_DIMS} of the training run'} beside it"
    yield fault(
        "weights-missing",
        0.95,
        f"The config names {named}, which has {kinds[named]} attention, and the checkpoint holds {kinds[other.right]} "
        f"attention: {', '.join(other.missing)} are missing and keep what the memory held, and "
        f"{', '.join(other.unused)} are read by nothing.",
        f'"architectures": ["{other.right}"]{dims}',
        {"class": named, "missing": list(other.missing), "unused": list(other.unused), "right": other.right},
    )


def _lost_sizes(subject: Subject) -> str:
    """The sizes that the config lacks, by the shapes of the latent attention, as lines to paste; empty where they do not
    tell."""
    sets = nearest(attention_sizes(subject.draft_weights), subject.draft.flat, subject.draft.hidden_size)
    return pasted(sets[0]) if len(sets) == 1 and "kv_lora_rank" in sets[0] else ""


def refused(subject: Subject) -> bool:
    """Whether the server stops at the draft's config, before it reads a tensor."""
    draft = subject.draft
    if draft.architecture != MLA_CLASS:
        return False
    return draft.layers != 1 or draft.mla is None or not draft.mla.q_lora_rank


def mla_findings(subject: Subject) -> Iterator[Finding]:
    """Every fault of a draft for this class; nothing for any other class."""
    draft, weights = subject.draft, subject.draft_weights
    if draft.architecture != MLA_CLASS:
        return
    if draft.mla is None and other_attention(subject) is None:
        yield fault(
            "fc-not-called",
            0.95,
            f"The config has no kv_lora_rank and {MLA_CLASS} requires one: the server refuses the draft and does not "
            "start.",
            f"{_lost_sizes(subject) or f'{_ALL_DIMS} of the training run'}, as its tensors have them.",
            {"kv_lora_rank": None},
        )
    if draft.layers != 1:
        one = not any(name.startswith("layers.") and not name.startswith("layers.0.") for name in weights.names)
        yield fault(
            "fc-not-called",
            0.95,
            f"num_hidden_layers is {draft.layers} and {MLA_CLASS} takes one layer only: the server refuses the draft and "
            "does not start.",
            '"num_hidden_layers": 1, as the checkpoint has one layer.'
            if one
            else "Train the draft with one layer.",
            {"num_hidden_layers": draft.layers},
        )
    if draft.mla is not None and not draft.mla.q_lora_rank:
        shape = weights.shape("layers.0.self_attn.q_a_proj.weight")
        yield fault(
            "fc-not-called",
            0.95,
            f"The config has no q_lora_rank and {MLA_CLASS} requires one: the server refuses the draft and does not start.",
            f'"q_lora_rank": {shape[0]}, the rows of q_a_proj.'
            if shape
            else "Train the draft with a q_lora_rank: the class has no plain q_proj.",
            {"q_lora_rank": None},
        )
