"""Number formats: what the configs say, against each other and against what is stored."""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.audit.config_fields import DTYPES
from drafttrace.compare.audit.subject import Subject, note
from drafttrace.compare.result import Finding

_STORED = {"BF16": "bfloat16", "F16": "float16"}


def format_findings(subject: Subject) -> Iterator[Finding]:
    """Number formats of draft and target that differ, and of the draft's config and its own tensors."""
    draft, target = subject.draft.dtype, subject.target.dtype
    weights = subject.draft_weights
    stored = _STORED.get(weights.info("fc.weight").dtype) if "fc.weight" in weights else None
    if stored is not None and draft in _STORED.values() and stored != draft:
        yield note(
            "dtype-reinterpretation",
            0.5,
            f"The draft's config says {draft}, and '{weights.names['fc.weight']}' in {weights.info('fc.weight').file.name} "
            f"is stored as {stored}.",
            f'"torch_dtype": "{stored}"; look that nothing between training and export took one for the other.',
            {"config": draft, "stored": stored},
        )
    if draft in DTYPES and target in DTYPES and draft != target:
        yield note(
            "quantization-noise",
            0.3,
            f"The draft's config says {draft}, the target's {target}; the server runs both in the target's format.",
            "Train in the format that is served, or accept the rounding.",
            {"draft": draft, "target": target},
        )
