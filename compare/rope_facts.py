"""What a replay with the target's rope base says of a draft whose config gives another one. No torch in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_SIGMAS, LEAST_GAIN = 3.0, 0.25


@dataclass(frozen=True)
class RopeTrial:
    """A draft replayed twice on the slots of its own trace, with its config's rope base and with the target's.

    loss: mean loss of the next token over ``rows`` rows that training counts, with the config's base and with the
    target's. sigmas: how many standard errors the ranked differences of single rows lie from chance; positive where the
    target's base is better. served:
    median cosine of the server's own states of the first draft step with the two replays, None where the trace has
    none. apart: relative L2 between the two replays' states at position 0 and over the first and the last quarter of the
    rows: rope changes nothing where there is one token to look at, and more the further it looks.
    """

    config_base: float
    target_base: float
    rows: int
    loss: tuple[float, float]
    sigmas: float
    served: tuple[float, float] | None
    apart: tuple[float, float, float]

    @property
    def trained_with_the_targets(self) -> bool:
        """Whether the target's base is what the draft was trained with: its loss is lower by far more than chance."""
        mine, other = self.loss
        return self.sigmas >= LEAST_SIGMAS and mine - other >= LEAST_GAIN * mine


def rope_base(config: Any) -> float | None:
    """The rope base of a model's config, in either spelling of transformers; None where it gives none."""
    if not isinstance(config, Mapping):
        return None
    inner = config.get("text_config")
    for block in (config, inner if isinstance(inner, Mapping) else {}):
        for fields in (block.get("rope_parameters"), block):
            base = fields.get("rope_theta") if isinstance(fields, Mapping) else None
            if isinstance(base, (int, float)) and not isinstance(base, bool) and base > 0:
                return float(base)
    return None
