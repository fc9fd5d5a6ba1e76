"""The text of the tiny pairs: the same for a seed, held-out prompts unseen, one encoding for script and chat template."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from pairs.chat import ASSISTANT, BOS, render_prompt
from pairs.corpus import conversations, held_out_prompts, held_out_talks
from pairs.tokenizer import ChatTokenizer

PAIR = Path(__file__).resolve().parents[2] / "pairs" / "tiny-llama"


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(PAIR / "target")


def test_a_seed_gives_the_same_text_again() -> None:
    assert list(islice(conversations(3), 20)) == list(islice(conversations(3), 20))
    assert list(islice(conversations(3), 20)) != list(islice(conversations(4), 20))


def test_held_out_prompts_end_where_the_assistant_speaks_and_are_not_trained_on() -> None:
    prompts = held_out_prompts(30)
    assert all(p.startswith(BOS) and p.endswith(ASSISTANT) for p in prompts)
    assert len(set(prompts)) == 30
    trained = {render_prompt(talk[:-1]) for seed in (7, 11, 23, 31) for talk in islice(conversations(seed), 3000)}
    assert not trained & set(prompts)


def test_most_replies_are_settled_by_the_prompt_and_names_are_new_each_time() -> None:
    replies = [talk[-1]["content"] for talk in held_out_talks(200)]
    assert len(set(replies)) == 200


def test_prompt_text_and_prompt_ids_are_one_thing(tokenizer: ChatTokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(PAIR / "target")
    for talk, prompt in zip(held_out_talks(8), held_out_prompts(8), strict=True):
        ids = tokenizer.encode_prompt(talk[:-1])
        assert theirs(prompt)["input_ids"] == ids
        assert theirs.apply_chat_template(talk[:-1], add_generation_prompt=True)["input_ids"] == ids
        assert tokenizer.decode(ids) == prompt


def test_the_mask_of_the_script_is_that_of_the_chat_template(tokenizer: ChatTokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(PAIR / "target")
    for talk in held_out_talks(8):
        encoded = tokenizer.encode(talk)
        made = theirs.apply_chat_template(talk, return_dict=True, return_assistant_tokens_mask=True)
        assert (made["input_ids"], made["assistant_masks"]) == (encoded.ids, encoded.mask)
