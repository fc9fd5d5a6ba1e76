"""Whether a slot that is declared B(n), the stream before the final norm, stands after it.

``hidden_states[n]`` of transformers is what the final norm made, so whoever stores ``hidden_states[id + 1]`` has that for
the last layer, and a server that hands over B(n) hands over something else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.checked_states import SLOT_NORM, Check, CheckedState, number, spread
from drafttrace.tracer.last_state_checks import is_normed, size_without_gain
from drafttrace.tracer.target_weights import TargetWeights

_FEWEST, _MOST = 4, 64  # rows that are looked at


def slot_norm_checks(states: list[CheckedState], target: TargetWeights) -> Iterator[Check]:
    """An answer for every slot that is declared B(n), by the size of its rows without the norm's gain."""
    for state in states:
        if state.is_last or state.declared != target.shape.layers:
            continue
        values = state.take(spread(state.positions(), _MOST))
        values = values[np.isfinite(values).all(-1)]
        if len(values) < _FEWEST:
            continue
        rms, name = size_without_gain(values, target), boundary_name(state.declared)
        evidence = {"rms_without_gain_median": number(float(np.median(rms))), "declared": state.declared}
        if is_normed(rms):
            summary = (
                f"{state.name} is declared {name}, the stream before the final norm, and stands after it (RMS "
                f"{float(np.median(rms)):.3g} without the norm's gain): it is the last state of transformers, no boundary."
            )
            yield Check(SLOT_NORM, state.name, "refuted", summary, evidence)
