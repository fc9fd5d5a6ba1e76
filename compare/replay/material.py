"""What a replay is made of and should not be silent about: token ids, and states that are no numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from drafttrace.compare.audit.subject import fault
from drafttrace.compare.replay.texts import Key, Text, key_name
from drafttrace.compare.result import Finding
from drafttrace.tracer.errors import NothingToCompare


def token_remarks(text: Text, vocabulary: int) -> list[str]:
    """That some token ids are none of the target's. Raises NothingToCompare where most of them are not."""
    outside = (text.tokens < 0) | (text.tokens >= vocabulary)
    count = int(outside.sum())
    if count == 0:
        return []
    first = int(text.tokens[outside][0])
    if 2 * count > len(text.tokens):
        raise NothingToCompare(
            f"{text.name} has {count} of {len(text.tokens)} token ids outside the target's vocabulary of {vocabulary} (the "
            f"first is {first}), so there is no text to replay; give the target that the capture was made with."
        )
    return [
        f"{count} of {len(text.tokens)} token ids lie outside the target's vocabulary of {vocabulary} (the first is "
        f"{first}): they are read as zeros"
    ]


def broken_findings(texts: Sequence[Text], keys: Sequence[Key]) -> Iterator[Finding]:
    """States that are NaN or infinite: every later row of a causal pass is, too. keys: of the wirings that were run."""
    for text in texts:
        for key in dict.fromkeys(keys):
            if key not in text.sources:
                continue
            broken = ~np.isfinite(text.state(key)).all(axis=1)
            if not broken.any():
                continue
            first, count = int(np.argmax(broken)), int(broken.sum())
            where = f"{key_name(key)} of {text.name}"
            if key in text.file_wiring:
                where = f"slot {text.file_wiring.index(key)} ({key_name(key)}) of {text.name}"
            yield fault(
                "nan-inf",
                0.97,
                f"{where} is NaN or infinite in {count} of {text.rows} rows, the first at position {text.first + first}; "
                "no proposal from there on means anything.",
                "Dump or record those rows again, and look at what made them with drafttrace inspect.",
                {"capture": text.name, "state": key_name(key), "rows": count, "first": text.first + first},
            )
