"""The accept length of every round of a greedy chain, as it follows from the draft's proposals and the text.

Greedy verification takes a proposal where it is the token that the target says, which is the token of the text: so many
leading proposals as are right, and one token more. What a trace says of its rounds has to be that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from drafttrace.compare.replay.texts import Text
from drafttrace.tracer.capture import Capture, Ints, Phase


def expected_lengths(
    capture: Capture, text: Text, proposed: Ints, drafted: Mapping[tuple[int, int], int], steps: int
) -> tuple[int | None, ...]:
    """Tokens that every round of a request yields, bonus token included; None for a round that the text's end cuts.

    proposed ``[S, R]``: target ids that the replay proposes at step s of row t. drafted: (step, row) to the id that the
    server verified there, which counts before the replay's. steps: draft steps of the server. Empty where the rounds do
    not follow from the text: sampling that is not known to be greedy, or other rounds recorded than counted.
    """
    request = capture.about.get("request")
    counts = request.get("accept_counts") if isinstance(request, Mapping) else None
    starts = _starts(capture)
    if not isinstance(counts, list) or len(counts) != len(starts) or not _greedy(request):
        return ()
    return tuple(_length(text, start - text.first, proposed, drafted, steps) for start in starts)


def _greedy(request: object) -> bool:
    sampling = request.get("sampling") if isinstance(request, Mapping) else None
    return isinstance(sampling, Mapping) and (sampling.get("top_k") == 1 or sampling.get("temperature") == 0)


def _starts(capture: Capture) -> list[int]:
    """The position of the token that each round verifies first: the one that the round before yielded last."""
    table = capture.table
    rows = np.flatnonzero((table.phase == Phase.VERIFY) & (table.token_id >= 0))
    return [int(table.position[rows[table.round[rows] == k]].min()) for k in np.unique(table.round[rows])]


def _length(
    text: Text, start: int, proposed: Ints, drafted: Mapping[tuple[int, int], int], steps: int
) -> int | None:
    row = start - 1  # drafts at the position before the token that it has read last
    for step in range(steps):
        at = start + 1 + step
        if not 0 <= row < text.rows or at >= len(text.tokens) or step >= len(proposed):
            return None
        said = drafted.get((step, row), int(proposed[step, row]))
        if said < 0:
            return None
        if said != int(text.tokens[at]):
            return step + 1
    return steps + 1
