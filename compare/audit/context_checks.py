"""A draft for fewer positions than its target: SGLang refuses it unless the context is cut to what the draft has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.result import Finding

_POSITIONS = {"llama": 2048, "kimi_k2": 4096, "deepseek_v3": 4096}
"""What a config class takes without ``max_position_embeddings``."""


def context_findings(subject: Subject, *, running: bool = False) -> Iterator[Finding]:
    """That a plain start stops at the draft's length; many drafts are so, and are served with the argument. running: a
    server was seen to run, which was told so."""
    draft, longest = subject.draft, subject.target.max_positions
    absent = "max_position_embeddings" not in draft.flat
    own = _POSITIONS.get(str(draft.flat.get("model_type")), 0) if absent else draft.max_positions
    factor: Any = draft.rope.fields.get("factor")
    stretched = draft.rope.kind == "linear" and type(factor) in (int, float) and 0 < factor < longest
    taken = int(own * factor) if stretched else own  # SGLang multiplies the two
    if not own or taken >= longest:
        return
    made = (
        f"The draft's config has no max_position_embeddings, which means {own}"
        if absent
        else f"The draft was made for {own}"
    )
    evidence = {"draft": own, "target": longest}
    if running:
        yield note(
            "rope-mismatch",
            0.6,
            f"{made} positions, the target for {longest}: acceptance may fall beyond the draft's length.",
            "Write the max_position_embeddings (and the rope scaling) that training used.",
            evidence,
        )
        return
    yield fault(
        "fc-not-called",
        0.9,
        f"{made} positions, the target for {longest}: SGLang refuses such a draft with a ValueError and does not start "
        "unless it is told to.",
        f"Start the server with --context-length {taken}, or with SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 where "
        "training saw longer texts; then write the max_position_embeddings (and the rope scaling) that training used.",
        evidence,
    )
