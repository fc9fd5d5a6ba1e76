"""The accept length of every round of a greedy chain, as it follows from the draft's proposals and the text.

Greedy verification takes a proposal where it is the token that the target says, which is the token of the text: so many
leading proposals as are right, and one token more. What a trace says of its rounds has to be that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from drafttrace.compare.replay.texts import Text
from drafttrace.tracer.capture import Capture, Phase


def expected_lengths(
    capture: Capture, text: Text, drafted: Mapping[tuple[int, int], int]
) -> tuple[int | None, ...]:
    """Tokens that every round of a request yields, bonus token included; None for a round that the text's end cuts.

    drafted: (step, row of the text) to the id that was proposed, and verified, there. Empty where the rounds do not follow
    from the text: sampling that is not known to be greedy, or other rounds recorded than counted.
    """
    request = capture.about.get("request")
    counts = request.get("accept_counts") if isinstance(request, Mapping) else None
    starts = _starts(capture)
    if not isinstance(counts, list) or len(counts) != len(starts) or not _greedy(request):
        return ()
    return tuple(_length(text, start - text.first, drafted) for start in starts)


def _greedy(request: object) -> bool:
    sampling = request.get("sampling") if isinstance(request, Mapping) else None
    return isinstance(sampling, Mapping) and (sampling.get("top_k") == 1 or sampling.get("temperature") == 0)


def _starts(capture: Capture) -> list[int]:
    """The position of the token that each round verifies first: the one that the round before yielded last."""
    table = capture.table
    rows = np.flatnonzero((table.phase == Phase.VERIFY) & (table.token_id >= 0))
    return [int(table.position[rows[table.round[rows] == k]].min()) for k in np.unique(table.round[rows])]


def _length(text: Text, start: int, drafted: Mapping[tuple[int, int], int]) -> int | None:
    row, step = start - 1, 0  # drafts at the position before the token that it has read last
    while (step, row) in drafted:
        at = start + 1 + step
        if not 0 < at < len(text.tokens):
            return None
        if drafted[step, row] != int(text.tokens[at]):
            return step + 1
        step += 1
    return step + 1 if step else None
