"""Which state of a capture is the target's embedding, and of which tokens."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.checked_states import Check, CheckedState, number, spread
from drafttrace.tracer.dumps.automodel_manifest import EMBEDDINGS, embedding_of
from drafttrace.tracer.dumps.tensor import StoredRows
from drafttrace.tracer.rows import Floats
from drafttrace.tracer.target_weights import TargetWeights

# A bf16 copy of an embedding differs by rounding only; a neighbouring boundary differs by far more.
_EXACT = 0.02


def embedding_checks(state: CheckedState, tokens: Ints, target: TargetWeights) -> list[Check]:
    positions = spread(state.positions(), 64)
    values = state.take(positions)
    best: tuple[float, int, str] = (math.inf, 0, "")
    for offset in (0, 1, -1):
        index = positions + offset
        good = (index >= 0) & (index < len(tokens))
        good[good] &= target.inside(tokens[index[good]])
        if not good.any():
            continue
        expected = target.embedding(tokens[index[good]])
        for name, scale in target.embedding_scales().items():
            distance = _relative(values[good], expected * np.float32(scale))
            if distance < best[0]:
                best = distance, offset, name
    distance, offset, factor = best
    evidence = {"rel_l2": number(distance), "token_offset": offset, "embedding_scale": factor}
    if not math.isfinite(distance):
        return []
    if distance <= _EXACT:
        times = "" if factor == "1" else f" times {factor}"
        if offset:
            summary = (
                f"{state.name} is the embedding{times} of the token at t{offset:+d}, not of the token at t: ids and states "
                "are shifted against each other."
            )
            return [Check("embedding", state.name, "found", summary, evidence)]
        if state.declared == 0:
            summary = f"{state.name} is declared B0 and is the embedding{times}."
            return [Check("embedding", state.name, "confirmed", summary, evidence)]
        what = (
            "the last state"
            if state.is_last
            else f"declared {boundary_name(state.declared)}"
            if state.declared
            else ""
        )
        said = f", though it is {what}" if what else ""
        return [
            Check("embedding", state.name, "found", f"{state.name} is B0, the embedding{times}{said}.", evidence)
        ]
    if state.declared == 0:
        summary = f"{state.name} is declared B0 but is not the embedding (relative L2 {distance:.3g})."
        return [Check("embedding", state.name, "refuted", summary, evidence)]
    return []


def _relative(values: Floats, expected: Floats) -> float:
    """Median over rows of ``|a - b| / |b|``; infinite where nothing can be measured."""
    size = np.linalg.norm(expected, axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.linalg.norm(values - expected, axis=-1)[size > 0] / size[size > 0]
    distance = distance[np.isfinite(distance)]
    return float(np.median(distance)) if len(distance) else math.inf


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
    distance = _relative(StoredRows(weight, weight.float_kind).take(ids), target.embedding(ids))
    same = distance <= _EXACT
    summary = (
        f"{name} holds the target's embedding."
        if same
        else (
            f"{name} holds another embedding than the target's, from which the draft's was to be made: another target."
        )
    )
    evidence = {"rel_l2": number(distance), "rows": len(ids)}
    return [*found, Check("stored-embedding", name, "confirmed" if same else "refuted", summary, evidence)]
