"""Small readings of one forward pass: the draft's best tokens, the slots at the Python seam, sampling parameters."""

from __future__ import annotations

from typing import Any

import torch

from drafttrace.hooks.frames import Frame, Span
from drafttrace.hooks.sglang_engine.attach import split_slots
from drafttrace.tracer.capture import Phase
from drafttrace.tracer.trace.schema import SOURCE_PYTHON_SEAM

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "ignore_eos", "n", "seed", "sampling_seed")


def draft_topk(frame: Frame, logits: torch.Tensor | None, vocabulary_map: torch.Tensor | None) -> None:
    """The best ids of the draft for every row that got logits, before and after its vocabulary map."""
    if logits is None:
        return
    for span in frame.spans:
        if not span.session.wants("topk/ids"):
            continue
        rows, offset = _logit_rows(span, frame, logits)
        if rows is None:
            continue
        best = torch.topk(rows.float(), min(span.session.options.topk, rows.shape[-1]), dim=-1)
        ids = best.indices
        if vocabulary_map is not None:
            ids = vocabulary_map.to(ids.device)[ids]
        frame.take_part(span, "topk/draft_ids", best.indices.to(torch.int32), offset)
        frame.take_part(span, "topk/ids", ids.to(torch.int32), offset)
        frame.take_part(span, "topk/logits", best.values, offset)


def _logit_rows(span: Span, frame: Frame, logits: torch.Tensor) -> tuple[torch.Tensor | None, int | None]:
    """This request's rows of the logits, and the row of the request that the first belongs to."""
    if span.rows.group.phase is Phase.DRAFT_EXTEND_PREFILL:  # only the last row of each request
        if span.index >= logits.shape[0]:
            return None, 0
        return logits[span.index : span.index + 1], span.rows.rows - 1
    if logits.shape[0] >= frame.live_rows:
        return logits[span.start : span.stop], 0
    # The draft-extend graph reads the last accepted row of each request only.
    return logits[span.index : span.index + 1], None


def accepted_nodes(result: Any, i: int, branches: int) -> torch.Tensor | None:
    """Batch-wide rows of the accepted path of request ``i``; None where this SGLang does not hand it over (trees)."""
    index = getattr(result, "accept_index", None)
    if index is not None:
        return torch.as_tensor(index[i])
    stride = result.speculative_num_draft_tokens if branches == 1 else None
    if not stride:
        return None
    return torch.arange(i * stride, (i + 1) * stride, device=result.accept_lens.device)


def seam_slots(frame: Frame, hidden: torch.Tensor | None) -> None:
    """The slots as they cross from target to draft in Python, for taps that did not run because a graph did."""
    if hidden is None:
        return
    slots = frame.spans[0].session.facts.slots
    for slot, tensor in enumerate(split_slots(hidden, slots)):
        frame.take(f"aux/{slot}", tensor, SOURCE_PYTHON_SEAM)


def sampling(params: Any) -> dict[str, Any]:
    """The sampling parameters that shape the output."""
    return {name: getattr(params, name) for name in _SAMPLING if hasattr(params, name)}
