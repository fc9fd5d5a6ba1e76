"""Which head, or which vocabulary map, makes what a live draft proposed out of the state that its replay agrees on."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from drafttrace.compare.replay.loading import Replayer
from drafttrace.compare.replay.products import linear
from drafttrace.compare.replay.switches import Switches
from drafttrace.tracer.capture import DraftRows, Ints

ProposedBy = Literal["the target's head", "the target's head, from its first row on", "no vocabulary map"]
_SHARE = 0.9
_LEAST = 8


def proposed_by(
    replayer: Replayer, normed: torch.Tensor, draft: DraftRows, live: Ints, switches: Switches
) -> ProposedBy | None:
    """What explains the first choices of the draft rows ``live``; None where nothing does.

    normed: the replay's states before the head ``[R, H]``, one per row.
    """
    present = draft.present.get("topk_ids")
    kept = np.ones(len(live), np.bool_) if present is None else present[live]
    if "topk_ids" not in draft.ids or kept.sum() < _LEAST:
        return None
    said = draft.ids["topk_ids"][live[kept], 0]
    own = draft.ids["topk_draft_ids"][live[kept], 0] if "topk_draft_ids" in draft.ids else None
    state = normed[torch.from_numpy(np.flatnonzero(kept))]
    targets = replayer.targets(switches)
    if replayer.d2t is not None and _share(said, replayer.model.logits(state).argmax(-1).numpy()) >= _SHARE:
        return "no vocabulary map"
    rows, width = replayer.parts.checkpoint.info(replayer.parts.head).shape
    if width != state.shape[-1]:
        return None
    heads: tuple[tuple[ProposedBy, Ints], ...] = (
        ("the target's head", np.clip(targets, 0, rows - 1)),
        ("the target's head, from its first row on", np.arange(min(len(targets), rows), dtype=np.int64)),
    )
    for name, chosen in heads:
        head = torch.from_numpy(replayer.parts.checkpoint.floats(replayer.parts.head, chosen))
        best = linear(state, head).argmax(-1).numpy()
        if _share(own, best) >= _SHARE or _share(said, targets[best]) >= _SHARE:
            return name
    return None


def _share(live: Ints | None, replayed: Ints) -> float:
    return 0.0 if live is None else float((live == replayed).mean())
