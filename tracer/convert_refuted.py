"""What the target's values refute of a dump's declarations, before a conversion writes them down as they are declared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.checked_states import Check
from drafttrace.tracer.convert_recording import is_trace
from drafttrace.tracer.convert_sample import Sample, before_norm, give_up, ids_option
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.row_place_checks import placed_by_value
from drafttrace.tracer.row_places import REMEDY, missing_rows, unplaced
from drafttrace.tracer.target_weights import TargetWeights
from drafttrace.tracer.value_checks import check_values

LOSS = "value-checks"
_DECLARED = {
    "embedding",
    "assumed-default",
    "token-shift",
    "vocabulary",
    "stored-embedding",
    "last-norm",
    "last-is-last",
    "slot-norm",
}
_CLEARLY = 0.5  # nats of mean loss below guessing
# Of many samples of one dump, what one of them declares all do: the head of a large target takes a second for each.
_FIRST, _EVERY = 8, 100


class ByValue:
    """Holds the samples of one conversion against a target, where one is given."""

    def __init__(self, target: Path | None) -> None:
        self._target, self._count = target, 0
        self._weights: TargetWeights | None = None

    def placed(self, capture: Capture) -> Capture:
        """The dump with its rows at their tokens. Raises DrafttraceError where rows are missing and nothing tells which."""
        if not missing_rows(capture):
            return capture
        if self._target is not None:
            with contextlib.suppress(UnreadableFile):  # of which held() makes a note
                self._weights = self._weights or TargetWeights(self._target)
        found, checks = placed_by_value(capture, self._weights)
        if any(check.verdict == "undecided" for check in checks):
            told = "give --target DIR, whose values may tell, or " if self._target is None else ""
            raise DrafttraceError(f"{unplaced(capture)}; {told}{REMEDY}.")
        return found

    def held(self, source: Sample, layout: str) -> Sample:
        """Raise DrafttraceError where the target's values refute what would be written as declared.

        With "value-checks" given up it is written all the same, and the answer names it. The sample comes back with a note
        where the target's folder has no weights to hold it against.
        """
        looked_at = self._count < _FIRST or self._count % _EVERY == 0
        self._count += 1
        if self._target is None or not looked_at:
            return source
        capture = source.capture
        try:
            self._weights = self._weights or TargetWeights(self._target)
            checks = check_values(capture, self._weights)
        except UnreadableFile as error:
            note = f"what '{capture.path}' declares is not held against the values of the target: {error}"
            return replace(source, capture=replace(capture, notes=(*capture.notes, note.rstrip("."))))
        for check in _refuted(source, checks, layout):
            summary = check.summary.rstrip(".")
            if LOSS not in source.lose:
                raise DrafttraceError(
                    f"The values of '{capture.path}' refute what would be written as declared: {summary}; "
                    f"set that right ({_remedy(source, check)}), or keep it as declared with --lose {LOSS}."
                )
            give_up(source, f"the proof by value, which refutes what is declared: {summary}")
        return source


def _refuted(source: Sample, checks: list[Check], layout: str) -> Iterator[Check]:
    """The answers that contradict what the output says, or means by saying nothing."""
    last = source.capture.last
    unused = "last-state" in source.lose or (
        layout not in {"trace", "specforge"} and before_norm(source) is not None
    )
    inner = any(check.id == "last-boundary" for check in checks)  # the dump says itself that it is no last state
    # Of a state before the norm, which is normed then, convert_norm refuses what is after it already.
    normed = layout == "specforge" and last is not None and last.norm is Norm.PRE
    untold = {slot.name for slot in source.capture.slots if slot.boundary is None or "layer-ids" in source.lose}
    for check in checks:
        if not check.is_problem or check.id not in _DECLARED:
            continue
        if check.id == "last-norm" and (unused or normed):
            continue
        if check.id == "last-is-last" and (unused or inner or not _is_proof(check)):
            continue
        if check.id == "slot-norm" and check.subject in untold:
            continue
        if check.id == "embedding" and not check.evidence.get("token_offset"):
            is_last = last is not None and check.subject == last.name
            if check.subject in untold or (is_last and unused):
                continue
        yield check


def _is_proof(check: Check) -> bool:
    """Whether a state that is called no last one predicts anything, or a slot does: of a target that was never trained, and
    of text that it does not know, all of them only guess."""
    loss, chance = check.evidence["next_token_loss"], check.evidence["chance"]
    slots = [value for value in check.evidence["next_token_loss_of_slots"].values() if value is not None]
    return loss is not None and (loss < chance - _CLEARLY or any(value < chance - _CLEARLY for value in slots))


def _remedy(source: Sample, check: Check) -> str:
    """What a user does about it, by what is refuted and by the kind of file."""
    capture = source.capture
    if check.id in {"vocabulary", "stored-embedding"}:
        return "give the target that it was made with"
    if is_trace(capture):
        return "give the target that it was recorded with, or record it again"
    of_last = capture.last is not None and check.subject == capture.last.name
    of_slot = check.id == "embedding" and not check.evidence.get("token_offset") and not of_last
    if check.id == "slot-norm":
        return "give up what it is called with --lose layer-ids"
    if of_slot or check.id == "assumed-default":
        return f"say the boundaries of the slots with {ids_option(source)}"
    if check.id == "last-norm":
        side = check.evidence.get("found")
        if capture.format == "MAPPED":
            return f"say --last-norm {side}"
        return f"name the file's fields instead, with --slots, --tokens, --mask, --last and --last-norm {side}"
    return "dump the sample again"
