"""Whether two recordings that a noise floor is measured from belong to the capture that is judged by it."""

from __future__ import annotations

from collections.abc import Mapping

from drafttrace.compare.facts import layers_of
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import NothingToCompare

_REMEDY = "record the same prompt twice on the server that is compared, and give these two"


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
