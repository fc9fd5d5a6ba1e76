"""Tokens without states before a replay's rows: what the draft's attention lacks there, and what is then not known.

A prefix cache supplies tokens that no pass computes, and rows can be missing in the middle of a request. The server's
draft has keys of those tokens, the replay has none. What is made row by row (:func:`row_local`) is the same without
them; behind the first layer's attention no row is, unless a window keeps it from looking that far back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from drafttrace.compare.audit.subject import note
from drafttrace.compare.document import join
from drafttrace.compare.replay.live import LiveComparison
from drafttrace.compare.replay.stages import row_local
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.replay.texts import Text
from drafttrace.compare.result import Finding


def absent_before(text: Text, switches: Switches, layers: int) -> int:
    """Tokens before the text whose keys rows that the mask counts would see; 0: their lengths are the draft's own."""
    counted = int(np.argmax(text.weight)) - text.mask_offset if text.weight.any() else 0
    return text.first if text.rows_lacking(switches.windows, layers) > max(0, counted) else 0


def absent_findings(text: Text, live: LiveComparison | None, absent: int) -> Iterator[Finding]:
    """That states are missing, what of the live draft was compared all the same, and what is not known.

    absent: see :func:`absent_before`.
    """
    lacking = live.lacking if live is not None else 0
    if not lacking and not absent and not text.left_out:
        return
    said, remedy = [], "Record the whole request again (with room for all of its rows)."
    if text.first:
        origin = "the prefix cache supplied them" if text.cached else "their rows are missing"
        said.append(f"The first {text.first} tokens of {text.name} have no states: {origin}. That is no fault")
        if text.cached:
            remedy = (
                "Record the request again with an extra_key of its own, as drafttrace record sends it: then nothing comes "
                "from the cache."
            )
    if live is not None and lacking:
        said.append(
            f"the server's draft attends to them and the replay cannot, so of {lacking} rows only "
            f"{join(_compared(live)) or 'nothing'} could be compared with the live draft"
        )
    if absent:
        observed = "" if live is None or live.observed is None else f" (observed: {live.observed:.2f})"
        said.append(f"which accept length to expect is not known{observed}, nor whether the draft works at all")
    if text.left_out:
        said.append(
            f"{text.left_out} further positions of {text.name} have rows behind or before a gap and are left out, so the "
            "replayed text is not all of what was served"
        )
    summary = "; ".join(said)
    yield note(
        "prefix-gap",
        0.99,
        summary[0].upper() + summary[1:] + ".",
        remedy,
        {"tokens": text.first, "rows_lacking": lacking, "left_out": text.left_out, "cached": text.cached},
    )


def _compared(live: LiveComparison) -> Sequence[str]:
    local = [stage.tensor for stage in live.stages if row_local(stage.tensor, stage.step)]
    return list(dict.fromkeys(local))
