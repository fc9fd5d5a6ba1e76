"""What a trace of this model will hold: pure planning from the facts of the loaded models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drafttrace.hooks.options import TapOptions
from drafttrace.tracer.capture import Phase
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout

EXTEND = (Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY)


@dataclass(frozen=True)
class DraftFacts:
    """Widths of a loaded draft. hidden_in: what the target hands over; fc_in, fc_out: of ``fc``, 0 without one."""

    hidden: int
    hidden_in: int
    fc_in: int
    fc_out: int
    dtype: DType


@dataclass(frozen=True)
class ModelFacts:
    """The loaded target (n layers, width hidden, slots handed over) and draft. ``about``: JSON blocks for the trace.

    held: of a first pipeline stage, how many layers it has; its trace has what goes into those. None: all layers.
    """

    n: int
    hidden: int
    slots: int
    dtype: DType
    draft: DraftFacts | None
    about: Mapping[str, Any] = field(default_factory=dict)
    held: int | None = None


def layout_of(facts: ModelFacts, options: TapOptions, ranks: tuple[int, ...] = ()) -> TraceLayout:
    """Every tensor that a trace with these options may hold, in the order of its present bits."""
    wide, dtype = facts.hidden, facts.dtype
    whole = facts.held is None
    target = [TensorSpec(f"aux/{slot}", wide, dtype) for slot in range(facts.slots if whole else 0)]
    if options.embed:
        target.append(TensorSpec("embed", wide, dtype))
    if options.last and whole:
        target.append(TensorSpec("last", wide, dtype))
    swept = [k for k in options.sweep(facts.n) if facts.held is None or k < facts.held]
    target += [TensorSpec(f"boundary/{k}", wide, dtype) for k in swept]
    draft = _draft_specs(facts.draft, options) if whole and facts.draft is not None and options.draft else ()
    return TraceLayout(tuple(target), draft, ranks, hashed_names(facts) if ranks else ())


def hashed_names(facts: ModelFacts) -> tuple[str, ...]:
    """Tensors that every rank should hold alike, and whose row hashes are therefore compared."""
    target = (*tuple(f"aux/{slot}" for slot in range(facts.slots)), "embed", "last")
    return target + (("hidden_in", "fc_in", "fc_out", "hidden_out") if facts.draft is not None else ())


def _draft_specs(draft: DraftFacts, options: TapOptions) -> tuple[TensorSpec, ...]:
    specs = [TensorSpec("hidden_in", max(draft.hidden_in, draft.hidden), draft.dtype)]
    if draft.fc_in:
        specs += [TensorSpec("fc_in", draft.fc_in, draft.dtype), TensorSpec("fc_out", draft.fc_out, draft.dtype)]
    specs += [
        TensorSpec("embed_in", draft.hidden, draft.dtype),
        TensorSpec("hidden_out", draft.hidden, draft.dtype),
        TensorSpec("topk/draft_ids", options.topk, "int32"),
        TensorSpec("topk/ids", options.topk, "int32"),
        TensorSpec("topk/logits", options.topk, DType.FP32),
    ]
    return tuple(specs)


def expected_taps(layout: TraceLayout, side: str, phase: Phase, *, graph: bool = False) -> tuple[str, ...]:
    """The taps that must fire in a forward pass of this phase (a layer sweep aside: it has its own row budget)."""
    if side == "target":
        return tuple(spec.name for spec in layout.target if not spec.is_boundary)
    names = tuple(spec.name for spec in layout.draft)
    # fc stands before the first draft step only: later steps take the recycled state.
    if phase in EXTEND:
        return names
    # A graph of all draft steps picks its tokens inside; its logits never stand anywhere to be read.
    gone = ("fc_", "topk/") if graph else ("fc_",)
    return tuple(name for name in names if not name.startswith(gone))
