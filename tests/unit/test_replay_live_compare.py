"""Where live and replay part: draft rows of a trace, right ones and ones with a fault put in at a known place."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_folders import HIDDEN, draft_tensors, specforge, target_tensors, write_draft
from replay_world import World, make_world

from drafttrace.compare.draft_config import read_draft_config
from drafttrace.compare.draft_weights import draft_weights
from drafttrace.compare.replay.loading import Replayer, load_replayer
from drafttrace.compare.replay.run import replay
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.target_parts import target_parts
from drafttrace.tracer.capture import Accepted, Capture, DraftRows, Phase, RowTable
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.rows import ArrayRows, DType

TRUTH, PROMPT, STEPS = (2, 9, 20), 12, 3
Rows = list[tuple[int, int, Phase, int, int, int]]  # position, token, phase, round, accepted, step


def pair(folder: Path) -> tuple[World, Replayer]:
    """A world whose draft has a real layer (the constructed one adds nothing)."""
    world = make_world(folder, TRUTH, rows=26)
    draft = write_draft(folder / "whole", specforge([k - 1 for k in TRUTH]), draft_tensors())
    parts = target_parts(open_checkpoint(world.target), eps=1e-6, model_type="llama", embed_scale=1.0)
    replayer = load_replayer(read_draft_config(draft), draft_weights(open_checkpoint(draft)), parts, 80)
    return dataclasses.replace(world, draft=draft), replayer


def served(world: World, replayer: Replayer, spoil: Callable[[str, int, torch.Tensor], torch.Tensor]) -> Capture:
    """What a server would have recorded: rounds that accept nothing, each token by token through the draft.

    ``spoil`` gets the name of a tensor, the step and its value, and returns what the server really had there.
    """
    model, tokens = replayer.model, world.tokens
    table = target_tensors()["model.embed_tokens.weight"].float()
    slots = torch.from_numpy(np.concatenate([world.states[k] for k in TRUTH], axis=-1))
    fc_out = spoil("fc_out", 0, model.fc(spoil("fc_in", 0, slots)))
    d2t = replayer.targets(Switches())
    rows: Rows = []
    tensors: dict[str, list[torch.Tensor]] = {"fc_in": [], "fc_out": [], "hidden_out": []}
    present: dict[str, list[bool]] = {name: [] for name in (*tensors, "topk_ids")}
    ids: list[np.ndarray] = []

    def add(
        row: tuple[int, int, Phase, int, int, int], step: int, parts: dict[str, torch.Tensor], normed: torch.Tensor
    ) -> int:
        scores = spoil("logits", step, model.logits(normed))
        best = d2t[scores.topk(4).indices.numpy()]
        rows.append(row)
        ids.append(best)
        for name in tensors:
            tensors[name].append(parts.get(name, torch.zeros(tensors_width(name))))
            present[name].append(name in parts)
        present["topk_ids"].append(True)
        return int(best[0])

    def tensors_width(name: str) -> int:
        return 3 * HIDDEN if name == "fc_in" else HIDDEN

    last = len(tokens) - 3
    for t in range(last):
        chain = [int(tokens[t + 1])]
        phase = Phase.DRAFT_EXTEND_PREFILL if t < PROMPT else Phase.DRAFT_EXTEND_VERIFY
        embedded = [table[torch.from_numpy(tokens[1 : t + 2])]]
        for step in range(STEPS):
            done = model.steps(fc_out[None, : t + 1], embedded, Switches())
            out = done[step]
            state = spoil("hidden_out", step, out.handed[0, t])
            if step == 0:
                parts = {"fc_in": spoil("fc_in", 0, slots)[t], "fc_out": fc_out[t], "hidden_out": state}
                said = add((t, chain[0], phase, t - PROMPT, Accepted.ACCEPTED, -1), 0, parts, out.normed[0, t])
                if t < PROMPT - 1:
                    break  # only the prompt's last row drafts
            else:
                row = (t + step, chain[-1], Phase.DRAFT_DECODE, t - PROMPT + 1, Accepted.UNKNOWN, step - 1)
                said = add(row, step, {"hidden_out": state}, out.normed[0, t])
            chain.append(said)
            embedded.append(torch.cat((torch.zeros(t, HIDDEN), table[said : said + 1])))
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(6)]
    made = DraftRows(
        table=RowTable(*columns, frame=np.arange(len(rows), dtype=np.int64)),
        tensors={n: ArrayRows(torch.stack(v).numpy(), DType.FP32) for n, v in tensors.items()},
        present={n: np.array(v) for n, v in present.items()},
        ids={"topk_ids": np.stack(ids)},
    )
    about = {"request": {"accept_counts": [1] * (last - PROMPT)}, "wiring": {"n": 32}}
    return world.capture(TRUTH, draft=made, prompt_length=PROMPT, about=about)


def honest(name: str, step: int, value: torch.Tensor) -> torch.Tensor:
    return value


def spoiled(where: str, at: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    return lambda name, step, value: change(value) if (name, step) == (where, at) else value


def test_an_honest_trace_agrees_everywhere(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    result = replay(served(world, replayer, honest), world.draft, world.target, switches=False)
    live = result.live
    assert live is not None and live.parted is None and (live.steps, live.topk) == (3, 1)
    assert live.top1_agreement == 1.0 and live.observed == 1.0 and result.steps == 3
    assert [(s.step, s.tensor) for s in live.stages] == [
        (0, "fc_in"), (0, "fc_out"), (0, "hidden_out"), (0, "proposal"),
        (1, "hidden_out"), (1, "proposal"), (2, "hidden_out"), (2, "proposal"),
    ]  # fmt: skip
    assert all(s.cosine_min is None or s.cosine_min > 0.9999 for s in live.stages)
    assert "none" in {f.id for f in result.findings} and "downstream" not in {f.id for f in result.findings}


@pytest.mark.parametrize(
    ("tensor", "step", "word"),
    [
        ("fc_in", 0, "norm before fc"),
        ("fc_out", 0, "fc's weights"),
        ("hidden_out", 0, "draft layer"),
        ("hidden_out", 1, "recycled state"),
        ("hidden_out", 2, "recycled state"),
        ("logits", 0, "vocabulary map"),
        ("logits", 2, "vocabulary map"),
    ],
)
def test_a_fault_is_placed_where_it_is(tmp_path: Path, tensor: str, step: int, word: str) -> None:
    world, replayer = pair(tmp_path)
    generator = torch.Generator().manual_seed(1)

    def change(value: torch.Tensor) -> torch.Tensor:
        return torch.randn(value.shape, generator=generator)

    result = replay(
        served(world, replayer, spoiled(tensor, step, change)), world.draft, world.target, switches=False
    )
    parted = result.live.parted if result.live is not None else None
    assert parted is not None
    assert (parted.tensor, parted.step) == ("proposal" if tensor == "logits" else tensor, step)
    (found,) = [f for f in result.faults if f.id == "downstream"]
    assert word in found.remedy and f"step {step + 1}" in found.summary


def test_exact_ties_are_no_difference(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    capture = served(world, replayer, honest)
    assert capture.draft is not None
    swapped = capture.draft.ids["topk_ids"][:, [1, 0, 2, 3]]
    ids = {"topk_ids": swapped}
    tied = np.tile(np.array([[9.0, 9.0, 8.5, 8.0]], np.float32), (len(swapped), 1))
    tensors = {**capture.draft.tensors, "topk_logits": ArrayRows(tied, DType.FP32)}
    same = dataclasses.replace(capture, draft=dataclasses.replace(capture.draft, ids=ids, tensors=tensors))
    live = replay(same, world.draft, world.target, switches=False).live
    assert live is not None and live.parted is None and live.top1_agreement == 1.0
    tied[:, 1] = 8.9
    live = replay(same, world.draft, world.target, switches=False).live
    assert live is not None and live.parted is not None and live.parted.tensor == "proposal"


def with_head(replayer: Replayer, head: torch.Tensor) -> Replayer:
    """The same draft with another head."""
    model = copy.copy(replayer.model)
    model.weights = {**replayer.model.weights, "lm_head.weight": head}
    return dataclasses.replace(replayer, model=model)


@pytest.mark.parametrize(
    ("first_rows", "by"), [(True, "from its first row on"), (False, "the target's head makes")]
)
def test_the_target_s_head_in_the_draft_s_place_is_named(tmp_path: Path, first_rows: bool, by: str) -> None:
    """It was "downstream": the audit cannot see it either, because the checkpoint's head is right."""
    world, replayer = pair(tmp_path)
    rows = replayer.parts.checkpoint.floats(replayer.parts.head)
    chosen = np.arange(replayer.draft_vocabulary) if first_rows else replayer.targets(Switches())
    capture = served(world, with_head(replayer, torch.from_numpy(rows[chosen])), honest)
    (found,) = replay(capture, world.draft, world.target, switches=False).faults
    assert found.id == "weights-replaced" and by in found.summary.replace("they are what ", ""), found.summary


def test_draft_ids_that_were_taken_for_target_ids_are_named(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    assert replayer.d2t is not None
    capture = served(world, dataclasses.replace(replayer, d2t=None), honest)
    (found,) = replay(capture, world.draft, world.target, switches=False).faults
    assert found.id == "vocab-map-missing"
