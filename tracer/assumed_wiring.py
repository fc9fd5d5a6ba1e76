"""Whether the slots of a reference are what a user says that training used, or a choice of ``drafttrace reference``.

A file made without ``--wiring`` has the canonical wiring in its slots. Taken as the trained one it would accuse every
draft that was trained otherwise, and clear one that is served wrongly in the canonical way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drafttrace.tracer.boundary import canonical_wiring

WIRING, GIVEN, ASSUMED = "wiring", "given", "canonical"


def usual_slots(layers: int) -> tuple[int, ...]:
    """The slots of a reference where nobody names them: the canonical wiring, as far as ``layers`` layers have it."""
    return tuple(sorted({k for k in canonical_wiring(layers) if 0 <= k <= layers}))


def was_assumed(metadata: Mapping[str, str], slots: Sequence[int], layers: int | None) -> bool:
    """Whether ``drafttrace reference`` chose ``slots`` itself. Older files do not say: by the slots."""
    if WIRING in metadata:
        return metadata[WIRING] != GIVEN
    own = metadata.get("written_by", "").endswith(" reference")
    return own and layers is not None and tuple(slots) == usual_slots(layers)
