"""Is the target a target and the draft a draft? Two folders in each other's place would give hundreds of faults."""

from __future__ import annotations

from pathlib import Path

from drafttrace.compare.audit.config_checks import EAGLE3_CLASSES
from drafttrace.compare.audit.target_config import TargetConfig
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights
from drafttrace.tracer.checkpoint import read_json
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile


def refuse_draft_as_target(target: TargetConfig, draft_dir: Path) -> None:
    """Raise DrafttraceError where the folder of the target holds a draft."""
    if target.architecture not in EAGLE3_CLASSES:
        return
    remedy = "give the target's folder" if _names_a_draft(draft_dir) else "swap --target and --draft"
    raise DrafttraceError(f"--target {target.path.parent} holds a draft ({target.architecture}); {remedy}.")


def _names_a_draft(folder: Path) -> bool:
    try:
        names = read_json(folder / "config.json").get("architectures")
    except UnreadableFile:
        return False
    return isinstance(names, list) and any(name in EAGLE3_CLASSES for name in names)


def refuse_no_draft(draft: DraftConfig, weights: DraftWeights) -> None:
    """Raise DrafttraceError where neither the class nor the weights are a draft's."""
    if draft.architecture in EAGLE3_CLASSES or "fc.weight" in weights:
        return
    raise DrafttraceError(
        f"--draft {draft.path.parent} holds no EAGLE-3 draft: its class is {draft.architecture} and its weights have "
        "no fc.weight; give the draft's folder."
    )
