"""What one audit looks at, gathered once; and how its checks write down a finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drafttrace.compare.audit.conventions import Convention, SglangReader
from drafttrace.compare.audit.target_config import TargetConfig
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights, slots_of_fc
from drafttrace.compare.result import FAULT, NOTE, Finding
from drafttrace.compare.vocabulary import class_of
from drafttrace.tracer.checkpoint import Checkpoint


@dataclass(frozen=True)
class Subject:
    """A draft, its target, and the server that would run them.

    trained: the wiring that training used, where something says so, and trained_by what does. readings: trainer,
    vLLM, SGLang, in this order. algorithm: the server's speculative algorithm, where known.
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

    @property
    def served(self) -> Convention:
        """SGLang's reading."""
        return self.readings[-1]

    @property
    def fc_slots(self) -> int | None:
        """Slots by the shape of ``fc``."""
        return slots_of_fc(self.draft_weights, self.draft)

    @property
    def version(self) -> str:
        """The SGLang release that the audit assumes."""
        return self.reader.version if self.reader is not None else "0.5.23"


def fault(
    name: str,
    confidence: float,
    summary: str,
    remedy: str,
    evidence: Mapping[str, Any] | None = None,
    slots: tuple[int, ...] = (),
) -> Finding:
    """A finding that makes the verdict a mismatch."""
    return Finding(name, class_of(name), FAULT, confidence, slots, summary, dict(evidence or {}), remedy)


def note(
    name: str,
    confidence: float,
    summary: str,
    remedy: str,
    evidence: Mapping[str, Any] | None = None,
    slots: tuple[int, ...] = (),
) -> Finding:
    """A finding that a reader should know and that turns no verdict."""
    return Finding(name, class_of(name), NOTE, confidence, slots, summary, dict(evidence or {}), remedy)
