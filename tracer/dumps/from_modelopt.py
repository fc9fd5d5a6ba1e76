"""NVIDIA Model-Optimizer: ``{conversation_id}.pt`` and the raw list that TensorRT-LLM writes before it.

``hidden_states`` is the LAST state here and ``aux_hidden_states`` holds the slots. Three backends write the same
keys: transformers and TensorRT-LLM store outputs O(id) and a last state after the final norm; vLLM stores B(id), one
layer early, and a last state before the norm, and does not say so. So the norm stays unknown until the values tell.

Source: NVIDIA/Model-Optimizer ``examples/speculative_decoding/collect_hidden_states/``,
``modelopt/torch/speculative/eagle/utils.py``.
"""

from __future__ import annotations

from typing import Any

from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.build import ENTRIES, Convention
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.registry import Layout, Request, register
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnreadableFile

_EITHER = Convention(
    "O",
    "O{1, n//2-1, n-4} where transformers or TensorRT-LLM wrote it, B of the same ids (one layer early) for vLLM",
)


def _detect(document: Document, _request: Request) -> str | None:
    if not {"aux_hidden_states", "hidden_states", "conversation_id"} <= document.keys:
        return None
    return "a dict with aux_hidden_states, hidden_states and conversation_id"


def _read(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    flag = document.value.get("hidden_states_prenorm")
    if isinstance(flag, Tensor):
        flag = bool(flag.read().any())
    if flag is None:
        norm, why = (
            Norm.UNKNOWN,
            (
                "the file does not say which backend wrote it: after the norm for transformers and TensorRT-LLM, before "
                "it for vLLM"
            ),
        )
    else:
        norm = Norm.PRE if bool(flag) else Norm.POST
        why = f"the file's hidden_states_prenorm is {bool(flag)}"
    convention = ENTRIES if norm is Norm.PRE else _EITHER
    states = build.slots_and_last(document, "aux_hidden_states", "hidden_states", request, (norm, why))
    boundaries, source = convention.resolve(request, len(states.parts))
    return build.capture(
        path,
        "MO-PT",
        build.recognised(_detect, document, request),
        tokens,
        build.slots_of(states.parts, "aux_hidden_states", boundaries, source),
        last=states.last,
        mask=build.mask_of(document.value.get("loss_mask"), path),
        mask_offset=1,
        valid_length=len(tokens),
        about={"conversation_id": str(document.value.get("conversation_id"))[:200]},
        notes=states.notes,
    )


def _raw(document: Document) -> list[dict[str, Any]]:
    value = document.value
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return []
    return value


def _detect_raw(document: Document, _request: Request) -> str | None:
    entries = _raw(document)
    if len(entries) != 1 or not {"hidden_state", "input_ids"} <= set(entries[0]):
        return None
    return "a LIST of one dict with hidden_state"


def _read_raw(document: Document, inner: int, request: Request) -> Capture:
    path = document.path
    entries = _raw(document)
    if inner >= len(entries):
        raise UnreadableFile(f"The file '{path}' is no list of samples; read it without --format.")
    entry = entries[inner]
    tokens = build.token_ids(build.field(document, "input_ids", entry), "input_ids", path)
    norm = Norm.POST, "TensorRT-LLM convention: layer id -1, after the final norm"
    states = build.slots_and_last(document, "aux_hidden_states", "hidden_state", request, norm, entry=entry)
    boundaries, source = build.OUTPUTS.resolve(request, len(states.parts))
    return build.capture(
        path,
        "MO-TRT-RAW",
        build.recognised(_detect_raw, document, request),
        tokens,
        build.slots_of(states.parts, "aux_hidden_states", boundaries, source),
        last=states.last,
        valid_length=len(tokens),
        about={"id": str(entry.get("id"))[:200]},
        notes=states.notes,
    )


register(
    Layout(
        "MO-PT",
        "NVIDIA Model-Optimizer and TensorRT-LLM",
        "NVIDIA Model-Optimizer",
        _detect,
        _read,
        ids="O(id); B(id) where it says hidden_states_prenorm",
    )
)
register(
    Layout(
        "MO-TRT-RAW",
        "NVIDIA Model-Optimizer and TensorRT-LLM",
        "TensorRT-LLM hidden states before post-processing",
        _detect_raw,
        _read_raw,
        lambda document: len(_raw(document)) or 1,
        ids="O(id)",
    )
)
