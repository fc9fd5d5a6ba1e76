"""AngelSlim (Tencent): EAGLE-3 and DFlash samples.

``hidden_states`` is AUX here and ``target_hiddens`` the last state. Layer ids are recorded nowhere.

Source: Tencent/AngelSlim ``tools/generate_hidden_for_draft_model.py``,
``angelslim/compressor/speculative/train/data/dataset_builder/offline_dataset_builder.py``.
"""

from __future__ import annotations

import re

from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.build import OUTPUTS, Convention
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.registry import Layout, Request, register

_FLASH = Convention("O", "O(id) for the ids of the draft's target_layer_ids")
_POST = "AngelSlim convention: after the final norm (a vLLM run whose norm hook failed stores the state before it)"


def _detect_eagle3(document: Document, _request: Request) -> str | None:
    if not {"target_hiddens", "hidden_states"} <= build.states_in(document):
        return None
    return "a dict with target_hiddens and hidden_states"


def _read_eagle3(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    state = build.rows(build.field(document, "target_hiddens"), "target_hiddens", path)
    aux = build.field(document, "hidden_states")
    parts = build.side_by_side(aux, "hidden_states", path, request, state.width)
    n = request.layers
    rule = [2, n // 2, n - 3] if n is not None and len(parts) == 3 else None
    boundaries, source = OUTPUTS.resolve(request, len(parts), rule)
    return build.capture(
        path,
        "AS-EAGLE3",
        build.recognised(_detect_eagle3, document, request),
        tokens,
        build.slots_of(parts, "hidden_states", boundaries, source),
        last=build.last_state("target_hiddens", state, Norm.POST, _POST),
        mask=build.mask_of(document.value.get("loss_mask"), path),
    )


def _detect_dflash(document: Document, _request: Request) -> str | None:
    states = document.tensor("hidden_states")
    if build.states_in(document) != {"hidden_states"} or states is None or "input_ids" not in document.keys:
        return None
    named = re.fullmatch(r"sample_\d+_rank\d+", document.path.name.split(".", 1)[0])
    if states.ndim not in {2, 3} or not ("attention_mask" in document.keys or named):
        return None
    return "a dict with hidden_states and attention_mask, without a last state"


def _read_dflash(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    states = build.field(document, "hidden_states")
    parts = build.side_by_side(states, "hidden_states", path, request, None)
    boundaries, source = _FLASH.resolve(request, len(parts))
    mask = build.mask_of(document.value.get("loss_mask"), path)
    attention = build.mask_of(document.value.get("attention_mask"), path, "attention_mask")
    return build.capture(
        path,
        "AS-DFLASH",
        build.recognised(_detect_dflash, document, request),
        tokens,
        build.slots_of(parts, "hidden_states", boundaries, source),
        mask=mask,
        valid_length=build.valid_length(tokens, mask, attention),
    )


register(Layout("AS-EAGLE3", "AngelSlim EAGLE-3", _detect_eagle3, _read_eagle3))
register(Layout("AS-DFLASH", "AngelSlim DFlash", _detect_dflash, _read_dflash))
