"""TorchSpec: debug dumps of training batches, evaluation caches, test dumps, and files of an orphaned reader.

``hidden_states`` is AUX here and ``last_hidden_states`` the last state: after the final norm where SGLang or
transformers made it, before it where vLLM did, and the files do not say which.

Source: lightseekorg/TorchSpec ``torchspec/utils/train_dump.py``, ``torchspec/data/``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture, Ints, Norm
from drafttrace.tracer.dumps import build, state_fields
from drafttrace.tracer.dumps.build import OUTPUTS
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.mask_notes import mask_notes
from drafttrace.tracer.dumps.registry import Layout, Request, register
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnreadableFile

_UNKNOWN = (
    "the file does not say which engine wrote it: after the norm for SGLang and transformers, before it for vLLM"
)


def _sample(
    document: Document,
    layout: str,
    why: str,
    entry: dict[str, Any],
    request: Request,
    names: tuple[str, str] = ("hidden_states", "last_hidden_states"),
    norm: tuple[Norm, str] = (Norm.UNKNOWN, _UNKNOWN),
) -> Capture:
    """One sample; ``names`` are those of the aux and of the last state."""
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids", entry), "input_ids", path)
    states = build.slots_and_last(document, *names, request, norm, entry=entry)
    boundaries, source = OUTPUTS.resolve(request, len(states.parts))
    mask = _mask(document, entry, len(tokens))
    attention = build.mask_of(entry.get("attention_mask"), path, "attention_mask")
    return build.capture(
        path,
        layout,
        why,
        tokens,
        build.slots_of(states.parts, names[0], boundaries, source),
        last=states.last,
        mask=mask,
        valid_length=build.valid_length(tokens, mask, attention),
        notes=states.notes,
    )


def _mask(document: Document, entry: dict[str, Any], length: int) -> Ints | None:
    """``loss_mask``, or ``packed_loss_mask``: lengths of runs, prompt first, as a list or as ``"2,3,1"``."""
    packed = entry.get("packed_loss_mask")
    if packed is None:
        return build.mask_of(entry.get("loss_mask"), document.path)
    try:
        runs = (
            [int(part) for part in packed.split(",")] if isinstance(packed, str) else [int(part) for part in packed]
        )
        if any(run < 0 for run in runs):
            raise ValueError
    except (ValueError, TypeError):
        raise UnreadableFile(
            f"The field 'packed_loss_mask' of '{document.path}' is no list of run lengths; write it again."
        ) from None
    mask = np.zeros(length, np.int64)
    at = 0
    for number, run in enumerate(runs):  # the runs may claim more than there are tokens
        mask[at : at + run] = number % 2
        at = min(length, at + run)
    return mask


# --- debug dumps: a batch, the losses and the weights in one file --------------------------------------------


def _detect_debug(document: Document, _request: Request) -> str | None:
    if not {"batch", "step"} <= document.keys or not isinstance(document.value["batch"], dict):
        return None
    return "a dict with batch and step"


def _batch_size(document: Document) -> int:
    batch = document.value.get("batch") if isinstance(document.value, dict) else None
    ids = batch.get("input_ids") if isinstance(batch, dict) else None
    return ids.shape[0] if isinstance(ids, Tensor) and ids.ndim == 2 else 1


def _read_debug(document: Document, inner: int, request: Request) -> Capture:
    batch = document.value.get("batch") if isinstance(document.value, dict) else None
    if not isinstance(batch, dict):
        raise UnreadableFile(f"The field 'batch' of '{document.path}' is no dict; read the file without --format.")
    ids, size = batch.get("input_ids"), _batch_size(document)
    alone = isinstance(ids, Tensor) and ids.ndim == 1  # one sample, without the axis of the batch

    def of_sample(value: Any, name: str) -> Any:
        if name in {"loss_mask", "attention_mask"} and isinstance(value, list):
            value = build.listed(value)
        if alone or not isinstance(value, Tensor):
            return value
        return value.pick(0, inner) if value.ndim >= 2 and value.shape[0] == size else None

    entry = {name: of_sample(value, name) for name, value in batch.items()}
    made = _sample(document, "TS-DEBUG", build.recognised(_detect_debug, document, request), entry, request)
    return replace(made, notes=(*made.notes, *mask_notes(entry, made)))


# --- evaluation caches: a list of samples --------------------------------------------------------------------


def _entries(document: Document) -> list[dict[str, Any]]:
    value = document.value
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return []
    return value if all("hidden_states" in item and "input_ids" in item for item in value) else []


def _detect_eval(document: Document, _request: Request) -> str | None:
    return "a LIST of dicts with hidden_states and input_ids" if _entries(document) else None


def _read_eval(document: Document, inner: int, request: Request) -> Capture:
    entries = _entries(document)
    if inner >= len(entries):
        raise UnreadableFile(f"The file '{document.path}' is no list of samples; read it without --format.")
    return _sample(document, "TS-EVAL", build.recognised(_detect_eval, document, request), entries[inner], request)


# --- test dumps and the orphan -------------------------------------------------------------------------------


def _detect_test(document: Document, _request: Request) -> str | None:
    named = {"hidden_states", "last_hidden_states"}
    if not named <= state_fields.named_states(document) or "input_ids" not in document.keys:
        return None
    if not state_fields.some_tensor(document, *named):
        return None
    return "a dict with hidden_states and last_hidden_states"


def _read_test(document: Document, _inner: int, request: Request) -> Capture:
    engine = document.path.name.split("_", 1)[0]
    norm = {
        "sglang": (Norm.POST, "the file is named sglang_*: SGLang hands over the state after the final norm"),
        "vllm": (Norm.PRE, "the file is named vllm_*: vLLM hands over the state before the final norm"),
    }.get(engine, (Norm.UNKNOWN, _UNKNOWN))
    why = build.recognised(_detect_test, document, request)
    return _sample(document, "TS-TESTDUMP", why, document.value, request, norm=norm)


def _detect_orphan(document: Document, _request: Request) -> str | None:
    if (
        state_fields.named_states(document) != {"hidden_states", "aux_hidden_states"}
        or "conversation_id" in document.keys
    ):
        return None
    return (
        "a dict with aux_hidden_states and hidden_states, without conversation_id"
        if "input_ids" in document.keys
        else None
    )


def _read_orphan(document: Document, _inner: int, request: Request) -> Capture:
    why = build.recognised(_detect_orphan, document, request)
    return _sample(document, "TS-ORPHAN", why, document.value, request, ("aux_hidden_states", "hidden_states"))


register(
    Layout(
        "TS-DEBUG",
        "TorchSpec",
        "TorchSpec debug dump of a training batch",
        _detect_debug,
        _read_debug,
        _batch_size,
        several=True,
        ids="O(id)",
    )
)
register(
    Layout(
        "TS-EVAL",
        "TorchSpec",
        "TorchSpec evaluation cache",
        _detect_eval,
        _read_eval,
        lambda document: len(_entries(document)) or 1,
        several=True,
        ids="O(id)",
    )
)
register(Layout("TS-TESTDUMP", "TorchSpec", "TorchSpec test dump", _detect_test, _read_test, ids="O(id)"))
register(
    Layout("TS-ORPHAN", "TorchSpec", "TorchSpec offline reader's layout", _detect_orphan, _read_orphan, ids="O(id)")
)
