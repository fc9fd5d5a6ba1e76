"""Is a training dump of this draft's target at all? One of another model says nothing about this draft's training."""

from __future__ import annotations

import numpy as np

from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.audit.target_config import TargetConfig
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights, slots_of_fc
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture


def is_foreign(dump: Capture, target: TargetConfig, draft: DraftConfig, weights: DraftWeights) -> bool:
    """Whether ``dump`` cannot be what this draft was trained on: another width, other tokens, another number of slots."""
    return (
        _other_width(dump, draft)
        or _beyond(dump, target, draft) is not None
        or _other_count(dump, slots_of_fc(weights, draft))
    )


def _other_width(dump: Capture, draft: DraftConfig) -> bool:
    return dump.hidden_size is not None and dump.hidden_size != draft.slot_width


def _beyond(dump: Capture, target: TargetConfig, draft: DraftConfig) -> int | None:
    """The largest token id, where neither vocabulary has it."""
    ids = dump.table.token_id
    most = int(np.max(ids)) if len(ids) else -1
    return most if most >= max(target.vocab_size, draft.vocab_size) else None


def _other_count(dump: Capture, slots: int | None) -> bool:
    # Slots that drafttrace reference chose itself are no slots of training, so their number says nothing either.
    return slots is not None and len(dump.slots) > 0 and len(dump.slots) != slots and not dump.assumed_wiring


_NOTHING = "so it says nothing about this draft's training, and no wiring was taken from it"


def foreign_finding(subject: Subject, dump: Capture) -> Finding | None:
    """What about a dump cannot be this draft's; None where it can."""
    draft, target = subject.draft, subject.target
    if _other_width(dump, draft):
        return fault(
            "slot-count",
            0.95,
            f"The dump's slots are {dump.hidden_size} wide, the draft expects {draft.slot_width}: it is a dump of another "
            f"model, {_NOTHING}.",
            "Give the dump that this draft was trained on.",
            {"dump": dump.hidden_size, "draft": draft.slot_width},
        )
    most = _beyond(dump, target, draft)
    if most is not None:
        return fault(
            "vocab-map-range",
            0.95,
            f"The dump holds the token id {most}, the vocabulary has {max(target.vocab_size, draft.vocab_size)} tokens: it "
            f"is a dump of another model, {_NOTHING}.",
            "Give the dump that this draft was trained on.",
            {"token": most, "vocab_size": target.vocab_size},
        )
    if _other_count(dump, subject.fc_slots):
        return fault(
            "slot-count",
            0.8,
            f"The dump has {len(dump.slots)} slots, the draft's fc reads {subject.fc_slots}, {_NOTHING}.",
            "Give the dump that this draft was trained on; if this is it, training fed fc with other slots than the dump "
            "lists: find out with drafttrace replay --search.",
            {"dump": len(dump.slots), "fc": subject.fc_slots},
        )
    return None
