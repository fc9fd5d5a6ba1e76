"""``serve --wiring`` before any server: can this target hand over these boundaries, and can this draft read them?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drafttrace.compare.audit.target_config import read_target_config
from drafttrace.compare.draft_weights import draft_weights
from drafttrace.tracer.boundary import check_wiring
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.errors import DrafttraceError

_TARGET = ("--model-path", "--model")
_DRAFT = ("--speculative-draft-model-path", "--speculative-draft-model")


def refuse_wrong_wiring(wiring: Sequence[int], sglang_arguments: Sequence[str]) -> None:
    """Raise WrongWiring where the folders that SGLang is given say that ``wiring`` cannot work.

    What is no folder of this machine, or cannot be read, is left to the server: it checks once more, with the models that
    it has loaded.
    """
    target = _folder(sglang_arguments, _TARGET)
    if target is None:
        return
    try:
        config = read_target_config(target)
    except DrafttraceError:
        return
    width = _fc_width(_folder(sglang_arguments, _DRAFT))
    check_wiring(wiring, n=config.layers, hidden=config.hidden_size, width=width)


def _fc_width(draft: Path | None) -> int | None:
    """Columns of the draft's ``fc``, from its header alone."""
    try:
        shape = draft_weights(open_checkpoint(draft)).shape("fc.weight") if draft is not None else None
    except DrafttraceError:
        return None
    return shape[1] if shape is not None and len(shape) == 2 else None


def _folder(arguments: Sequence[str], names: Sequence[str]) -> Path | None:
    """The folder that the last of the options with one of these names gives, as argparse reads them."""
    found = None
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            found = value if equals else next(iter(arguments[i + 1 : i + 2]), None)
    return Path(found) if found and Path(found).is_dir() else None
