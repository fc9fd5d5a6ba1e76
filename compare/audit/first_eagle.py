"""A draft of EAGLE-1 or EAGLE-2, given as one of EAGLE-3: one cause of all that does not fit, and it is said alone.

Its ``fc`` reads the token's embedding and one state, side by side, and its attention the draft's own width; the ``fc`` of
EAGLE-3 reads slots, and its first attention the embedding and the state. By SGLang 0.5.23's ``models/llama_eagle.py`` and
``models/llama_eagle3.py``.
"""

from __future__ import annotations

from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.draft_weights import matrix_shape, split_fused
from drafttrace.compare.result import Finding
from drafttrace.tracer.errors import DrafttraceError

_QUERIES = ("q_proj", "qkv_proj", "q_a_proj")
_EAGLE3_ONLY = "layers.0.hidden_norm.weight"


def first_eagle(subject: Subject) -> Finding | None:
    """What to say of such a draft; None for any other. Raises DrafttraceError where it is served as what it is: of that
    nothing is known here."""
    weights, hidden = subject.draft_weights, subject.draft.hidden_size
    fc = matrix_shape(weights, "fc.weight")
    names = [f"layers.0.self_attn.{part}.weight" for part in _QUERIES]
    query = next((shape for name in names if (shape := matrix_shape(weights, name)) is not None), None)
    held = {part for name in weights.names for part in split_fused(name)}
    if fc != (hidden, 2 * hidden) or query is None or query[1] != hidden or _EAGLE3_ONLY in held:
        return None
    if (subject.algorithm or "").upper() == "EAGLE":
        raise DrafttraceError(
            f"{subject.draft.path.parent} holds a draft of EAGLE-1 or EAGLE-2 for a server that runs EAGLE, and the audit "
            "knows drafts of EAGLE-3 only; give one of those."
        )
    return fault(
        "fc-not-called",
        0.95,
        f"This is a draft of EAGLE-1 or EAGLE-2: its fc {list(fc)} reads the embedding and one state of {hidden}, its "
        f"attention reads {query[1]} values and not the {2 * hidden} of EAGLE-3, and it has no hidden_norm. Served as "
        "EAGLE-3, its tensors do not fit the class and the server stops.",
        'Start the server with --speculative-algorithm EAGLE and "architectures": ["LlamaForCausalLMEagle"] in its config, '
        "or give a draft that was trained as EAGLE-3.",
        {"fc": list(fc), "query_width": query[1], "hidden_size": hidden},
    )
