"""Where live and replay part: draft rows of a trace, right ones and ones with a fault put in at a known place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_folders import HIDDEN, draft_tensors, specforge, write_draft
from replay_served import PROMPT, STEPS, TRUTH, honest, pair, served, spoiled, with_weight

from drafttrace.compare.replay.run import replay
from drafttrace.compare.replay.switches import Switches
from drafttrace.tracer.capture import Accepted, Phase, RowTable
from drafttrace.tracer.rows import ArrayRows, DType


def test_an_honest_trace_agrees_everywhere(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    result = replay(served(world, replayer, honest), world.draft, world.target, switches=False)
    live = result.live
    assert live is not None and live.parted is None and (live.steps, live.topk) == (3, 1)
    assert live.top1_agreement == 1.0 and live.observed == 1.0 and result.steps == 3
    assert [(s.step, s.tensor) for s in live.stages] == [
        (0, "embed_in"), (0, "hidden_in"), (0, "fc_in"), (0, "fc_out"), (0, "hidden_out"), (0, "proposal"), (0, "logits"),
        (1, "embed_in"), (1, "hidden_in"), (1, "hidden_out"), (1, "proposal"), (1, "logits"),
        (2, "embed_in"), (2, "hidden_in"), (2, "hidden_out"), (2, "proposal"), (2, "logits"),
    ]  # fmt: skip
    assert all(s.cosine_min is None or s.cosine_min > 0.9999 for s in live.stages)
    assert "none" in {f.id for f in result.findings} and "downstream" not in {f.id for f in result.findings}


@pytest.mark.parametrize(
    ("tensor", "step", "word"),
    [
        ("embed_in", 0, "embed_tokens"),
        ("embed_in", 1, "embed_tokens"),
        ("hidden_in", 0, "hand-over of the hidden states"),
        ("hidden_in", 2, "what one draft step hands to the next"),
        ("fc_in", 0, "norm before fc"),
        ("fc_out", 0, "fc's weights"),
        ("hidden_out", 0, "draft layer"),
        ("hidden_out", 1, "recycled state"),
        ("hidden_out", 2, "recycled state"),
        ("logits", 0, "lm_head"),
        ("logits", 2, "lm_head"),
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


@pytest.mark.parametrize("factor", [1.1, 1.5, 3.0])
def test_a_scaled_fc_is_named_at_fc_out(tmp_path: Path, factor: float) -> None:
    """Cosine alone was compared: x 1.1 was unseen, and larger factors were placed at the draft layer."""
    world, replayer = pair(tmp_path)

    def scaled(value: torch.Tensor) -> torch.Tensor:
        return value * factor

    capture = served(world, replayer, spoiled("fc_out", 0, scaled))
    result = replay(capture, world.draft, world.target, switches=False)
    parted = result.live.parted if result.live is not None else None
    assert parted is not None and (parted.tensor, parted.step) == ("fc_out", 0)
    assert parted.norm_ratio_p50 == pytest.approx(factor, rel=1e-3)
    (found,) = [f for f in result.faults if f.id == "downstream"]
    assert (
        f"relative L2 {factor - 1:.3f}, norm {factor:.3f} times" in found.summary and "fc's weights" in found.remedy
    )


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
    assert live is not None
    proposals = [stage for stage in live.stages if stage.tensor == "proposal"]
    assert all(stage.tied_top1 == 1.0 and not stage.parted for stage in proposals)
    tied[:, 1] = 8.9
    live = replay(same, world.draft, world.target, switches=False).live
    assert live is not None and live.parted is not None and live.parted.tensor == "proposal"


def test_of_equal_logits_the_lowest_draft_id_is_the_server_s(tmp_path: Path) -> None:
    """Ties counted as agreement whatever the server chose; a server takes the first, a recorded top-k lists any."""
    world, replayer = pair(tmp_path)
    capture = served(world, replayer, honest)
    assert capture.draft is not None
    said, draft_ids = capture.draft.ids["topk_ids"], capture.draft.ids["topk_draft_ids"]
    width = said.shape[1]

    def agreement(order: list[int], offset: int) -> float | None:
        """offset: added to the draft ids of what the replay does not choose, so that its own are the lowest or not."""
        numbers = draft_ids.copy()
        numbers[:, 1:] = draft_ids[:, :1] + offset
        ids = {"topk_ids": said[:, order], "topk_draft_ids": numbers[:, order]}
        logits = ArrayRows(np.full((len(said), width), 7.0, np.float32), DType.FP32)
        draft = dataclasses.replace(
            capture.draft, ids=ids, tensors={**capture.draft.tensors, "topk_logits": logits}
        )  # type: ignore[type-var]
        live = replay(dataclasses.replace(capture, draft=draft), world.draft, world.target, switches=False).live
        return None if live is None else live.top1_agreement

    assert agreement([1, 2, 0, 3], +1) == 1.0
    assert agreement([0, 1, 2, 3], -1) == 0.0


def test_what_the_target_verified_is_what_the_server_drafted(tmp_path: Path) -> None:
    """The recorded top-k is a reading beside the server's own; what reached verify is the server's word."""
    world, replayer = pair(tmp_path)
    capture = served(world, replayer, honest)
    assert capture.draft is not None
    decode = capture.draft.table.phase == Phase.DRAFT_DECODE
    rounds = np.unique(capture.draft.table.round[decode])
    rows: list[tuple[int, ...]] = []
    for number in rounds:
        row = (
            PROMPT - 1 + int(number)
        )  # the row of the text that drafted; its first id is verified two positions on
        rows.append((row + 1, int(world.tokens[row + 1]), Phase.VERIFY, int(number), Accepted.REJECTED, -1, 1000))
        rows += [(row + 2 + s, 95, Phase.VERIFY, int(number), Accepted.REJECTED, -1, 1000) for s in range(STEPS)]
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(7)]
    whole = {
        name: np.concatenate((getattr(capture.table, name), column))
        for name, column in zip(
            ("position", "token_id", "phase", "round", "accepted", "step", "frame"), columns, strict=True
        )
    }
    blank = np.zeros((len(rows), HIDDEN), np.float32)
    slots = tuple(
        dataclasses.replace(slot, rows=ArrayRows(np.concatenate((slot.rows.floats(), blank)), DType.FP32))
        for slot in capture.slots
    )
    traced = dataclasses.replace(capture, table=RowTable(**whole), slots=slots)
    live = replay(traced, world.draft, world.target, switches=False).live
    assert live is not None
    shares = {stage.step: stage for stage in live.stages if stage.tensor == "proposal"}
    assert shares[1].equal_top1 == shares[2].equal_top1 == 0.0  # token 95 is outside the draft's vocabulary
    drafted, compared = len(rounds), shares[0].rows
    assert shares[0].equal_top1 == pytest.approx((compared - drafted) / compared)


def test_a_server_s_roundings_are_replayed(tmp_path: Path) -> None:
    """In bf16 the best two of many tokens often tie, and a float32 replay then chooses another one than the server."""
    tensors = draft_tensors()
    head = tensors["lm_head.weight"].bfloat16().float()
    head[1::2] = head[0::2]
    head[1::2, 0] *= 1 + 2**-7  # one step of bf16 in one weight: the logits are equal as often as not
    world, plain = pair(tmp_path)
    write_draft(tmp_path / "whole", specforge([k - 1 for k in TRUTH]), {**tensors, "lm_head.weight": head})
    states = torch.from_numpy(world.states).bfloat16().float().numpy()
    world = dataclasses.replace(world, states=states)
    plain = with_weight(plain, "lm_head.weight", head)
    capture = served(world, dataclasses.replace(plain, model=plain.model.rounded(torch.bfloat16)), honest)
    assert capture.draft is not None

    def stored(rows: Any, kind: DType) -> ArrayRows:
        values = rows.floats()
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        assert np.array_equal(bits.astype(np.uint32) << 16, values.view(np.uint32))  # they are bf16 numbers
        return ArrayRows(bits if kind is DType.BF16 else values, kind)

    agreement = {}
    for kind in (DType.BF16, DType.FP32):
        held = {name: stored(rows, kind) for name, rows in capture.draft.tensors.items()}
        draft = dataclasses.replace(capture.draft, tensors=held)
        live = replay(dataclasses.replace(capture, draft=draft), world.draft, world.target, switches=False).live
        assert live is not None and live.number_format == kind.value
        agreement[kind] = live.top1_agreement
        exact = [stage for stage in live.stages if stage.cosine_min is not None]
        assert all((stage.cosine_min or 0) > (1 - 1e-6 if kind is DType.BF16 else 0.999) for stage in exact)
    assert agreement[DType.BF16] == 1.0
    assert agreement[DType.FP32] is not None and agreement[DType.FP32] < 0.95


@pytest.mark.parametrize(
    ("first_rows", "by"), [(True, "from its first row on"), (False, "the target's head makes")]
)
def test_the_target_s_head_in_the_draft_s_place_is_named(tmp_path: Path, first_rows: bool, by: str) -> None:
    """It was "downstream": the audit cannot see it either, because the checkpoint's head is right."""
    world, replayer = pair(tmp_path)
    rows = replayer.parts.checkpoint.floats(replayer.parts.head)
    chosen = np.arange(replayer.draft_vocabulary) if first_rows else replayer.targets(Switches())
    capture = served(world, with_weight(replayer, "lm_head.weight", torch.from_numpy(rows[chosen])), honest)
    (found,) = replay(capture, world.draft, world.target, switches=False).faults
    assert found.id == "weights-replaced" and by in found.summary.replace("they are what ", ""), found.summary


