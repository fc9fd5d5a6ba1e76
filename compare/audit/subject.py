"""What one audit looks at, gathered once; and how its checks write down a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drafttrace.compare.audit.asking_sglang import Loads
from drafttrace.compare.audit.conventions import Convention, SglangReader
from drafttrace.compare.audit.sglang_rules import LAST_VERSION
from drafttrace.compare.audit.target_config import TargetConfig
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights, slots_of_fc
from drafttrace.compare.result import FAULT, NOTE, Finding
from drafttrace.compare.vocabulary import class_of
from drafttrace.tracer.checkpoint import Checkpoint
from drafttrace.tracer.grammar import in_number

OUTSIDE = "outside_table"
"""Key of a finding's evidence: the release that was audited for and that the table does not have."""


@dataclass(frozen=True)
class Subject:
    """A draft, its target, and the server that would run them.

    trained: the wiring that training used, where something says so, and trained_by what does. readings: trainer,
    vLLM, SGLang, in this order. algorithm: the server's speculative algorithm, where known. by_value: where a dump
    says what training used, the slots that its rows prove (the others are as it declares them); None where something
    else says it. disputed: a dump's rows contradict ``trained``.
    """

    target: TargetConfig
    draft: DraftConfig
    target_weights: Checkpoint | None
    draft_weights: DraftWeights
    reader: SglangReader | None
    readings: tuple[Convention, ...]
    trained: tuple[int, ...] | None
    trained_by: str
    algorithm: str | None
    by_value: tuple[int, ...] | None = None
    disputed: bool = False
    loads: Loads | None = None
    release: str = LAST_VERSION

    @property
    def served(self) -> Convention:
        """SGLang's reading."""
        return self.readings[-1]

    @property
    def fc_slots(self) -> int | None:
        """Slots by the shape of ``fc``."""
        return slots_of_fc(self.draft_weights, self.draft)

    @property
    def origin(self) -> str:
        """What says what training used, and for a dump which slots are known by value and which as declared."""
        if self.by_value is None or self.trained is None:
            return self.trained_by
        declared = [k for k in range(len(self.trained)) if k not in self.by_value]
        parts = [(self.by_value, "by value"), (declared, "as declared")]
        said = [f"slot{'s' * (len(slots) > 1)} {_listed(slots)} {how}" for slots, how in parts if slots]
        return f"{self.trained_by}: {', '.join(said)}"

    @property
    def version(self) -> str:
        """The SGLang release that the audit assumes."""
        return self.reader.version if self.reader is not None else self.release


def _listed(slots: Sequence[int]) -> str:
    *first, last = (str(k) for k in slots)
    return f"{', '.join(first)} and {last}" if first else last


def fault(
    name: str,
    confidence: float,
    summary: str,
    remedy: str,
    evidence: Mapping[str, Any] | None = None,
    slots: tuple[int, ...] = (),
) -> Finding:
    """A finding that makes the verdict a mismatch."""
    return Finding(name, class_of(name), FAULT, confidence, slots, in_number(summary), dict(evidence or {}), remedy)


def note(
    name: str,
    confidence: float,
    summary: str,
    remedy: str,
    evidence: Mapping[str, Any] | None = None,
    slots: tuple[int, ...] = (),
) -> Finding:
    """A finding that a reader should know and that turns no verdict."""
    return Finding(name, class_of(name), NOTE, confidence, slots, in_number(summary), dict(evidence or {}), remedy)
