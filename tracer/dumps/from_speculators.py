"""speculators (vllm-project): the Arrow folder with ``hs_{i}.safetensors``, its FP8 form, and the two legacy forms.

The vLLM connector that writes ``hs_{i}.safetensors`` writes the same layout under a request's name: VLLM-HS. Files
written by ``drafttrace reference`` are that layout too, with metadata that states what the layout leaves unsaid.

Sources: vllm-project/speculators ``src/speculators/train/data.py`` (``standardize_data_v0``, ``standardize_data_v1``,
``ArrowDataset``), ``hs_connectors`` 0.9.0, vLLM ``ExampleHiddenStatesConnector``.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from drafttrace.tracer.assumed_wiring import was_assumed
from drafttrace.tracer.capture import Capture, Norm, Slot
from drafttrace.tracer.dumps import build, state_fields
from drafttrace.tracer.dumps.arrow_masks import mask_for, other_columns
from drafttrace.tracer.dumps.build import ASSUMED, ENTRIES
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.listed_ids import data_config, unordered_note, v1_ids
from drafttrace.tracer.dumps.registry import Layout, Request, register
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import Floats, Rows

METADATA_FORMAT = "drafttrace.capture/1"
_HS_NAME = re.compile(r"hs_(\d+)$")


# --- current: safetensors ------------------------------------------------------------------------------------


def _is_states_file(document: Document, scales: bool) -> bool:
    if document.container != "safetensors":
        return False
    wanted = {"hidden_states", "token_ids"} | ({"hidden_states_scales"} if scales else set())
    states = document.tensor("hidden_states")
    return document.keys == wanted and states is not None and states.ndim in {3, 4}


def _detect_arrow(document: Document, _request: Request) -> str | None:
    if not _is_states_file(document, False) or not _HS_NAME.search(document.path.stem):
        return None
    if document.metadata.get("format") == METADATA_FORMAT:
        return None
    return "safetensors with hidden_states [L, K+1, H] and token_ids, named hs_{i}"


def _detect_vllm(document: Document, _request: Request) -> str | None:
    if not _is_states_file(document, False) or _HS_NAME.search(document.path.stem):
        return None
    if document.metadata.get("format") == METADATA_FORMAT:
        return None
    return "safetensors with hidden_states [L, K+1, H] and token_ids"


def _detect_fp8(document: Document, _request: Request) -> str | None:
    if not _is_states_file(document, True):
        return None
    return "safetensors with hidden_states [L, K+1, H], hidden_states_scales and token_ids"


def _read_current(document: Document, layout: str, why: str, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "token_ids"), "token_ids", path)
    states = build.field(document, "hidden_states")
    scales = _scales(document, states)
    parts = build.axis_slots(states, "hidden_states", path, 1, scales)
    count = len(parts) - 1
    boundaries, source = ENTRIES.resolve(request, count)
    unordered = unordered_note(request, "vLLM")
    unasked = request.tokens_only and not request.with_mask
    mask, arrow, note = (None, None, "") if unasked else mask_for(path, tokens)
    last = build.last_state(
        f"hidden_states[{count}]",
        parts[count],
        Norm.PRE,
        f"{ASSUMED}: the last entry is the stream before the final norm (vLLM layer id n); the file records no ids, "
        "and --no-include-last-layer would put an aux layer here",
    )
    return build.capture(
        path,
        layout,
        why,
        tokens,
        build.slots_of(parts[:count], "hidden_states", boundaries, source),
        last=last,
        mask=mask,
        mask_offset=1,
        about={"arrow": str(arrow) if arrow is not None else None},
        notes=(*([note] if note else []), *_one_short(len(parts)), *unordered),
        unread=other_columns(arrow) if arrow is not None else {},
    )


def _one_short(count: int) -> list[str]:
    """What may be wrong with a stack of three entries."""
    if count != 3:
        return []
    return [
        "3 entries, where EAGLE-3 has three slots and the last state: --no-include-last-layer leaves that one out, and the "
        "third slot stands in its place"
    ]


def _scales(document: Document, states: Tensor) -> Floats | None:
    stored = document.tensor("hidden_states_scales")
    if stored is None:
        return None
    count, wanted = math.prod(stored.shape), states.shape[-3] if states.ndim >= 3 else 0
    if count != wanted:
        raise UnreadableFile(
            f"The file '{document.path}' has {count:,} scales for {wanted:,} rows; write it again."
        )
    return build.few_numbers(stored, "hidden_states_scales", document.path).floats().reshape(-1)


# --- current layout, written by drafttrace reference ---------------------------------------------------------


def _detect_reference(document: Document, _request: Request) -> str | None:
    if document.metadata.get("format") != METADATA_FORMAT:
        return None
    return f"safetensors whose metadata says {METADATA_FORMAT}"


def _read_reference(document: Document, _inner: int, _request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "token_ids"), "token_ids", path)
    parts = build.axis_slots(build.field(document, "hidden_states"), "hidden_states", path, 1)
    stated = _int_list(document, "boundaries", len(parts))
    slots_wanted = _int_list(document, "slots", None)
    layers = _number(document, "layers")
    last_at = _number(document, "last") if "last" in document.metadata else layers
    source = f"metadata of the file (written by {document.metadata.get('written_by', 'drafttrace')})"
    by_boundary: dict[int, Rows] = dict(zip(stated, parts, strict=True))
    missing = [k for k in slots_wanted if k not in by_boundary]
    if missing:
        raise UnreadableFile(
            f"The file '{path}' names B{missing[0]} as a slot but holds no B{missing[0]}; make it again."
        )
    slots = tuple(Slot(f"hidden_states[{stated.index(k)}]", by_boundary[k], k, source) for k in slots_wanted)
    last = None
    if last_at is not None and last_at in by_boundary:
        name = f"hidden_states[{stated.index(last_at)}]"
        last = build.last_state(name, by_boundary[last_at], Norm.PRE, source, last_at)
    mask = build.mask_of(document.value.get("loss_mask"), path)
    embed = Slot(f"hidden_states[{stated.index(0)}]", by_boundary[0], 0, source) if 0 in by_boundary else None
    return build.capture(
        path,
        "DRAFTTRACE",
        f"safetensors whose metadata says {METADATA_FORMAT}",
        tokens,
        slots,
        last=last,
        embed=embed,
        boundaries=by_boundary,
        mask=mask,
        mask_offset=int(document.metadata.get("mask_offset", "0") == "1"),
        valid_length=len(tokens),
        about={
            "metadata": dict(document.metadata),
            "target_layers": layers,
            "assumed_wiring": was_assumed(document.metadata, slots_wanted, layers),
        },
    )


def _number(document: Document, name: str) -> int | None:
    text = document.metadata.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None


def _int_list(document: Document, name: str, count: int | None) -> list[int]:
    try:
        value = json.loads(document.metadata.get(name, "null"))
    except (ValueError, RecursionError):
        value = None
    good = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    if not good or len(set(value)) != len(value) or (count is not None and len(value) != count):
        raise UnreadableFile(
            f"The metadata '{name}' of '{document.path}' is no list of boundaries that fits its tensors; write the "
            "file again with drafttrace reference."
        )
    return list(value)


# --- legacy v1: a list of states per sample, ids beside it ---------------------------------------------------


def _detect_v1(document: Document, _request: Request) -> str | None:
    if not isinstance(document.value, dict) or not isinstance(document.value.get("hidden_states"), list):
        return None
    if "input_ids" not in document.keys:
        return None
    return "a dict whose hidden_states is a LIST of tensors [L, H]"


def _read_v1(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    stored = document.value.get("hidden_states")
    if not isinstance(stored, list):
        raise UnreadableFile(
            f"The file '{path}' has no list 'hidden_states', which SPEC-V1 is; leave --format out, or name another."
        )
    parts = [_entry(path, k, value) for k, value in enumerate(stored)]
    if not parts:
        raise UnreadableFile(f"The list 'hidden_states' of '{path}' is empty; dump the sample again.")
    config_path, config = data_config(path)
    ids, source, notes = v1_ids(config_path, config, len(parts), request)
    boundaries = [None if k is None else k + 1 for k in ids]
    last_boundary = boundaries[-1]
    n = request.layers
    if n is not None and last_boundary is not None and last_boundary != n:
        notes.append(
            f"the last entry is declared B{last_boundary}, but the target's last boundary is B{n}: the 'last state' "
            "of this dump is an inner layer"
        )
    name = f"hidden_states[{len(parts) - 1}]"
    why = "speculators v1 convention: layer outputs without the final norm" + (
        f"; declared as B{last_boundary} by {source}" if last_boundary is not None else ""
    )
    return build.capture(
        path,
        "SPEC-V1",
        _detect_v1(document, request) or build.FORCED,
        tokens,
        build.slots_of(parts[:-1], "hidden_states", boundaries[:-1], source),
        last=build.last_state(name, parts[-1], Norm.PRE, why, last_boundary),
        mask=build.mask_of(document.value.get("loss_mask"), path),
        mask_offset=1,
        about={"data_config": config, "data_config_path": None if config_path is None else str(config_path)},
        notes=tuple(notes),
    )


def _entry(path: Path, k: int, value: Any) -> Rows:
    if not isinstance(value, Tensor):
        raise UnreadableFile(
            f"Entry {k} of 'hidden_states' in '{path}' is {type(value).__name__}, no tensor; write it again."
        )
    return build.rows(value, f"hidden_states[{k}]", path)


# --- legacy v0 -----------------------------------------------------------------------------------------------


def _detect_v0(document: Document, _request: Request) -> str | None:
    if not {"hidden_state", "target"} <= document.keys or not state_fields.some_tensor(
        document, "hidden_state", "target"
    ):
        return None
    if "attention_mask" in document.keys:  # an online sample of SpecForge
        return None
    return "a dict with hidden_state [L, 3H] and target [L, H]"


def _read_v0(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    norm = Norm.POST, "speculators v0 convention: hidden_states[-1] of transformers"
    states = build.slots_and_last(document, "hidden_state", "target", request, norm)
    boundaries, source = ENTRIES.resolve(request, len(states.parts))
    return build.capture(
        path,
        "SPEC-V0",
        _detect_v0(document, request) or build.FORCED,
        tokens,
        build.slots_of(states.parts, "hidden_state", boundaries, source),
        last=states.last,
        mask=build.mask_of(document.value.get("loss_mask"), path),
        mask_offset=1,
        notes=states.notes,
    )


def _current(layout: str, detect: Any) -> Any:
    def read(document: Document, _inner: int, request: Request) -> Capture:
        return _read_current(document, layout, detect(document, request) or build.FORCED, request)

    return read


register(
    Layout(
        "SPEC-ARROW",
        "speculators",
        "speculators 0.5+ (hs_i.safetensors beside an Arrow folder)",
        _detect_arrow,
        _current("SPEC-ARROW", _detect_arrow),
        ids="B(id)",
    )
)
register(
    Layout(
        "VLLM-HS",
        "vLLM hidden-states connector",
        "vLLM hidden-states connector",
        _detect_vllm,
        _current("VLLM-HS", _detect_vllm),
        ids="B(id)",
    )
)
register(
    Layout(
        "SPEC-FP8",
        "speculators",
        "speculators 0.9 with fp8 states",
        _detect_fp8,
        _current("SPEC-FP8", _detect_fp8),
        ids="B(id)",
    )
)
register(
    Layout(
        "DRAFTTRACE",
        "traces and references of drafttrace",
        "drafttrace reference",
        _detect_reference,
        _read_reference,
    )
)
register(Layout("SPEC-V1", "speculators", "speculators 0.3 and 0.4 (data_i.pt)", _detect_v1, _read_v1, ids="O(id)"))
register(Layout("SPEC-V0", "speculators", "speculators before 0.3", _detect_v0, _read_v0, ids="B(id)"))
