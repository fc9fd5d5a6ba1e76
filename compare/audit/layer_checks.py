"""How many layers the draft's config asks for, against those that its checkpoint holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from drafttrace.compare.audit.mla_checks import refused
from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.draft_weights import DraftWeights
from drafttrace.compare.result import Finding

_LAYER = re.compile(r"^layers\.(\d{1,9})\.")
_MOST_NAMED = 4


def layer_of(name: str) -> int | None:
    """The layer that a tensor of this canonical name belongs to; None for those of no layer."""
    found = _LAYER.match(name)
    return int(found.group(1)) if found else None


def stored_layers(weights: DraftWeights) -> tuple[int, ...]:
    """The layers of which the checkpoint holds anything, ascending."""
    return tuple(sorted({layer for name in weights.names if (layer := layer_of(name)) is not None}))


def layers_that_differ(subject: Subject) -> frozenset[int]:
    """Layers of the config without any tensor, and layers of the checkpoint that the config does not ask for."""
    return frozenset(range(subject.draft.layers)) ^ frozenset(stored_layers(subject.draft_weights))


def layer_findings(subject: Subject) -> Iterator[Finding]:
    """Whole layers that are missing, and whole layers that nothing reads, each told once and not tensor by tensor."""
    if refused(subject):  # a server that does not start reads none
        return
    asked, held = subject.draft.layers, stored_layers(subject.draft_weights)
    lost = [k for k in range(asked) if k not in set(held)]
    extra = [k for k in held if k >= asked]
    whole = bool(held) and held == tuple(range(len(held)))
    line = f'"num_hidden_layers": {len(held)}' if whole else "num_hidden_layers as the training run's config has it"
    facts = {"num_hidden_layers": asked, "stored": list(held)[:20]}
    if lost:
        yield fault(
            "weights-missing",
            0.95,
            f"num_hidden_layers is {asked}, and the checkpoint holds no tensor of {_named(lost)}: the server runs with "
            "whatever the memory held there.",
            f"{line}, if training had no more; else export {_named(lost)} with the draft.",
            facts,
        )
    if extra:
        yield fault(
            "weights-unused",
            0.9,
            f"The checkpoint holds {_named(extra)}, and num_hidden_layers is {asked}: the server leaves out what training "
            "had there.",
            f"{line}, if training had these layers; else export the draft without them.",
            facts,
        )


def _named(layers: Sequence[int]) -> str:
    more = f" and {len(layers) - _MOST_NAMED} more layers" if len(layers) > _MOST_NAMED else ""
    return ", ".join(f"layers.{k}" for k in layers[:_MOST_NAMED]) + more
