"""Seeded chat prompts for the real pair: what the target answers itself, and what its head is measured on.

Twelve families (explain, list, summarise, translate, code, rewrite, sums, stories, ...) filled from word lists. The
held-out prompts come from the same families and are in no training run: they are drawn first, and the
training draw passes over them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Message = dict[str, str]
Family = Callable[[random.Random], str]

_WORDS = json.loads((Path(__file__).parent / "words.json").read_text())
TOPICS: list[str] = _WORDS["topics"]
TASKS: list[str] = _WORDS["tasks"]
PLACES: list[str] = _WORDS["places"]
NAMES: list[str] = _WORDS["names"]
CREATURES: list[str] = _WORDS["creatures"]
SETTINGS: list[str] = _WORDS["settings"]
CODE: list[str] = _WORDS["code"]
SENTENCES: list[str] = _WORDS["sentences"]
ROUGH: list[str] = _WORDS["rough"]
FACTS: list[str] = _WORDS["facts"]
GOODS: list[str] = _WORDS["goods"]
PAIRS: list[tuple[str, str]] = [(one, other) for one, other in _WORDS["pairs"]]


def _explain(rng: random.Random) -> str:
    how = [
        "Explain {} in simple terms.",
        "What is {}?",
        "How does {} work?",
        "Can you tell me about {}?",
        "Why is {} important?",
        "Explain {} to a ten-year-old child.",
        "Write a short paragraph about {}.",
        "Describe {} in a few sentences.",
    ]
    return rng.choice(how).format(rng.choice(TOPICS))


def _list(rng: random.Random) -> str:
    count = rng.choice(["three", "four", "five", "5", "six"])
    how = [
        "List {} facts about {}.",
        "Give me {} interesting facts about {}.",
        "Name {} things everyone should know about {}.",
    ]
    return rng.choice(how).format(count, rng.choice(TOPICS))


def _advice(rng: random.Random) -> str:
    how = [
        "How do I {}?",
        "Give me some tips on how to {}.",
        "What is the best way to {}?",
        "Write step by step instructions: how to {}.",
        "What are five ways to {}?",
        "I want to {}. Where do I start?",
    ]
    return rng.choice(how).format(rng.choice(TASKS))


def _story(rng: random.Random) -> str:
    how = [
        "Write a short story about {} {}.",
        "Tell me a story about {} {}.",
        "Write the beginning of a fairy tale about {} {}.",
        "Write a funny story about {} {}.",
    ]
    return rng.choice(how).format(rng.choice(CREATURES), rng.choice(SETTINGS))


def _poem(rng: random.Random) -> str:
    return f"Write a {rng.choice(['short poem', 'poem', 'haiku', 'song'])} about {rng.choice(TOPICS)}."


def _code(rng: random.Random) -> str:
    how = [
        "Write a Python function that {}.",
        "Write a Python program that {} and explain it.",
        "Show me Python code that {}.",
    ]
    return rng.choice(how).format(rng.choice(CODE))


def _translate(rng: random.Random) -> str:
    language = rng.choice(["French", "Spanish", "German", "Italian"])
    return f'Translate into {language} and explain the words: "{rng.choice(SENTENCES)}"'


def _rewrite(rng: random.Random) -> str:
    how = [
        "Rewrite this politely: {}",
        "Correct the grammar of this sentence and explain the changes: {}",
        "Make this more formal: {}",
        "Write a polite email that says: {}",
    ]
    return rng.choice(how).format(rng.choice(ROUGH))


def _summary(rng: random.Random) -> str:
    how = [
        "Summarise this text in one sentence and then explain why it matters: {}",
        "What are the main points of this text? {}",
        "Give this text a title and write a summary: {}",
    ]
    return rng.choice(how).format(rng.choice(FACTS))


def _sum(rng: random.Random) -> str:
    a, b = rng.sample(NAMES, 2)
    goods, many, few = rng.choice(GOODS), rng.randint(12, 40), rng.randint(2, 11)
    how = [
        f"{a} has {many} {goods} and gives {few} to {b}. How many {goods} does {a} have left? Explain step by step.",
        f"{a} buys {few} boxes with {many} {goods} each. How many {goods} is that? Show your work.",
        f"{a} has {many} {goods} and {b} has {few} more than {a}. How many do they have together? Explain.",
    ]
    return rng.choice(how)


def _compare(rng: random.Random) -> str:
    one, other = rng.choice(PAIRS)
    how = [
        "What is the difference between {} and {}?",
        "Compare {} and {}.",
        "What are the advantages of {} over {}?",
    ]
    return rng.choice(how).format(one, other)


def _travel(rng: random.Random) -> str:
    how = [
        "I have one day in {}. What should I see?",
        "Plan a weekend in {}.",
        "What is {} known for?",
        "Describe {} to a first-time visitor.",
        "What food should I try in {}?",
    ]
    return rng.choice(how).format(rng.choice(PLACES))


FAMILIES: dict[str, tuple[Family, float]] = {
    "explain": (_explain, 2.4),
    "list": (_list, 1.2),
    "advice": (_advice, 1.2),
    "story": (_story, 1.2),
    "poem": (_poem, 0.6),
    "code": (_code, 0.8),
    "translate": (_translate, 0.6),
    "rewrite": (_rewrite, 0.4),
    "summary": (_summary, 0.25),
    "sum": (_sum, 1.0),
    "compare": (_compare, 0.5),
    "travel": (_travel, 0.8),
}
HELD_OUT = 160
MOST = 5000  # distinct prompts that the word lists give for sure
SEED = 20


def _distinct(seed: int, count: int, taken: set[str]) -> list[str]:
    rng = random.Random(seed)
    families = [family for family, _ in FAMILIES.values()]
    weights = [weight for _, weight in FAMILIES.values()]
    found: list[str] = []
    tries = 0
    while len(found) < count:
        tries += 1
        if tries > 4 * count + 100:
            raise ValueError(f"the word lists give no {count} distinct prompts: ask for fewer")
        prompt = rng.choices(families, weights)[0](rng)
        if prompt not in taken:
            taken.add(prompt)
            found.append(prompt)
    return found


def held_out_prompts(count: int = HELD_OUT) -> list[str]:
    """The first ``count`` prompts that no training run sees (at most ``HELD_OUT``)."""
    return _distinct(SEED, HELD_OUT, set())[:count]


def training_prompts(count: int) -> list[str]:
    """``count`` distinct prompts, none of them held out; a longer draw begins with the shorter one."""
    return _distinct(SEED + 1, count, set(held_out_prompts()))


def ordinary_questions() -> list[str]:
    """What somebody might ask (``questions.json``): none of them out of the templates of the other prompts."""
    found: list[str] = _questions()["questions"]
    return found


def texts_unlike_the_training() -> dict[str, list[str]]:
    """By kind, what hardly a training prompt looked like (``questions.json``): other languages, bytes, one word."""
    found: dict[str, list[str]] = _questions()["unlike the training"]
    return found


def _questions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "questions.json").read_text("utf-8"))
    return found


def messages(prompt: str) -> list[Message]:
    """The prompt as the chat that the template renders (it adds the model's own system message)."""
    return [{"role": "user", "content": prompt}]


def held_out_texts(count: int) -> list[str]:
    """The held-out prompts as text, through the model's own chat template. Fetches the model where needed."""
    from transformers import AutoTokenizer

    from pairs.smol.fetch import target_dir

    tokenizer = AutoTokenizer.from_pretrained(target_dir())
    return [
        str(tokenizer.apply_chat_template(messages(prompt), tokenize=False, add_generation_prompt=True))
        for prompt in held_out_prompts(count)
    ]