def test_draft_ids_that_were_taken_for_target_ids_are_named(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    assert replayer.d2t is not None
    capture = served(world, dataclasses.replace(replayer, d2t=None), honest)
    (found,) = replay(capture, world.draft, world.target, switches=False).faults
    assert found.id == "vocab-map-missing"


def test_a_recycled_state_that_is_not_the_one_before_is_placed_at_hidden_in(tmp_path: Path) -> None:
    """hidden_in was not compared: "computes what the replay computes", for a step that took another row."""
    world, replayer = pair(tmp_path)
    taken: list[torch.Tensor] = []

    def earlier(name: str, step: int, value: torch.Tensor) -> torch.Tensor:
        if name != "hidden_in" or step != 1:
            return value
        taken.append(value)
        return taken[-2] if len(taken) > 1 else value

    result = replay(served(world, replayer, earlier), world.draft, world.target, switches=False)
    parted = result.live.parted if result.live is not None else None
    assert parted is not None and (parted.tensor, parted.step) == ("hidden_in", 1)
    (found,) = [f for f in result.faults if f.id == "downstream"]
    assert "between hidden_out of step 1 and hidden_in of step 2" in found.summary and result.exit_code == 1


def test_an_embedding_of_other_tokens_is_placed_at_embed_in(tmp_path: Path) -> None:
    world, replayer = pair(tmp_path)
    table = replayer.embed(np.arange(96), Switches())

    def shifted(name: str, step: int, value: torch.Tensor) -> torch.Tensor:
        if name != "embed_in":
            return value
        place = int((table - value).norm(dim=-1).argmin())
        return table[(place + 1) % len(table)]

    result = replay(served(world, replayer, shifted), world.draft, world.target, switches=False)
    parted = result.live.parted if result.live is not None else None
    assert parted is not None and (parted.tensor, parted.step) == ("embed_in", 0)
    assert "none" not in {f.id for f in result.findings} and result.exit_code == 1
