"""Weight files that count themselves (``model-00001-of-00002``) beside no index that would say what the others held."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from drafttrace.compare.audit.asking_sglang import DRAFT, TARGET
from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.document import join
from drafttrace.compare.result import Finding
from drafttrace.tracer.checkpoint import Checkpoint

_SHARD = re.compile(r"(.+-)(\d{2,})-of-(\d{2,})(\.\w+)")
_MOST = 100_000


def shard_findings(subject: Subject) -> Iterator[Finding]:
    """The shards that a folder lacks by the names of the others, for both roles."""
    for role, weights in ((TARGET, subject.target_weights), (DRAFT, subject.draft_weights.checkpoint)):
        lost = missing_shards(weights)
        if lost:
            yield fault(
                "weights-missing",
                0.85,
                f"The {role}'s folder holds no {join(lost, 3)}, which the names of its other weight files count, and no "
                "index: what they held is not loaded.",
                "Fetch the missing files and the index; or name the file model.safetensors if it is the whole.",
                {"role": role, "missing": lost[:100], "count": len(lost)},
            )


def missing_shards(weights: Checkpoint | None) -> list[str]:
    """The names of the shards that are not there; none where an index says which there are."""
    if weights is None or weights.index is not None:
        return []
    sets: dict[tuple[str, str, str], tuple[Path, set[int]]] = {}
    for file in weights.files:
        match = _SHARD.fullmatch(file.name)
        if match is not None and int(match[3]) <= _MOST:
            sets.setdefault((match[1], match[3], match[4]), (file, set()))[1].add(int(match[2]))
    return [
        f"{head}{number:0{len(count)}d}-of-{count}{tail}"
        for (head, count, tail), (_, there) in sets.items()
        for number in range(1, int(count) + 1)
        if number not in there
    ]
