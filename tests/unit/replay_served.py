"""Draft rows of a trace as a server records them: right ones, and ones with a fault put in at a known place."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from audit_folders import HIDDEN, draft_tensors, specforge, target_tensors, write_draft
from replay_world import World, make_world

from drafttrace.compare.draft_config import read_draft_config
from drafttrace.compare.draft_weights import draft_weights
from drafttrace.compare.replay.loading import Replayer, load_replayer
from drafttrace.compare.replay.model import Reading
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.target_parts import target_parts
from drafttrace.tracer.capture import Accepted, Capture, DraftRows, Phase, RowTable
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.rows import ArrayRows, DType

TRUTH, PROMPT, STEPS = (2, 9, 20), 12, 3
PLAIN = Switches()
Rows = list[tuple[int, int, Phase, int, int, int]]  # position, token, phase, round, accepted, step


def pair(folder: Path, tensors: Mapping[str, torch.Tensor] | None = None, **config: Any) -> tuple[World, Replayer]:
    """A world whose draft has a real layer (the constructed one adds nothing). config: changes of the draft's."""
    world = make_world(folder, TRUTH, rows=26)
    draft = write_draft(folder / "whole", specforge([k - 1 for k in TRUTH], **config), tensors or draft_tensors())
    parts = target_parts(open_checkpoint(world.target), eps=1e-6, model_type="llama", embed_scale=1.0)
    replayer = load_replayer(read_draft_config(draft), draft_weights(open_checkpoint(draft)), parts, 80)
    return dataclasses.replace(world, draft=draft), replayer


def honest(name: str, step: int, value: torch.Tensor) -> torch.Tensor:
    return value


def served(
    world: World,
    replayer: Replayer,
    spoil: Callable[[str, int, torch.Tensor], torch.Tensor] = honest,
    switches: Switches = PLAIN,
    silent: Collection[str] = (),
) -> Capture:
    """What a server would have recorded: rounds that accept nothing, each token by token through the draft.

    ``spoil`` gets the name of a tensor, the step and its value, and returns what the server really had there. silent:
    parts of layers that put out nothing.
    """
    model, tokens = replayer.model, world.tokens
    table = target_tensors()["model.embed_tokens.weight"].float()
    slots = torch.from_numpy(np.concatenate([world.states[k] for k in TRUTH], axis=-1))
    fc_out = spoil("fc_out", 0, model.fc(spoil("fc_in", 0, slots)))
    d2t = replayer.targets(Switches())
    rows: Rows = []
    names = ("embed_in", "hidden_in", "fc_in", "fc_out", "hidden_out")
    tensors: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    present: dict[str, list[bool]] = {name: [] for name in (*tensors, "topk_ids")}
    ids: dict[str, list[np.ndarray]] = {"topk_ids": [], "topk_draft_ids": []}
    best_logits: list[np.ndarray] = []

    def add(
        row: tuple[int, int, Phase, int, int, int], step: int, parts: dict[str, torch.Tensor], normed: torch.Tensor
    ) -> int:
        scores = spoil("logits", step, model.logits(normed))
        best = scores.topk(4)  # lists equal ones in any order, as a recorder's does
        rows.append(row)
        ids["topk_ids"].append(d2t[best.indices.numpy()])
        ids["topk_draft_ids"].append(best.indices.numpy())
        best_logits.append(best.values.numpy())
        for name in tensors:
            tensors[name].append(parts.get(name, torch.zeros(tensors_width(name))))
            present[name].append(name in parts)
        present["topk_ids"].append(True)
        return int(d2t[int(scores.argmax())])

    def tensors_width(name: str) -> int:
        return 3 * HIDDEN if name in ("hidden_in", "fc_in") else HIDDEN

    def wide(state: torch.Tensor) -> torch.Tensor:
        """A recycled state as a recorder keeps it: in the first columns of a row as wide as the slots."""
        return torch.cat((state, torch.zeros(2 * HIDDEN)))

    last = len(tokens) - 3
    for t in range(last):
        chain = [int(tokens[t + 1])]
        phase = Phase.DRAFT_EXTEND_PREFILL if t < PROMPT else Phase.DRAFT_EXTEND_VERIFY
        read = [[int(token) for token in tokens[1 : t + 2]]]
        for step in range(STEPS):
            done = model.steps(fc_out[None, : t + 1], Reading(table, torch.tensor(read)), switches, silent=silent)
            out = done[step]
            parts = {
                "embed_in": spoil("embed_in", step, table[chain[-1]]),
                "hidden_in": spoil("hidden_in", step, slots[t] if step == 0 else wide(done[step - 1].handed[0, t])),
                "hidden_out": spoil("hidden_out", step, out.handed[0, t]),
            }
            if step == 0:
                parts |= {"fc_in": spoil("fc_in", 0, slots)[t], "fc_out": fc_out[t]}
                said = add((t, chain[0], phase, t - PROMPT, Accepted.ACCEPTED, -1), 0, parts, out.normed[0, t])
                if t < PROMPT - 1:
                    break  # only the prompt's last row drafts
            else:
                row = (t + step, chain[-1], Phase.DRAFT_DECODE, t - PROMPT + 1, Accepted.UNKNOWN, step - 1)
                said = add(row, step, parts, out.normed[0, t])
            chain.append(said)
            read.append([0] * t + [said])  # what the rows before read does not reach row t
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(6)]
    made = DraftRows(
        table=RowTable(*columns, frame=np.arange(len(rows), dtype=np.int64)),
        tensors={
            **{n: ArrayRows(torch.stack(v).numpy(), DType.FP32) for n, v in tensors.items()},
            "topk_logits": ArrayRows(np.stack(best_logits), DType.FP32),
        },
        present={n: np.array(v) for n, v in present.items()},
        ids={name: np.stack(values) for name, values in ids.items()},
    )
    about = {"request": {"accept_counts": [1] * (last - PROMPT)}, "wiring": {"n": 32}}
    return world.capture(TRUTH, draft=made, prompt_length=PROMPT, about=about)


def spoiled(where: str, at: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    return lambda name, step, value: change(value) if (name, step) == (where, at) else value


def with_weight(replayer: Replayer, name: str, value: torch.Tensor) -> Replayer:
    """The same draft with one tensor replaced."""
    model = copy.copy(replayer.model)
    model.weights = {**replayer.model.weights, name: value}
    return dataclasses.replace(replayer, model=model)
