"""Who a row is: pure arithmetic on strides and accept counts, no tensors of the engine."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Accepted, Phase

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Verdict:
    """What one verify round said of one request.

    nodes: batch-wide row numbers of the accepted path, in order (chain or tree), padded with -1.
    count: how many of them hold (the bonus token's row included), so the round put ``count`` tokens into the output.
    """

    nodes: Ints
    count: int


@dataclass(frozen=True)
class RowGroup:
    """Rows of one request in one forward pass. first: batch-wide number of its first row. branches: topk of the tree."""

    phase: Phase
    step: int
    first: int
    branches: int = 1


def accepted_rows(group: RowGroup, rows: int, verdict: Verdict | None) -> Bytes:
    """Which of ``rows`` rows the verifier accepted: :class:`Accepted` values ``[rows]``.

    Prefill rows are prompt tokens: always accepted. A verify row is accepted when it lies on the accepted path, in
    draft extend the path stands at the front of the request's block. A draft-decode row of step k guessed the token
    at depth k+1; in a chain it is accepted when the path is longer than that, in a tree nothing says which branch.
    """
    if group.phase in (Phase.PREFILL, Phase.DRAFT_EXTEND_PREFILL, Phase.DECODE):
        return np.full(rows, Accepted.ACCEPTED, np.uint8)
    if verdict is None:
        return np.full(rows, Accepted.UNKNOWN, np.uint8)
    if group.phase is Phase.VERIFY:
        path = verdict.nodes[: verdict.count] - group.first
        good = np.zeros(rows, bool)
        good[path[(path >= 0) & (path < rows)]] = True
    elif group.phase is Phase.DRAFT_EXTEND_VERIFY:
        good = np.arange(rows) < verdict.count
    elif group.branches == 1:
        good = np.full(rows, verdict.count > group.step + 1)
    else:
        return np.full(rows, Accepted.UNKNOWN, np.uint8)
    return np.where(good, Accepted.ACCEPTED, Accepted.REJECTED).astype(np.uint8)


def outside_output(position: Ints, total: int) -> npt.NDArray[np.bool_]:
    """Rows whose token did not end up in the text of ``total`` tokens: a stop or the length limit cut the round."""
    cut: npt.NDArray[np.bool_] = position >= total
    return cut


def extend_ranges(lengths: list[int]) -> list[tuple[int, int]]:
    """Row ranges of the requests of an extend batch, from their extend (not total) lengths."""
    ends = np.cumsum([0, *lengths])
    return [(int(a), int(b)) for a, b in itertools.pairwise(ends)]


def stride_range(index: int, stride: int) -> tuple[int, int]:
    """Row range of request ``index`` where every request has ``stride`` rows."""
    return index * stride, (index + 1) * stride
