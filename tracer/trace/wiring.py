"""What a trace declares about its slots: the block ``about/wiring`` that the hooks write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drafttrace.tracer.capture import Norm

_LAST_PROOF = {
    Norm.POST: "recorded where the target's head reads it, after the final norm",
    Norm.PRE: "the recorder says that it stands before the final norm",
    Norm.UNKNOWN: "the recorder does not say on which side of the final norm it stands",
}


@dataclass(frozen=True)
class Wiring:
    """The declared boundary of every slot (None: not declared), where that stands, and the last state's norm.

    layers: number of layers n of the target, None where it is not declared.
    """

    boundaries: tuple[int | None, ...]
    source: str
    last_norm: Norm
    layers: int | None
    notes: tuple[str, ...] = ()

    @property
    def last_proof(self) -> str:
        return _LAST_PROOF[self.last_norm]

    def slot(self, place: int) -> tuple[int | None, str]:
        """Boundary and source of the slot at ``place``."""
        boundary = self.boundaries[place]
        return boundary, self.source if boundary is not None else "not declared by the trace"


def read_wiring(block: Any, slots: int) -> Wiring:
    """The wiring that ``about/wiring`` declares for a trace of ``slots`` slots. Doubtful parts become notes."""
    if not isinstance(block, dict):
        return Wiring((None,) * slots, "", Norm.POST, None)
    notes = []
    declared = block.get("boundaries")
    boundaries: tuple[int | None, ...] = (None,) * slots
    if isinstance(declared, list):
        if len(declared) == slots:
            boundaries = tuple(k if isinstance(k, int) and k >= 0 else None for k in declared)
        else:
            notes.append(f"the wiring declares {len(declared)} boundaries for {slots} slots, so none is believed")
    layers = block.get("n")
    word = block.get("last_norm", Norm.POST)
    known = word in set(Norm)
    if not known:
        notes.append(f"the wiring names an unknown norm of the last state: {word}")
    return Wiring(
        boundaries,
        _source(block),
        Norm(word) if known else Norm.UNKNOWN,
        layers if isinstance(layers, int) else None,
        tuple(notes),
    )


def _source(block: dict[str, Any]) -> str:
    """``draft config eagle_config....: ids [2, 30, 58], rule raw, DeepseekV3ForCausalLM``."""
    parts = [str(block.get("source", "the live server"))]
    if block.get("ids") is not None:
        parts.append(f"ids {block['ids']}")
    if block.get("rule"):
        parts.append(f"rule {block['rule']}")
    if block.get("model_class"):
        parts.append(str(block["model_class"]))
    return parts[0] + (": " + ", ".join(parts[1:]) if len(parts) > 1 else "")
