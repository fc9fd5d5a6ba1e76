"""The noise floor from two recordings of the same thing, and whether these belong to the capture that is judged by it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from drafttrace.compare.diff import diff
from drafttrace.compare.facts import layers_of
from drafttrace.compare.thresholds import DEFAULT, Noise
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import NothingToCompare

_REMEDY = "record the same prompt twice on the server that is compared, and give these two"


def measure_noise(one: Capture, two: Capture, of: Capture | None = None) -> Noise:
    """The noise floor from two recordings of the same thing: relative L2 per slot, median and 99th percentile.

    of: the capture that is to be judged by it; a floor of another model is none for it. Raises NothingToCompare for that,
    and for recordings that share no rows, have no slots, or differ by more than noise.
    """
    if of is not None:
        refuse_other_model(of, (one, two))
    result = diff(one, two)
    if result.alignment.rows_compared == 0:
        raise NothingToCompare(
            f"The two noise recordings '{one.path}' and '{two.path}' share no rows; record the same prompt twice."
        )
    if not result.slots:
        raise NothingToCompare(
            f"The two noise recordings '{one.path}' and '{two.path}' have no slots to compare; record a server whose draft "
            "has fc."
        )
    far = max(result.slots, key=lambda slot: slot.rel_l2.p50, default=None)
    if far is not None and far.rel_l2.p50 > DEFAULT.noise:
        raise NothingToCompare(
            f"The two noise recordings '{one.path}' and '{two.path}' differ by more than noise (slot {far.slot}: relative "
            f"L2 {far.rel_l2.p50:.2g}, noise ends at {DEFAULT.noise:g}); compare them with drafttrace diff first."
        )
    return Noise(
        f"{one.path} against {two.path}{another_prompt(of, one) if of is not None else ''}",
        tuple(slot.rel_l2.p50 for slot in result.slots),
        tuple(slot.rel_l2.p99 for slot in result.slots),
        {
            state.slot: (state.rel_l2.p50, state.rel_l2.p99)
            for state in result.others
            if state.rel_l2.p50 <= DEFAULT.noise and np.isfinite(state.rel_l2.p99)
        },
    )


def refuse_other_model(of: Capture, recordings: tuple[Capture, ...]) -> None:
    """Raises NothingToCompare for a recording of other widths, slots, layers or another class of target than ``of``."""
    for one in recordings:
        for what, ours, theirs in (
            ("hidden size", of.hidden_size, one.hidden_size),
            ("number of slots", len(of.slots) or None, len(one.slots) or None),
            ("number of layers", layers_of(of, None), layers_of(one, None)),
            ("vocabulary", _vocabulary(of), _vocabulary(one)),
            ("target class", _class_of(of), _class_of(one)),
        ):
            if None not in (ours, theirs) and ours != theirs:
                raise NothingToCompare(
                    f"The noise recording '{one.path}' is of another model than '{of.path}': its {what} is {theirs}, not "
                    f"{ours}; {_REMEDY}."
                )


def another_prompt(of: Capture, one: Capture) -> str:
    """What is added to the floor's name where it was recorded of other tokens; nothing where they begin alike."""
    if of.redacted or one.redacted:
        return ""
    length = min(of.prompt_length or len(of.tokens), one.prompt_length or len(one.tokens))
    same = (of.tokens[:length] == one.tokens[:length]).all() and of.prompt_length in {None, one.prompt_length}
    return "" if same else " (recorded of another prompt)"


def _config(capture: Capture) -> Mapping[str, object]:
    config = capture.about.get("target_config")
    return config if isinstance(config, Mapping) else {}


def _vocabulary(capture: Capture) -> int | None:
    found = _config(capture).get("vocab_size")
    return found if isinstance(found, int) else None


def _class_of(capture: Capture) -> str | None:
    names = _config(capture).get("architectures")
    return str(names[0]) if isinstance(names, list) and names else None
