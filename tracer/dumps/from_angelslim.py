"""AngelSlim (Tencent): EAGLE-3 and DFlash samples.

``hidden_states`` is AUX here and ``target_hiddens`` the last state. Layer ids are recorded nowhere.

Source: Tencent/AngelSlim ``tools/generate_hidden_for_draft_model.py``,
``angelslim/compressor/speculative/train/data/dataset_builder/offline_dataset_builder.py``.
"""

from __future__ import annotations

import re

from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.dumps import build, state_fields
from drafttrace.tracer.dumps.build import OUTPUTS, Convention
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.registry import Layout, Request, register

_FLASH = Convention("O", "O(id) for the ids of the draft's target_layer_ids", False)
_POST = "AngelSlim convention: after the final norm (a vLLM run whose norm hook failed stores the state before it)"


def _detect_eagle3(document: Document, _request: Request) -> str | None:
    named = {"target_hiddens", "hidden_states"}
    if not named <= state_fields.named_states(document) or not state_fields.some_tensor(document, *named):
        return None
    return "a dict with target_hiddens and hidden_states"


def _read_eagle3(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    states = build.slots_and_last(document, "hidden_states", "target_hiddens", request, (Norm.POST, _POST))
    boundaries, source = OUTPUTS.resolve(request, len(states.parts))
    return build.capture(
        path,
        "AS-EAGLE3",
        build.recognised(_detect_eagle3, document, request),
        tokens,
        build.slots_of(states.parts, "hidden_states", boundaries, source),
        last=states.last,
        mask=build.mask_of(document.value.get("loss_mask"), path),
        notes=states.notes,
    )


def _detect_dflash(document: Document, _request: Request) -> str | None:
    states = document.tensor("hidden_states")
    if (
        state_fields.named_states(document) != {"hidden_states"}
        or states is None
        or "input_ids" not in document.keys
    ):
        return None
    named = re.fullmatch(r"sample_\d+_rank\d+", document.path.name.split(".", 1)[0])
    if states.ndim not in {2, 3} or not ("attention_mask" in document.keys or named):
        return None
    if "attention_mask" in document.keys:
        return "a dict with hidden_states and attention_mask, without a last state"
    return (
        "a dict with hidden_states and without a last state, in a file named sample_{i}_rank{r}; by its content alone it "
        "could be SF-DFLASH (--format SF-DFLASH reads it so)"
    )


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


register(Layout("AS-EAGLE3", "AngelSlim", "AngelSlim EAGLE-3", _detect_eagle3, _read_eagle3, ids="O(id)"))
register(Layout("AS-DFLASH", "AngelSlim", "AngelSlim DFlash", _detect_dflash, _read_dflash, ids="O(id)"))
