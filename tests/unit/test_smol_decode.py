"""Batched greedy decoding of the real pair says, and keeps, what one request alone would."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pairs.smol.decode import answer

END_ID = 2


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.4,
        attn_implementation="grouped",
    )
    return LlamaForCausalLM(config).eval()


def alone(model: LlamaForCausalLM, prompt: list[int], limit: int) -> tuple[list[int], torch.Tensor]:
    """Token by token without a cache, and the states of all tokens but the last: B1 and last/post."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(limit):
            out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
            ids.append(int(out.logits[0, -1].argmax()))
            if ids[-1] == END_ID:
                break
    return ids[len(prompt) :], torch.stack((out.hidden_states[1][0], out.hidden_states[3][0]), dim=1)


def test_a_batch_says_what_each_prompt_alone_would(model: LlamaForCausalLM) -> None:
    torch.manual_seed(0)
    prompts = [torch.randint(3, 40, (n,)).tolist() for n in (4, 9, 6, 9, 5, 7, 4, 8)]
    said = answer(model, prompts, END_ID, 24, (1, 3))
    lengths = set()
    for prompt, one in zip(prompts, said, strict=True):
        tokens, states = alone(model, prompt, 24)
        assert one.tokens == tokens
        assert one.states.shape == (len(prompt) + len(tokens) - 1, 2, 48)
        torch.testing.assert_close(one.states, states, atol=2e-4, rtol=2e-4)
        lengths.add(len(tokens))
    assert len(lengths) > 2  # some answers ended early, so that the batch has shrunk on the way
