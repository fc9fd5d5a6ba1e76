"""EAGLE-1/2 and HASS (last state only), and BaldEagle (plain, fused, and a user's variant of issue #18).

``hidden_state`` is the last state after the final norm, except in BaldEagle's fused files, where it is three slots
with the slot axis FIRST. EAGLE-3 itself writes no dump.

Sources: SafeAILab/EAGLE ``eagle/ge_data/``, HArmonizedSS/HASS ``ge_data/``, NickL77/BaldEagle ``generate_data/``.
"""

from __future__ import annotations

import re

from drafttrace.tracer.capture import Capture, LastState, Norm, Slot
from drafttrace.tracer.dumps import build, state_fields
from drafttrace.tracer.dumps.build import ENTRIES
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.registry import Layout, Request, register
from drafttrace.tracer.dumps.tensor import Tensor

_POST = "convention of the project: hidden_states[-1] of transformers, after the final norm"


def _lone(document: Document) -> Tensor | None:
    if state_fields.named_states(document) != {"hidden_state"} or "input_ids" not in document.keys:
        return None
    known = {"input_ids", "hidden_state", "loss_mask"}
    return document.tensor("hidden_state") if document.keys <= known else None


def _detect_eagle(document: Document, request: Request) -> str | None:
    state = _lone(document)
    if state is None or state.ndim != 2 or request.is_vocabulary(state.shape[-1]):
        return None
    return "a dict with hidden_state [L, H]"


def _detect_plain(document: Document, request: Request) -> str | None:
    state = _lone(document)
    if state is None or state.ndim != 3 or state.shape[0] != 1 or request.is_vocabulary(state.shape[-1]):
        return None
    if request.hidden_for(state.shape[-1]) not in {None, state.shape[-1]}:
        return None
    if re.fullmatch(r"rows_\d+-\d+", document.path.parent.name):  # SpecForge's own folders
        return None
    return "a dict with hidden_state [1, L, H]"


def _detect_fused(document: Document, _request: Request) -> str | None:
    state = _lone(document)
    return (
        "a dict with hidden_state [3, L, H]"
        if state is not None and state.ndim == 3 and state.shape[0] == 3
        else None
    )


def _detect_target(document: Document, _request: Request) -> str | None:
    named = {"hidden_state", "target_hidden_states"}
    if state_fields.named_states(document) != named or not state_fields.some_tensor(document, *named):
        return None
    return "a dict with hidden_state [1, L, 3H] and target_hidden_states"


def _sample(
    document: Document,
    layout: str,
    why: str,
    slots: tuple[Slot, ...],
    last: LastState | None,
    notes: tuple[str, ...] = (),
) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    mask = build.mask_of(document.value.get("loss_mask"), path)
    valid = len(tokens)  # every file is one sample as long as it is: nobody pads it
    return build.capture(path, layout, why, tokens, slots, last=last, mask=mask, valid_length=valid, notes=notes)


def _last_only(layout: str, document: Document, why: str) -> Capture:
    state = build.rows(build.field(document, "hidden_state"), "hidden_state", document.path)
    return _sample(document, layout, why, (), build.last_state("hidden_state", state, Norm.POST, _POST))


def _read_eagle(document: Document, _inner: int, request: Request) -> Capture:
    return _last_only("EAGLE12-CKPT", document, build.recognised(_detect_eagle, document, request))


def _read_plain(document: Document, _inner: int, request: Request) -> Capture:
    return _last_only("BALD-PLAIN", document, build.recognised(_detect_plain, document, request))


def _read_fused(document: Document, _inner: int, request: Request) -> Capture:
    parts = build.axis_slots(build.field(document, "hidden_state"), "hidden_state", document.path, 0)
    boundaries, source = ENTRIES.resolve(request, len(parts))
    slots = build.slots_of(parts, "hidden_state", boundaries, source)
    return _sample(document, "BALD-FUSED", build.recognised(_detect_fused, document, request), slots, None)


def _read_target(document: Document, _inner: int, request: Request) -> Capture:
    found = build.slots_and_last(document, "hidden_state", "target_hidden_states", request, (Norm.POST, _POST))
    boundaries, source = ENTRIES.resolve(request, len(found.parts))
    slots = build.slots_of(found.parts, "hidden_state", boundaries, source)
    why = build.recognised(_detect_target, document, request)
    return _sample(document, "BALD-TARGET", why, slots, found.last, found.notes)


register(Layout("EAGLE12-CKPT", "EAGLE-1/2, HASS", "EAGLE-1/2 or HASS", _detect_eagle, _read_eagle))
register(Layout("BALD-PLAIN", "BaldEagle", "BaldEagle, plain", _detect_plain, _read_plain))
register(Layout("BALD-FUSED", "BaldEagle", "BaldEagle, fused features", _detect_fused, _read_fused, ids="B(id)"))
register(
    Layout(
        "BALD-TARGET", "BaldEagle", "BaldEagle, variant of its issue #18", _detect_target, _read_target, ids="B(id)"
    )
)
