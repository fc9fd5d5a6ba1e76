"""The capture: tokens, slots, last state, mask and provenance, from a trace or from a training dump.

It is the one form that everything compares. A capture never says more than its file does: a boundary that the
file does not declare is ``None``, and every declared one says where the declaration stands.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.rows import Rows

Ints = npt.NDArray[np.int64]


class Phase(enum.IntEnum):
    """The forward pass that computed a row. The values are stored in trace files: never renumber."""

    PREFILL = 0
    VERIFY = 1
    DRAFT_EXTEND_PREFILL = 2
    DRAFT_EXTEND_VERIFY = 3
    DRAFT_DECODE = 4
    DECODE = 5  # a plain decode step of a target that runs without speculation


class Accepted(enum.IntEnum):
    """Whether the token at a row ended up in the output. Stored in trace files: never renumber."""

    REJECTED = 0
    ACCEPTED = 1
    UNKNOWN = 2


class Norm(enum.StrEnum):
    """Whether a last state stands before or after the target's final norm."""

    PRE = "pre"
    POST = "post"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class RowTable:
    """Who each row is. Arrays of one length R.

    position: token position in the request, 0-based. token_id: the token at that position (-1 unknown).
    phase: :class:`Phase`. round: -1 in prefill, then 0, 1, ... accepted: :class:`Accepted`.
    step: draft step, -1 where there is none. frame: number of the forward pass in the trace.
    """

    position: Ints
    token_id: Ints
    phase: Ints
    round: Ints
    accepted: Ints
    step: Ints
    frame: Ints

    def __len__(self) -> int:
        return len(self.position)

    @staticmethod
    def of_tokens(tokens: Ints, count: int | None = None) -> RowTable:
        """Row t belongs to token t, as in every training dump; ``count`` rows (default: one per token)."""
        n = len(tokens) if count is None else count
        known = np.full(n, -1, np.int64)
        known[: min(n, len(tokens))] = tokens[:n]

        def fill(value: int) -> Ints:
            return np.broadcast_to(np.int64(value), n)  # one number, however many rows there are

        return RowTable(
            position=np.arange(n, dtype=np.int64),
            token_id=known,
            phase=fill(Phase.PREFILL),
            round=fill(-1),
            accepted=fill(Accepted.ACCEPTED),
            step=fill(-1),
            frame=fill(0),
        )


@dataclass(frozen=True)
class Slot:
    """One slot: rows ``[R, H]``, the boundary that its file declares, and where the declaration stands."""

    name: str
    rows: Rows
    boundary: int | None
    source: str


@dataclass(frozen=True)
class LastState:
    """The state that the target's head reads: rows ``[R, H]``, before or after the final norm, and the proof."""

    name: str
    rows: Rows
    norm: Norm
    proven_by: str
    boundary: int | None = None


@dataclass(frozen=True)
class DraftRows:
    """What the draft saw and made. ``table`` has R rows; every tensor has R rows (NaN-free, zero where unused).

    Known names: ``hidden_in`` ``[R, K*H]`` or ``[R, H]``, ``fc_in`` ``[R, K*H]``, ``fc_out`` ``[R, H]``,
    ``embed_in`` ``[R, H]``, ``hidden_out`` ``[R, H]``, ``topk_logits`` ``[R, k]``. ``ids`` holds integer matrices
    ``[R, k]``: ``topk_draft_ids`` (draft vocabulary) and ``topk_ids`` (after the vocabulary map).
    """

    table: RowTable
    tensors: Mapping[str, Rows]
    present: Mapping[str, npt.NDArray[np.bool_]]
    ids: Mapping[str, Ints] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """How often one tap should have fired and did. A tap that did not fire is a finding."""

    name: str
    expected: int
    fired: int
    rows: int
    dropped: int


@dataclass(frozen=True, repr=False)
class Capture:
    """Tokens and the hidden states that belong to them.

    tokens: unshifted ids ``[T]``; -1 where a file does not keep one. table: R rows, see :class:`RowTable`.
    slots: in fc order, each ``[R, H]``. embed / last / boundaries: further states of the target, each ``[R, H]``;
    a boundary sweep may cover only the first rows (``len(rows) <= R``). mask: loss mask ``[T]`` on the unshifted
    tokens; row t is weighted by ``mask[t + mask_offset]`` in training. valid_length: tokens that are not padding.
    sample: its number among several. spec: ``PATH#i`` where ``path`` holds other samples, too.
    about: parsed JSON blocks of a trace (environment, server_args, target_config, draft_config, wiring, request,
    weights) or what a dump says of itself. present: masks ``[R]``, by slot name (also "embed" and "last"), of the
    rows that were recorded, where some were not: those are zero; a name that is missing here has all its rows.
    padded: mask ``[R]`` of the rows that were computed in a batch with padding rows beside them, None where no file
    tells. padding: by tap (slot names, "last", and the names of the draft's tensors) and frame, the hash
    (``row_hash.row_hashes``) of the first padding row of that pass.
    unread: the names of what a dump's sample holds besides, such as logits: with number format and shape of a tensor, with
    "" of anything else.
    """

    path: str
    format: str
    recognised_by: str
    tokens: Ints
    table: RowTable
    slots: tuple[Slot, ...]
    embed: Slot | None = None
    last: LastState | None = None
    boundaries: Mapping[int, Rows] = field(default_factory=dict)
    draft: DraftRows | None = None
    mask: Ints | None = None
    mask_offset: int = 0
    valid_length: int = 0
    prompt_length: int | None = None
    sample: int | None = None
    spec: str | None = None
    complete: bool = True
    probes: tuple[Probe, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    present: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    padded: npt.NDArray[np.bool_] | None = None
    padding: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        from drafttrace.tracer.capture_html import one_line

        return one_line(self)

    def _repr_html_(self) -> str:
        from drafttrace.tracer.capture_html import as_html

        return as_html(self)

    @property
    def wiring(self) -> tuple[int | None, ...]:
        """The declared boundary of every slot, in fc order."""
        return tuple(slot.boundary for slot in self.slots)

    @property
    def assumed_wiring(self) -> bool:
        """Whether nobody said which boundaries training used: ``drafttrace reference`` chose the slots itself."""
        return bool(self.about.get("assumed_wiring"))

    def in_text(self, count: int) -> npt.NDArray[np.bool_]:
        """``[count]``: which of the first rows stand at a token of the text; those of a padded tail do not."""
        position = self.table.position[:count]
        inside: npt.NDArray[np.bool_] = (position >= 0) & (position < (self.valid_length or len(self.tokens)))
        return inside

    @property
    def redacted(self) -> bool:
        """Whether the token ids are pseudonyms (``drafttrace redact``): equal where equal, and of no vocabulary."""
        return "redacted" in self.about

    def need_real_tokens(self, use: str) -> None:
        """Raises DrafttraceError for a redacted capture. use: what needs its tokens, as "replay the draft"."""
        if self.redacted:
            raise DrafttraceError(
                f"'{self.path}' is redacted: its token ids are pseudonyms, so nobody can {use} with them; give the trace "
                "that it was made from."
            )

    @property
    def hidden_size(self) -> int | None:
        """Width H of one slot, or of another state where there is none; None for a capture without any state."""
        if self.slots:
            return self.slots[0].rows.width
        others = [state.rows for state in (self.last, self.embed) if state is not None]
        return next((rows.width for rows in (*others, *self.boundaries.values())), None)
