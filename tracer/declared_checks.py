"""What is declared of boundaries and cannot be: one beyond the target's layers, or one that two states claim to be."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.checked_states import Check, spread
from drafttrace.tracer.convert_recording import is_trace
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import Rows
from drafttrace.tracer.same_values import ID as SAME
from drafttrace.tracer.same_values import same_value_checks

BEYOND, TWICE, FIELD = "declared-boundary", "declared-twice", "declared-field"
_ROWS = 64  # of a state that are held against those of another


def layers_of(capture: Capture) -> int | None:
    """The number of layers n that a trace or a dump declares of its target."""
    wiring = capture.about.get("wiring")
    declared = wiring.get("n") if isinstance(wiring, dict) else capture.about.get("target_layers")
    return declared if type(declared) is int and declared > 0 else None


def declared_checks(capture: Capture, layers: int | None) -> list[Check]:
    """Refuted: boundaries that a target of n layers does not have, one boundary that two states of other values are
    declared to be, and what a dump says of its tensors and they refute. layers: n of the target; None for the file's own
    word."""
    own = layers_of(capture)
    found = []
    if layers is not None and own is not None and own != layers:
        summary = f"The file is of a target of {own} layers, and this one has {layers}: another target."
        found.append(Check("layers", "target", "refuted", summary, {"declared": own, "layers": layers}))
    n = own if layers is None else layers
    if n is not None:
        found += _beyond(capture, n)
    if not is_trace(capture):
        found += [*_twice(capture), *same_value_checks(capture, n)]
    return found + [
        Check(FIELD, "manifest.json", "refuted", f"{wrong}.", {}) for wrong in capture.about.get("contradicted", ())
    ]


def _states(capture: Capture) -> Iterator[tuple[str, int, Rows]]:
    """Every state of a boundary that is declared. A last state after the norm is no boundary."""
    for slot in (*capture.slots, *([capture.embed] if capture.embed is not None else [])):
        if slot.boundary is not None:
            yield slot.name, slot.boundary, slot.rows
    for k, rows in capture.boundaries.items():
        yield boundary_name(k), k, rows


def _beyond(capture: Capture, n: int) -> list[Check]:
    return [
        Check(
            BEYOND,
            name,
            "refuted",
            f"{name} is declared {boundary_name(k)}, and a target of {n} layers has the boundaries B0 to "
            f"{boundary_name(n)}: the ids are wrong, or of another target.",
            {"declared": k, "layers": n},
        )
        for name, k, rows in _states(capture)
        if k > n and not (name == boundary_name(k) and any(rows is slot.rows for slot in capture.slots))
    ]


def _twice(capture: Capture) -> Iterator[Check]:
    states, slots, last = [*_states(capture)], {slot.name for slot in capture.slots}, capture.last
    if last is not None and last.boundary is not None and last.norm is Norm.PRE:
        states.append((last.name, last.boundary, last.rows))
    for (name, k, rows), (other, same, others) in itertools.combinations(states, 2):
        if k != same or rows is others:
            continue
        evidence = {"boundary": k, "other": other}
        if _alike(rows, others):
            if {name, other} <= slots:
                summary = f"{name} and {other} are both declared {boundary_name(k)}, and their values are the same."
                yield Check(TWICE, name, "found", summary, evidence)
            continue
        summary = (
            f"{name} and {other} are both declared {boundary_name(k)} and hold different values: one of the two ids is "
            "wrong."
        )
        yield Check(TWICE, name, "refuted", summary, evidence)


def _alike(left: Rows, right: Rows) -> bool:
    if left.width != right.width:
        return False
    at = spread(np.arange(min(len(left), len(right)), dtype=np.int64), _ROWS)
    return bool(np.array_equal(left.take(at), right.take(at), equal_nan=True))


def contradictions(checks: Sequence[Check], name: str) -> list[str]:
    """In a few words each, what is wrong with the boundary that is declared of a state."""
    said = []
    for check in checks:
        k = boundary_name(check.evidence.get("declared", check.evidence.get("boundary")))
        if check.id == BEYOND and check.subject == name:
            said.append(f"the target has no {k}")
        elif check.id == TWICE and check.verdict == "refuted" and name in {check.subject, check.evidence["other"]}:
            said.append(f"two states of other values are declared {k}")
        elif check.id == SAME and check.verdict == "refuted" and name in {check.subject, check.evidence["other"]}:
            other = check.evidence["other"] if name == check.subject else check.subject
            said.append(f"its values are those of {other}")
    return list(dict.fromkeys(said))


def with_declared_notes(capture: Capture, layers: int | None) -> Capture:
    """The capture, with a note for everything that is declared of it and cannot be."""
    wrong = [check.summary.rstrip(".") for check in declared_checks(capture, layers) if check.is_problem]
    return dataclasses.replace(capture, notes=(*capture.notes, *wrong)) if wrong else capture


def refuse_beyond(capture: Capture, layers: int | None) -> None:
    """Raise DrafttraceError for a boundary that the target does not have."""
    option = "--boundaries" if capture.format == "MAPPED" else "--layer-ids"
    slots = {slot.name for slot in capture.slots}
    for check in declared_checks(capture, layers):
        if (
            check.is_problem and check.id == SAME and check.evidence["other"] in slots
        ):  # a last state may be left out
            raise DrafttraceError(
                f"What is said of the states of '{capture.path}' is wrong: {check.summary.rstrip('.')}; dump it again, or "
                "give up what its slots are called with --lose layer-ids."
            )
        if check.is_problem and check.id not in {TWICE, SAME, FIELD, "assumed-default"}:
            raise DrafttraceError(
                f"'{capture.path}' does not fit the target: {check.summary.rstrip('.')}; say others with {option}, or "
                "give the target of the dump."
            )
