"""Where a process stands among those that serve one model together. Knows no engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """rank of ranks: in the group that computes the same rows (tensor parallel). stage of stages: of the layers (pipeline
    parallel). share of shares: of one request's rows (context parallel). replica of replicas: each has requests of its own
    (data parallel, with DP attention or without).

    gap: what no trace of this server holds, and what to do, in words. refusal: why nothing can be recorded at all.
    """

    rank: int = 0
    ranks: int = 1
    stage: int = 0
    stages: int = 1
    share: int = 0
    shares: int = 1
    replica: int = 0
    replicas: int = 1
    gap: str | None = None
    refusal: str | None = None

    @property
    def records(self) -> bool:
        """Whether this process has anything to do with traces: later stages would take the first one's file for theirs."""
        return self.stage == 0 and self.share == 0

    def to_json(self) -> dict[str, Any]:
        """The numbers alone, as the trace and the health route give them."""
        return {name: value for name, value in asdict(self).items() if name not in ("gap", "refusal")}
