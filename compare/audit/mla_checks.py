"""What SGLang's draft class with multi-latent attention refuses, and which names of tensors it passes over.

By ``models/kimi_k25_eagle3.py``: its constructor raises without a ``q_lora_rank`` and for any number of layers but one.
Its ``load_weights`` renames ``layers.0.`` to ``midlayer.``, puts ``model.`` before every name but ``lm_head``'s, and skips
what is then no parameter with a warning only, as ``model.model.fc.weight`` is.
"""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.draft_weights import VOCABULARY_MAPS
from drafttrace.compare.result import Finding

MLA_CLASS = "Eagle3DeepseekV2ForCausalLM"


def refused(subject: Subject) -> bool:
    """Whether the server stops at the draft's config, before it reads a tensor."""
    draft = subject.draft
    if draft.architecture != MLA_CLASS:
        return False
    return draft.layers != 1 or (draft.mla is not None and not draft.mla.q_lora_rank)


def mla_findings(subject: Subject) -> Iterator[Finding]:
    """Every fault of a draft for this class; nothing for any other class."""
    draft, weights = subject.draft, subject.draft_weights
    if draft.architecture != MLA_CLASS:
        return
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
    skipped = passed_over(subject)
    if skipped:
        yield fault(
            "weights-missing",
            0.95,
            f"{MLA_CLASS} passes over {len(skipped)} tensors for their names, such as '{skipped[0]}', with a warning only: "
            "it puts 'model.' before each name itself, so their parameters keep what the memory held.",
            "Export the draft again with the names that this class reads: 'fc.weight', 'norm.weight' and 'layers.0.…' (or "
            "'midlayer.…'), with nothing before them.",
            {"tensors": list(skipped[:20]), "count": len(skipped)},
        )


def passed_over(subject: Subject) -> tuple[str, ...]:
    """Stored names that mean a parameter of the class to every other reader and none to it."""
    found = []
    for name, stored in subject.draft_weights.names.items():
        read = {name, name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name}
        if stored not in read and name not in VOCABULARY_MAPS:
            found.append(stored)
    return tuple(found)
