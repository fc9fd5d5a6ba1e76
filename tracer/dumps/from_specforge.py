"""SpecForge: EAGLE-3, DFlash / Domino and DSpark samples, the MTP fork, and two broken historical commits.

No file of SpecForge records layer ids. ``hidden_state`` is the LAST state here, after the final norm; states and
ids are unshifted, and padded at the end since cd32229d (2025-11-12).

Source: sgl-project/SpecForge ``scripts/prepare_hidden_states.py``, ``specforge/runtime/data_plane/``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from drafttrace.tracer.capture import Capture, Ints, LastState, Norm
from drafttrace.tracer.dumps import build, state_fields
from drafttrace.tracer.dumps.build import OUTPUTS, Convention
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.registry import VOCABULARY, Layout, Request, register
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.rows import Rows

FLASH = Convention(
    "O", "O(id) for the ids of dflash_config.target_layer_ids, else evenly spaced from 1 to n-3", False
)
_POST = "SpecForge convention: what SGLang hands to its logits processor, after the final norm"

# Slots that a draft of EAGLE-3 may read. A state as wide as more of the target's is one of another target.
_MOST_SLOTS = 8


def _width(document: Document, name: str) -> int:
    tensor = document.tensor(name)
    return 0 if tensor is None or not tensor.shape else tensor.shape[-1]


# --- EAGLE-3 -------------------------------------------------------------------------------------------------


def _has_aux(document: Document) -> bool:
    return (
        isinstance(document.value, dict) and "aux_hidden_state" in document.value and "input_ids" in document.keys
    )


def _last_is_logits(document: Document, request: Request) -> bool:
    """Three slots are wider than any last state beside them. A narrower ``hidden_state`` that does not divide them is
    logits only where it is as wide as a vocabulary, or where the slots are the target's and it is not; else the file is
    damaged, and whoever reads it says so."""
    aux, last = _width(document, "aux_hidden_state"), _width(document, "hidden_state")
    if not (aux and last):
        return request.is_vocabulary(last)
    hidden = request.hidden_size
    ours = hidden is not None and aux == 3 * hidden and last > hidden
    known = ours and request.vocabulary in {None, last}
    return last > aux or (aux % last != 0 and (last >= VOCABULARY or known))


def _detect_eagle3(document: Document, request: Request) -> str | None:
    if not _has_aux(document) or _last_is_logits(document, request):
        return None
    return "a dict with aux_hidden_state (singular) and hidden_state"


def _read_eagle3(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    aux = document.tensor("aux_hidden_state")
    width = None if aux is None else _slot_width(aux, request)
    found = build.slots_and_last(
        document, "aux_hidden_state", "hidden_state", request, (Norm.POST, _POST), width=width
    )
    why = build.recognised(_detect_eagle3, document, request)
    return _sample(
        document, "SF-EAGLE3", why, tokens, found.parts, "aux_hidden_state", request, found.last, found.notes
    )


def _slot_width(aux: Tensor, request: Request) -> int | None:
    """As :func:`_third`; but forks store more slots, and where the states can be of the hidden size, it tells how many."""
    width, hidden = aux.shape[-1] if aux.shape else 0, request.hidden_size
    if hidden is not None and width % hidden == 0 and (not request.inferred or width // hidden <= _MOST_SLOTS):
        return hidden
    return _third(aux)


def _third(aux: Tensor) -> int | None:
    """SpecForge EAGLE-3 always stores three slots."""
    return aux.shape[-1] // 3 if aux.shape and aux.shape[-1] % 3 == 0 else None


def _sample(
    document: Document,
    layout: str,
    why: str,
    tokens: Ints,
    parts: Sequence[Rows],
    name: str,
    request: Request,
    last: LastState | None,
    notes: tuple[str, ...] = (),
    convention: Convention = OUTPUTS,
    **about: Any,
) -> Capture:
    """What every SpecForge layout shares: mask, padding, assumed layer ids."""
    path = document.path
    boundaries, source = convention.resolve(request, len(parts))
    mask = build.mask_of(document.value.get("loss_mask"), path)
    attention = build.mask_of(document.value.get("attention_mask"), path, "attention_mask")
    valid = build.valid_length(tokens, mask, attention)
    if valid < len(tokens):
        notes = (*notes, f"{len(tokens) - valid} padded rows at the end")
    return build.capture(
        path,
        layout,
        why,
        tokens,
        build.slots_of(parts, name, boundaries, source),
        last=last,
        mask=mask,
        valid_length=valid,
        notes=notes,
        about=about,
    )


# --- two broken commits --------------------------------------------------------------------------------------


def _detect_logits(document: Document, request: Request) -> str | None:
    if _has_aux(document) and _last_is_logits(document, request):
        aux, last = _width(document, "aux_hidden_state"), _width(document, "hidden_state")
        return (
            f"hidden_state is {last} wide, more than one of the three slots of aux_hidden_state ({aux} together): shifted "
            "logits (SpecForge d5de56f7)"
        )
    state = _lone_state(document)
    if state is None or state.ndim not in {2, 3} or state.shape[:-2] not in {(), (1,)}:
        return None
    width = state.shape[-1]
    if not request.is_vocabulary(width):
        return None
    whose = "the target's" if width == request.vocabulary else "a"
    return f"hidden_state is {width} wide, as wide as {whose} vocabulary: shifted logits (SpecForge d5de56f7)"


def _read_logits(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    parts: list[Rows] = []
    aux = document.tensor("aux_hidden_state")
    if aux is not None:
        parts = list(build.side_by_side(aux, "aux_hidden_state", path, request, _third(aux)))
    notes: tuple[str, ...] = (
        "no last state: SpecForge commit d5de56f7 stored full-vocabulary logits, shifted by one, as hidden_state",
    )
    if aux is None and "aux_hidden_state" in document.keys:
        notes = (*notes, "no slots: aux_hidden_state is None")
    why = build.recognised(_detect_logits, document, request)
    width = _width(document, "hidden_state")
    if width and request.vocabulary not in {None, width}:
        notes = (
            *notes,
            f"the logits are {width} wide, the target's vocabulary has {request.vocabulary} tokens: another target",
        )
    return _sample(
        document, "SF-D5DE56F7", why, tokens, parts, "aux_hidden_state", request, None, notes, logits_width=width
    )


def _lone_state(document: Document) -> Tensor | None:
    """``hidden_state`` where it is the only state of the dict."""
    return document.tensor("hidden_state") if state_fields.named_states(document) == {"hidden_state"} else None


def _batched_state(document: Document) -> Tensor | None:
    """A lone ``hidden_state`` of the shape ``[1, L, W]``."""
    state = _lone_state(document)
    if state is None or state.ndim != 3 or state.shape[0] != 1 or "aux_hidden_state" in document.keys:
        return None
    return state


def _detect_three(document: Document, request: Request) -> str | None:
    state = _batched_state(document)
    if state is None or state.shape[-1] % 3 or "attention_mask" in document.keys:
        return None
    if _detect_logits(document, request) is not None:
        return None
    hidden = request.hidden_for(state.shape[-1])
    if hidden is not None and state.shape[-1] != 3 * hidden:
        return None
    return "hidden_state [1, L, 3H] alone: the aux states under the name of the last one (SpecForge 35504d45)"


def _read_three(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    state = build.field(document, "hidden_state")
    parts = list(build.side_by_side(state, "hidden_state", path, request, _third(state)))
    note = "no last state: SpecForge commit 35504d45 stored the aux states as hidden_state"
    why = build.recognised(_detect_three, document, request)
    return _sample(document, "SF-35504D45", why, tokens, parts, "hidden_state", request, None, (note,))


# --- without aux, and the MTP fork ---------------------------------------------------------------------------


def _detect_last_only(document: Document, request: Request) -> str | None:
    state = _batched_state(document)
    if state is None or "attention_mask" in document.keys or _detect_logits(document, request) is not None:
        return None
    if request.hidden_for(state.shape[-1]) not in {None, state.shape[-1]}:
        return None
    if re.fullmatch(r"\d+", document.path.parent.name):  # BaldEagle's {index}/data_i.ckpt
        return None
    return "hidden_state [1, L, H] alone, as SpecForge v0.1 writes without --enable-aux-hidden-states"


def _read_last_only(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    state = build.rows(build.field(document, "hidden_state"), "hidden_state", path)
    last = build.last_state("hidden_state", state, Norm.POST, _POST)
    why = build.recognised(_detect_last_only, document, request)
    return _sample(document, "SF-LAST", why, tokens, [], "hidden_state", request, last)


def _detect_fork(document: Document, _request: Request) -> str | None:
    states = state_fields.named_states(document)
    if states == {"last_hidden"} and "input_ids" in document.keys:
        return "a dict with last_hidden"
    if states == {"hidden_state"} and {"input_ids", "attention_mask"} <= document.keys:
        return "a dict with hidden_state and attention_mask"
    return None


def _read_fork(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    name = "last_hidden" if "last_hidden" in document.keys else "hidden_state"
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    state = build.rows(build.field(document, name), name, path)
    why = "MTP fork of SpecForge: what SGLang hands to its logits processor, after the final norm"
    last = build.last_state(name, state, Norm.POST, why)
    reason = build.recognised(_detect_fork, document, request)
    return _sample(document, "SF-MTP-FORK", reason, tokens, [], name, request, last)


# --- an online sample, where the names mean the opposite -----------------------------------------------------


def _detect_online(document: Document, _request: Request) -> str | None:
    if not {"hidden_state", "target", "attention_mask"} <= document.keys:
        return None
    found = state_fields.some_tensor(document, "hidden_state", "target")
    return "a dict with hidden_state, target and attention_mask" if found else None


def _read_online(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    found = build.slots_and_last(document, "hidden_state", "target", request, (Norm.POST, _POST))
    why = build.recognised(_detect_online, document, request)
    return _sample(
        document, "SF-ONLINE", why, tokens, found.parts, "hidden_state", request, found.last, found.notes
    )


# --- DFlash, Domino, DSpark ----------------------------------------------------------------------------------


def _detect_dflash(document: Document, _request: Request) -> str | None:
    states = document.tensor("hidden_states")
    if (
        state_fields.named_states(document) != {"hidden_states"}
        or states is None
        or "input_ids" not in document.keys
    ):
        return None
    named = re.fullmatch(r"sample_\d+_rank\d+", document.path.name.split(".", 1)[0])
    if states.ndim not in {2, 3} or "attention_mask" in document.keys or named:
        return None
    return "a dict with hidden_states [1, L, K*H] and no last state"


def _read_dflash(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    states = build.field(document, "hidden_states")
    parts = list(build.side_by_side(states, "hidden_states", path, request, None))
    why = build.recognised(_detect_dflash, document, request)
    return _sample(document, "SF-DFLASH", why, tokens, parts, "hidden_states", request, None, (), FLASH)


def _detect_dspark(document: Document, _request: Request) -> str | None:
    named = {"hidden_states", "target_last_hidden_states"}
    if not named <= state_fields.named_states(document) or not state_fields.some_tensor(document, *named):
        return None
    return "a dict with hidden_states and target_last_hidden_states"


def _read_dspark(document: Document, _inner: int, request: Request) -> Capture:
    path = document.path
    tokens = build.token_ids(build.field(document, "input_ids"), "input_ids", path)
    found = build.slots_and_last(
        document, "hidden_states", "target_last_hidden_states", request, (Norm.POST, _POST)
    )
    why = build.recognised(_detect_dspark, document, request)
    return _sample(
        document, "SF-DSPARK", why, tokens, found.parts, "hidden_states", request, found.last, found.notes, FLASH
    )


register(Layout("SF-EAGLE3", "SpecForge", "SpecForge EAGLE-3", _detect_eagle3, _read_eagle3, ids="O(id)"))
register(
    Layout(
        "SF-D5DE56F7",
        "SpecForge",
        "SpecForge at the broken commit d5de56f7 (logits)",
        _detect_logits,
        _read_logits,
        ids="O(id)",
    )
)
register(
    Layout(
        "SF-35504D45",
        "SpecForge",
        "SpecForge at the broken commit 35504d45 (aux as last)",
        _detect_three,
        _read_three,
        ids="O(id)",
    )
)
register(Layout("SF-LAST", "SpecForge", "SpecForge v0.1 without aux states", _detect_last_only, _read_last_only))
register(Layout("SF-MTP-FORK", "SpecForge", "MTP fork of SpecForge", _detect_fork, _read_fork))
register(
    Layout(
        "SF-ONLINE",
        "SpecForge",
        "SpecForge online sample, dumped by its feature store",
        _detect_online,
        _read_online,
        ids="O(id)",
    )
)
register(Layout("SF-DFLASH", "SpecForge", "SpecForge DFlash or Domino", _detect_dflash, _read_dflash, ids="O(id)"))
register(Layout("SF-DSPARK", "SpecForge", "SpecForge DSpark", _detect_dspark, _read_dspark, ids="O(id)"))
