"""Fields of a draft's config with which no server can build its layers: another activation, a part of no whole channels."""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.result import Finding

_ACTIVATION = "silu"
"""The only one that ``LlamaMLP`` and ``DeepseekV2MLP`` build; they raise for every other one."""


def forward_findings(subject: Subject) -> Iterator[Finding]:
    """An activation that SGLang refuses, and a share of turned channels that is none."""
    draft = subject.draft
    if draft.activation != _ACTIVATION:
        yield fault(
            "fc-not-called",
            0.9,
            f"hidden_act is '{draft.activation}', and SGLang's draft classes take '{_ACTIVATION}' only: the server refuses "
            "the draft and does not start.",
            f'"hidden_act": "{_ACTIVATION}", if training used it; else serve with an engine that has {draft.activation}.',
            {"hidden_act": draft.activation},
        )
    turned = int(draft.head_dim * draft.rope.partial)
    if draft.mla is None and (turned <= 0 or turned % 2 or turned > draft.head_dim):
        yield fault(
            "rope-mismatch",
            0.9,
            f"partial_rotary_factor is {draft.rope.partial:g}, so {turned} of {draft.head_dim} channels of a head would "
            "turn, which is no even number of them.",
            "Copy partial_rotary_factor from the training run's config, or drop it if all channels turned.",
            {"partial_rotary_factor": draft.rope.partial, "head_dim": draft.head_dim},
        )
