"""What the values of a capture do to what its file only assumes or declares: refute it, agree with it, or neither.

Only the embedding proves a boundary without a reference run. One slot of a default that is proven to be another boundary
ends the whole default: nothing is known of the other slots then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drafttrace.tracer.boundary import boundary_name, wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.checked_states import SLOT_NORM, Check
from drafttrace.tracer.declared_checks import contradictions
from drafttrace.tracer.dumps.build import ASSUMED, assumed_wiring

_OF_LAST = {"last-is-last", "last-norm"}


def assumed_checks(capture: Capture, checks: Sequence[Check]) -> list[Check]:
    """The defaults that the sources of the slots name, against the slots that are the embedding by value."""
    proven = _embeddings(checks)
    found: list[Check] = []
    for source in dict.fromkeys(slot.source for slot in capture.slots if slot.boundary is None):
        default = assumed_wiring(source)
        if default is None or len(default) != len(capture.slots):
            continue
        there = [(slot.name, k) for slot, k in zip(capture.slots, default, strict=True) if slot.name in proven]
        wrong = [(name, k) for name, k in there if k != 0]
        evidence = {"source": source, "default": list(default), "embeddings": [name for name, _ in there]}
        if wrong:
            name, k = wrong[0]
            others = "the boundaries of the other slots are unknown"
            summary = (
                f"The ASSUMED default {wiring_name(default)} is not what was stored: {name} is B0 by its values, where the "
                f"default has {boundary_name(k)}; {others}."
            )
            found.append(Check("assumed-default", "slots", "refuted", summary, evidence))
        elif there:
            summary = (
                f"{there[0][0]} is B0 by its values, as in the ASSUMED default {wiring_name(default)}; a reference run "
                "tells the other slots."
            )
            found.append(Check("assumed-default", "slots", "consistent", summary, evidence))
    return found


def _embeddings(checks: Sequence[Check]) -> set[str]:
    return {
        check.subject for check in checks if check.id == "embedding" and check.verdict in {"found", "confirmed"}
    }


def default_refuted(source: str, checks: Sequence[Check]) -> bool:
    """Whether the values contradict the default that a source names."""
    return any(_is_refuted_default(check, source) for check in checks)


def _is_refuted_default(check: Check, source: str) -> bool:
    return check.id == "assumed-default" and check.evidence["source"] == source and check.verdict == "refuted"


def judged(source: str, name: str, boundary: int | None, is_last: bool, checks: Sequence[Check]) -> str:
    """The source of a state's boundary, or of the norm of the last one, with what the values say against or for it."""
    against = list(dict.fromkeys(_against(source, name, boundary, is_last, checks)))
    if not against and boundary is not None and (wrong := contradictions(checks, name)):
        return f"REFUTED ({'; '.join(wrong)}): {source}"
    if against:
        return f"REFUTED by value ({'; '.join(against)}): {source}"
    for check in checks:
        if check.id == "assumed-default" and check.evidence["source"] == source and check.verdict == "consistent":
            return f"{source}; the values of {check.evidence['embeddings'][0]} agree"
        norm = is_last and check.id == "last-norm" and check.subject == name and check.verdict == "confirmed"
        if norm and source.startswith(ASSUMED):
            return f"{source}; the values confirm the side of the norm"
    return source


def _against(source: str, name: str, boundary: int | None, is_last: bool, checks: Sequence[Check]) -> Iterator[str]:
    """In a few words each, what the values say against a source. One that declares an inner layer itself calls it no
    last state."""
    is_inner = any(check.id == "last-boundary" for check in checks)
    for check in checks:
        if _is_refuted_default(check, source):
            yield check.evidence.get("why") or f"{check.evidence['embeddings'][0]} is B0"
        if check.subject != name:
            continue
        if check.id == "embedding" and check.verdict == "found" and (is_last or boundary is not None):
            yield f"{name} is B0"
        elif check.id == "embedding" and check.verdict == "refuted":
            yield f"{name} is not the embedding"
        elif check.id == SLOT_NORM and check.verdict == "refuted":
            yield f"{name} stands after the final norm"
        elif check.id == "last-is-last" and is_inner:
            continue
        elif is_last and check.id in _OF_LAST and check.verdict == "refuted":
            side = "before" if check.evidence.get("found") == "pre" else "after"
            yield f"it stands {side} the final norm" if check.id == "last-norm" else "it is no last state"
