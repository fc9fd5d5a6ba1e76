"""Which state of a capture is the target's embedding, and of which tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.checked_states import Check, CheckedState, number, spread
from drafttrace.tracer.dumps.automodel_manifest import EMBEDDINGS, embedding_of
from drafttrace.tracer.dumps.tensor import StoredRows
from drafttrace.tracer.embedding_match import Match, match, nearest
from drafttrace.tracer.target_weights import TargetWeights

_Place = tuple[int, str]  # offset of the tokens, name of the factor


def embedding_checks(states: Sequence[CheckedState], tokens: Ints, target: TargetWeights) -> list[Check]:
    """An answer for every state that is the embedding, may be it, or is declared to be it and is not."""
    best = [_best(state, tokens, target) for state in states]
    is_it = [False] * len(states)
    for place in {found[0] for found in best if found is not None}:
        there = nearest([found[1] if found is not None and found[0] == place else None for found in best])
        is_it = [one or other for one, other in zip(is_it, there, strict=True)]
    known = next((state.name for state, it in zip(states, is_it, strict=True) if it), None)
    checks = [
        _check(state, *found, it, known)
        for state, found, it in zip(states, best, is_it, strict=True)
        if found is not None
    ]
    return [check for check in checks if check is not None]


def _best(state: CheckedState, tokens: Ints, target: TargetWeights) -> tuple[_Place, Match] | None:
    """The offset and the factor at which a state is nearest to the embedding; None where nothing can be measured."""
    positions = spread(state.positions(), 64)
    raw, scale = state.rows.take_raw(state.at[positions])
    best: tuple[_Place, Match] | None = None
    for offset in (0, 1, -1):
        index = positions + offset
        good = (index >= 0) & (index < len(tokens))
        good[good] &= target.inside(tokens[index[good]])
        if not good.any():
            continue
        expected = target.embedding(tokens[index[good]])
        for name, factor in target.embedding_scales().items():
            scales = None if scale is None else scale[good]
            found = match(raw[good], state.rows.dtype, scales, expected * np.float32(factor))
            if math.isfinite(found.distance) and (best is None or found.distance < best[1].distance):
                best = (offset, name), found
    return best


def _check(state: CheckedState, place: _Place, found: Match, is_it: bool, known: str | None) -> Check | None:
    """known: the name of a state that is the embedding."""
    (offset, factor), distance = place, found.distance
    times = "" if factor == "1" else f" times {factor}"
    evidence = {
        "rel_l2": number(distance),
        "rounding": number(found.rounding),
        "token_offset": offset,
        "embedding_scale": factor,
    }
    if is_it and offset:
        summary = (
            f"{state.name} is the embedding{times} of the token at t{offset:+d}, not of the token at t: ids and states "
            "are shifted against each other."
        )
        return Check("embedding", state.name, "found", summary, evidence)
    if is_it and state.declared == 0:
        summary = f"{state.name} is declared B0 and is the embedding{times}."
        return Check("embedding", state.name, "confirmed", summary, evidence)
    if is_it:
        what = (
            "the last state"
            if state.is_last
            else f"declared {boundary_name(state.declared)}"
            if state.declared
            else ""
        )
        said = f", though it is {what}" if what else ""
        return Check("embedding", state.name, "found", f"{state.name} is B0, the embedding{times}{said}.", evidence)
    if known is None and found.is_open and (state.declared or 0) == 0 and not state.is_last:
        why = (
            f"relative L2 {distance:.3g}, which rounding before it was stored may have left"
            if found.is_told
            else f"{state.rows.dtype.value} with its scale keeps too little of numbers as small as the embedding's"
        )
        summary = f"{state.name} may be B0, the embedding{times}, or not: {why}; a reference run tells."
        return Check("embedding", state.name, "undecided", summary, evidence)
    if state.declared == 0:
        but = f", and {known} is" if known is not None else ""
        summary = f"{state.name} is declared B0 but is not the embedding (relative L2 {distance:.3g}){but}."
        return Check("embedding", state.name, "refuted", summary, evidence)
    return None


def stored_embedding_checks(capture: Capture, tokens: Ints, target: TargetWeights) -> list[Check]:
    """The embedding that a cache keeps beside its shards for the draft (NeMo Automodel), and the vocabulary that its
    manifest declares, against the target's."""
    folder, layout = capture.about.get("folder"), capture.format
    if layout not in EMBEDDINGS or not isinstance(folder, str):
        return []
    found, name = [], EMBEDDINGS[layout][0]
    said, vocabulary = capture.about.get("manifest", {}).get("target_vocab_size"), target.shape.vocab_size
    if type(said) is int and said != vocabulary:
        summary = (
            f"manifest.json says target_vocab_size {said}, and this target has {vocabulary} tokens: another target."
        )
        found.append(
            Check("vocabulary", "manifest.json", "refuted", summary, {"declared": said, "vocab_size": vocabulary})
        )
    weight = embedding_of(layout, Path(folder))
    if (
        weight is None
        or weight.ndim != 2
        or weight.float_kind is None
        or weight.shape[1] != target.shape.hidden_size
    ):
        return found
    there = np.unique(tokens[(tokens >= 0) & (tokens < weight.shape[0]) & target.inside(tokens)])
    if not len(there):
        return found
    ids = spread(there, 64)
    rows = StoredRows(weight, weight.float_kind)
    raw, scale = rows.take_raw(ids)
    held = match(raw, rows.dtype, scale, target.embedding(ids))
    same = held.is_same
    summary = (
        f"{name} holds the target's embedding."
        if same
        else (
            f"{name} holds another embedding than the target's, from which the draft's was to be made: another target."
        )
    )
    evidence = {"rel_l2": number(held.distance), "rows": len(ids)}
    return [*found, Check("stored-embedding", name, "confirmed" if same else "refuted", summary, evidence)]
