"""What a user says of a file, held against what the file shows: the same for every reader and every command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.build import USER_SAID
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.layer_ids import refuse_below


def held_against(capture: Capture, request: Request) -> Capture:
    """The capture, with a note where it records other layers than the user says. Raises as the check below does."""
    refuse_contradiction(capture, request)
    said, wiring = request.layer_ids, capture.wiring
    sources = {slot.source for slot in capture.slots}
    if said is None or len(sources) != 1 or capture.format == "MAPPED":
        return capture
    source = sources.pop()
    outputs = request.numbering == "O" or (not request.numbering and "O(id)" in source)
    refuse_below(said, "O" if outputs else "B", f"'{capture.path}'")
    if None in wiring:
        return capture
    meant = [k + outputs for k in said[: len(wiring)]]
    if source.startswith(USER_SAID) or tuple(meant) == tuple(wiring):
        return capture
    recorded = f"the file records {wiring_name(wiring)}, which is believed ({source})"
    note = f"--layer-ids means {wiring_name(meant)}, and {recorded}"
    return replace(capture, notes=(*capture.notes, note))


def refuse_contradiction(capture: Capture, request: Request) -> None:
    """Raise DrafttraceError where the file's slots have another width or number than the user says.

    A hidden size that is only inferred may differ: then the two sides are of different targets, which whoever compares
    them says.
    """
    if request.tokens_only:
        return
    if request.hidden_size is not None and not request.inferred:
        _refuse_width(capture, request.hidden_size)
    if request.layer_ids is not None:
        _refuse_count(capture, request)


def refuse_other_target(capture: Capture, hidden_size: int, target: Path) -> None:
    """Raise DrafttraceError where a state has another width than the hidden states of the target that is given."""
    for name, width in _widths(capture):
        if width != hidden_size:
            raise DrafttraceError(
                f"The hidden size of the target '{target}' is {hidden_size}, and '{name}' of '{capture.path}' is {width} "
                "wide, of another target; give that one with --target."
            )


def _widths(capture: Capture) -> list[tuple[str, int]]:
    states = [(slot.name, slot.rows.width) for slot in capture.slots]
    if capture.last is not None:
        states.append((capture.last.name, capture.last.rows.width))
    return states + [(f"B{k}", rows.width) for k, rows in capture.boundaries.items()]


def _refuse_width(capture: Capture, said: int) -> None:
    absent = [note for note in capture.notes if note.startswith(("no slots: ", "no last state: "))]
    without = f" ({'; '.join(absent)})" if absent else ""
    for name, width in _widths(capture):
        if width != said:
            raise DrafttraceError(
                f"--hidden-size is {said}, and '{name}' of '{capture.path}' is {width} wide{without}; leave it out, "
                f"or give {width}."
            )


def _refuse_count(capture: Capture, request: Request) -> None:
    said, slots = request.layer_ids or (), len(capture.slots)
    uncut = request.lenient and request.hidden_size is None and slots == 1
    # A dump of every boundary has no slots until ids that it holds are named; its reader says which it lacks.
    unnamed = not slots and bool(capture.boundaries)
    with_last = capture.last is not None and len(said) == slots + 1  # as speculators v1 names the last entry, too
    if len(said) == slots or uncut or unnamed or with_last:
        return
    raise DrafttraceError(
        f"{len(said)} layer ids are given ({', '.join(map(str, said))}) where '{capture.path}' has {len(capture.slots)} "
        "slots; give one for each with --layer-ids, or leave the option out."
    )
