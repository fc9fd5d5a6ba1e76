"""The closed vocabulary of findings and the class that each belongs to."""

from __future__ import annotations

CLASSES: dict[str, tuple[str, ...]] = {
    "wiring": (
        "slot-shift",
        "slot-permutation",
        "boundary-offset",
        "wrong-boundary",
        "default-wiring",
        "slot-count",
        "fc-not-called",
        "last-not-last",
    ),
    "norm": ("norm-missing", "norm-extra", "norm-gain", "residual-missing", "scale"),
    "weights": ("weights-missing", "weights-replaced", "weights-unused"),
    "vocabulary": ("vocab-map-missing", "vocab-map-offset", "vocab-map-range", "vocab-coverage"),
    "position": ("position-seam", "rope-mismatch", "window-mismatch"),
    "token": ("token-shift", "mask-shift"),
    "cache": ("prefix-gap", "cold-warm", "decay"),
    "ranks": ("rank-divergence", "partial-sum", "rows-by-rank"),
    "batching": (
        "stale-rows",
        "cross-request",
        "padding-leak",
        "zero-rows",
        "constant-rows",
        "graph-eager",
    ),
    "number-format": ("nan-inf", "dtype-reinterpretation", "rotation", "quantization-noise"),
    "multimodal": ("modality-span",),
    "data": ("template-divergence", "no-overlap"),
    "downstream": ("downstream", "none"),
    "unknown": ("unexplained",),
    "tracer": ("probe-silent", "rows-dropped", "trace-incomplete"),
}
"""Class to ids, in the order of the faults' list."""

CLASS_OF = {name: group for group, names in CLASSES.items() for name in names}
