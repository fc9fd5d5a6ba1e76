"""The byte-level BPE tokenizer that both tiny pairs share, and the chat format it carries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pairs.chat import ASSISTANT_ID, BOS, BOS_ID, END, END_ID, SPECIAL, TEMPLATE, USER_ID, Conversation
from pairs.corpus import conversations

VOCAB_SIZE = 1024
TRAINING_SEED = 7
TRAINING_CONVERSATIONS = 6000


@dataclass(frozen=True)
class Encoded:
    """A conversation as token ids, with 1 on the tokens that the assistant speaks (its end mark included)."""

    ids: list[int]
    mask: list[int]


def train_tokenizer(folder: Path, families: Sequence[str] | None = None) -> None:
    """Train on the corpus and write tokenizer.json and tokenizer_config.json into `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        m["content"]
        for talk in islice(conversations(TRAINING_SEED, families), TRAINING_CONVERSATIONS)
        for m in talk
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


class ChatTokenizer:
    """The tokenizer as the training scripts use it; equal, token for token, to the chat template."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(self, talk: Conversation) -> Encoded:
        """All turns of the conversation."""
        ids, mask = [BOS_ID], [0]
        for message in talk:
            spoken = message["role"] == "assistant"
            body = [*self._tokenizer.encode(message["content"]).ids, END_ID]
            ids += [ASSISTANT_ID if spoken else USER_ID, *body]
            mask += [0, *([int(spoken)] * len(body))]
        return Encoded(ids, mask)

    def encode_prompt(self, talk: Conversation) -> list[int]:
        """The turns so far, and the mark that asks the assistant to speak."""
        return [*self.encode(talk).ids, ASSISTANT_ID]

    def decode(self, ids: list[int]) -> str:
        """Text with the marks left in."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))
