"""A world in which a draft is right by construction: states are random, tokens are what the draft makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from audit_folders import (
    HIDDEN,
    LLAMA_TARGET,
    VOCAB,
    draft_tensors,
    kept_tokens,
    specforge,
    write_draft,
    write_target,
)

from drafttrace.tracer.capture import Capture, LastState, Norm, RowTable, Slot
from drafttrace.tracer.rows import ArrayRows, DType

LAYERS = 32


@dataclass(frozen=True)
class World:
    """Folders of a pair, and every boundary of one text ``[LAYERS + 1, T, H]`` with its tokens."""

    target: Path
    draft: Path
    states: np.ndarray[Any, np.dtype[np.float32]]
    tokens: np.ndarray[Any, np.dtype[np.int64]]
    truth: tuple[int, ...]

    def capture(
        self, slots: tuple[int, ...], sweep: tuple[int, ...] = (), declared: bool = True, **more: Any
    ) -> Capture:
        """A dump with these boundaries as slots, and others as a layer sweep."""
        return Capture(
            path="dump/data_0.pt",
            format="SPEC-V1",
            recognised_by="test",
            tokens=self.tokens,
            table=RowTable.of_tokens(self.tokens),
            slots=tuple(
                Slot(f"hidden_states[{i}]", self.rows(k), k if declared else None, "test")
                for i, k in enumerate(slots)
            ),
            boundaries={k: self.rows(k) for k in sweep},
            **more,
        )

    def rows(self, k: int) -> ArrayRows:
        """One boundary."""
        return ArrayRows(self.states[k], DType.FP32)


def make_world(
    folder: Path,
    truth: tuple[int, ...],
    ids: list[int] | None = None,
    rows: int = 160,
    seed: int = 3,
    first: np.ndarray[Any, np.dtype[np.float32]] | None = None,
    **config: Any,
) -> World:
    """A draft whose layer adds next to nothing (a tensor of zeros is a fault), so that step 0 is
    ``lm_head(norm(fc(slots)))``, and a text that obeys it.

    Neighbouring boundaries are alike, as in a real model: each differs from the one before by a third of its norm.
    first: the target's embedding table, whose rows B0 then holds; without it B0 is random, too.
    """
    random = np.random.default_rng(seed)
    states = np.empty((LAYERS + 1, rows, HIDDEN), np.float32)
    states[0] = random.normal(size=(rows, HIDDEN))
    for k in range(1, LAYERS + 1):
        states[k] = 0.94 * states[k - 1] + 0.34 * random.normal(size=(rows, HIDDEN))
    tensors = draft_tensors()
    tensors["midlayer.self_attn.o_proj.weight"].mul_(1e-8)
    tensors["midlayer.mlp.down_proj.weight"].mul_(1e-8)

    def said(rows_of: slice) -> np.ndarray[Any, np.dtype[np.int64]]:
        hidden = (
            torch.from_numpy(np.concatenate([states[k, rows_of] for k in truth], axis=-1)) @ tensors["fc.weight"].T
        )
        hidden = torch.nn.functional.rms_norm(hidden, (HIDDEN,), tensors["norm.weight"], 1e-6)
        return kept_tokens()[(hidden @ tensors["lm_head.weight"].T).argmax(-1)].numpy()

    if first is None:
        tokens = np.concatenate(([1, 3], said(slice(None))[: rows - 2])).astype(np.int64)
    else:  # row t holds the token that rows before it made
        tokens = np.array([1, 3, *[0] * (rows - 2)], np.int64)
        for t in range(rows):
            states[0, t] = first[tokens[t]]
            if t + 2 < rows:
                tokens[t + 2] = said(slice(t, t + 1))[0]
    target = write_target(folder / "target", {**LLAMA_TARGET, "num_hidden_layers": LAYERS, "vocab_size": VOCAB})
    draft = write_draft(folder / "draft", specforge(ids or [k - 1 for k in truth], **config), tensors)
    return World(target, draft, states, tokens, truth)


def last_state(world: World, k: int, norm: Norm) -> LastState:
    """A boundary in the place of the last state."""
    return LastState("last", world.rows(k), norm, "test", k)
