"""The three parts of a target that a draft shares or is judged by: embedding, final norm, head.

Read from memory maps: only the rows that are asked for, and the head in blocks, so a 1-TB checkpoint costs what the
rows cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.checkpoint import Checkpoint
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.part_names import EMBED, HEAD, NORM, gain_is_one_plus, stored_name
from drafttrace.tracer.rows import Floats

HEAD_BLOCK = 8192


@dataclass(frozen=True)
class TargetParts:
    """Where a target's shared parts are. ``plus_one``: the norm's gain is stored as w - 1 (Gemma, Qwen3.5)."""

    checkpoint: Checkpoint
    embedding: str
    norm: str | None
    head: str
    eps: float
    plus_one: bool
    embed_scale: float

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return self.checkpoint.info(self.embedding).shape[0]

    def embed(self, ids: npt.NDArray[np.int64]) -> Floats:
        """Embedding rows ``[len(ids), H]`` as stored (not scaled); ids outside the table give zeros."""
        inside = (ids >= 0) & (ids < self.vocabulary)
        rows = self.checkpoint.floats(self.embedding, np.where(inside, ids, 0))
        return np.where(inside[:, None], rows, np.float32(0.0))

    def final_norm(self, states: Floats) -> Floats:
        """``states`` after the target's final RMS norm."""
        if self.norm is None:
            raise UnreadableFile(f"{self.checkpoint.root} has no final norm; give the whole target.")
        if self.checkpoint.info(self.norm).shape != states.shape[1:]:
            raise UnreadableFile(
                f"{self.checkpoint.root} has a final norm of shape {list(self.checkpoint.info(self.norm).shape)} for "
                f"states {states.shape[1]} wide; fetch the target again."
            )
        gain = self.checkpoint.floats(self.norm) + np.float32(1.0 if self.plus_one else 0.0)
        scale = 1.0 / np.sqrt(np.mean(states.astype(np.float32) ** 2, axis=-1, keepdims=True) + self.eps)
        made: Floats = (states * scale * gain).astype(np.float32)
        return made

    def head_blocks(self) -> Iterator[tuple[int, Floats]]:
        """The head in blocks of rows: (first row, ``[rows, H]``)."""
        rows = self.checkpoint.info(self.head).shape[0]
        for begin in range(0, rows, HEAD_BLOCK):
            yield begin, self.checkpoint.floats(self.head, slice(begin, begin + HEAD_BLOCK))

    def argmax(self, normed: Floats) -> npt.NDArray[np.int64]:
        """The target's own choice for every row ``[R]`` from states after the final norm."""
        best = np.full(len(normed), -np.inf, np.float32)
        choice = np.zeros(len(normed), np.int64)
        for begin, block in self.head_blocks():
            scores = normed @ block.T
            place = scores.argmax(-1)
            value = scores[np.arange(len(scores)), place]
            better = value > best
            best = np.where(better, value, best)
            choice = np.where(better, place + begin, choice)
        return choice


def target_parts(checkpoint: Checkpoint, *, eps: float, model_type: str, embed_scale: float) -> TargetParts:
    """The parts of a target's checkpoint. A target without lm_head ties it to the embedding.

    Raises UnreadableFile where there is no embedding.
    """
    embedding = stored_name(checkpoint, EMBED)
    if embedding is None:
        raise UnreadableFile(f"{checkpoint.root} has no embed_tokens.weight; give the folder of the whole target.")
    head = stored_name(checkpoint, HEAD) or embedding
    for name in (embedding, head):
        info = checkpoint.info(name)
        if len(info.shape) != 2 or 0 in info.shape or info.float_dtype is None:
            raise UnreadableFile(
                f"{checkpoint.root} stores '{name}' as {info.dtype} {list(info.shape)}, no matrix of "
                "floating-point numbers; fetch the target again."
            )
    return TargetParts(
        checkpoint=checkpoint,
        embedding=embedding,
        norm=stored_name(checkpoint, NORM),
        head=head,
        eps=eps,
        plus_one=gain_is_one_plus(model_type),
        embed_scale=embed_scale,
    )
