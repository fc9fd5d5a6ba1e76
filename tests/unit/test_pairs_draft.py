"""The unrolled draft computes what a chain of drafted tokens does, and the simulated accept length counts right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pairs.eagle3 import DraftShape, Eagle3, load_draft
from pairs.offline import accept_lengths, greedy
from pairs.shapes import LlamaShape
from pairs.targets import build_target
from pairs.tokenizer import VOCAB_SIZE


@pytest.fixture
def draft() -> Eagle3:
    torch.manual_seed(2)
    shape = DraftShape(hidden=32, heads=4, kv_heads=2, head_dim=16, inter=48, vocab=64)
    return Eagle3(shape, torch.randperm(VOCAB_SIZE)[:64].sort().values)


def test_unrolled_steps_equal_a_chain_drafted_one_token_at_a_time(draft: Eagle3) -> None:
    length, steps = 12, 4
    embed = torch.randn(VOCAB_SIZE, 32)
    slots = torch.randn(1, length, 96)
    tokens = torch.randint(0, VOCAB_SIZE, (1, length + steps - 1))
    with torch.no_grad():
        unrolled = draft(slots, tokens, embed, steps)
        for row in (0, 5, length - 1):
            # only the rows up to this one exist, as in serving; the later steps see the same past
            alone = draft(slots[:, : row + 1], tokens[:, : row + steps], embed, steps)
            for step in range(steps):
                torch.testing.assert_close(alone[step][0, row], unrolled[step][0, row], atol=1e-5, rtol=1e-4)


def test_first_step_is_an_ordinary_causal_pass(draft: Eagle3) -> None:
    embed, slots = torch.randn(VOCAB_SIZE, 32), torch.randn(1, 9, 96)
    tokens = torch.randint(0, VOCAB_SIZE, (1, 9))
    changed = slots.clone()
    changed[:, 6:] += 1
    with torch.no_grad():
        a, b = draft(slots, tokens, embed, 1)[0], draft(changed, tokens, embed, 1)[0]
    torch.testing.assert_close(a[:, :6], b[:, :6])
    assert not torch.allclose(a[:, 6:], b[:, 6:])


def test_saved_names_and_vocabulary_map(draft: Eagle3, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    draft.round_to_bf16()
    draft.save(tmp_path, [1, 7, 12])
    saved = load_file(tmp_path / "model.safetensors")
    assert saved["t2d"].dtype == torch.bool and int(saved["t2d"].sum()) == 64
    assert saved["d2t"].dtype == torch.int64
    assert torch.equal(torch.arange(64) + saved["d2t"], draft.draft_ids)
    assert torch.equal(saved["t2d"].nonzero().squeeze(1), draft.draft_ids)
    assert saved["midlayer.self_attn.q_proj.weight"].shape == (64, 64)
    again = load_draft(tmp_path)
    for name, tensor in draft.named_parameters():
        assert torch.equal(tensor, dict(again.named_parameters())[name])


@pytest.mark.parametrize(
    ("right", "lengths"),
    [
        ([[1] * 10] * 3, [4, 4, 1]),  # everything right: three drafted tokens and the target's own, then the rest
        ([[0] * 10] * 3, [1] * 9),
        ([[1] * 10, [0] * 10, [1] * 10], [2, 2, 2, 2, 1]),
    ],
)
def test_accept_lengths(right: list[list[int]], lengths: list[int]) -> None:
    ids = list(range(100, 113))  # a prompt of 3, then 10 tokens of which the first comes from prefill
    rows = torch.arange(len(ids))
    proposed = torch.stack([100 + rows + 2 + step for step in range(3)])
    hit = torch.tensor([[right[s][0]] * len(ids) for s in range(3)]).bool()
    assert accept_lengths(torch.where(hit, proposed, -1), ids, prompt=3) == lengths


def test_greedy_extends_each_prompt_as_if_alone() -> None:
    torch.manual_seed(4)
    target = build_target(LlamaShape(layers=2))
    prompts = [[0, 5, 9], [0, 7, 8, 6, 3]]
    together = greedy(target, prompts, 6)
    assert together == [greedy(target, [p], 6)[0] for p in prompts]
