"""The prompts of the real pair: the same on every machine, and the held-out ones in no training run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pairs.smol.answers import Talk, read_answers
from pairs.smol.prompts import FAMILIES, HELD_OUT, held_out_prompts, ordinary_questions, training_prompts

ROOT = Path(__file__).resolve().parents[2]


def test_the_draw_is_the_same_every_time() -> None:
    assert training_prompts(50) == training_prompts(50)
    assert training_prompts(400)[:50] == training_prompts(50)
    assert held_out_prompts(20) == held_out_prompts()[:20]
    assert training_prompts(2) == [
        "Write a short paragraph about evolution.",
        "Give me four interesting facts about airplanes.",
    ]


def test_held_out_prompts_are_in_no_training_run() -> None:
    training = training_prompts(2500)
    assert len(set(training)) == 2500
    assert len(set(held_out_prompts())) == HELD_OUT
    assert not set(training) & set(held_out_prompts())


def test_ordinary_questions_come_from_no_template_of_training() -> None:
    """The page had a figure for held-out prompts of the same templates only."""
    questions = ordinary_questions()
    assert len(set(questions)) == len(questions) == 12

    def openings(texts: list[str]) -> set[str]:
        return {" ".join(text.split()[:3]) for text in texts}

    assert not openings(questions) & openings([*training_prompts(2500), *held_out_prompts()])
    measured = json.loads((ROOT / "pairs/smol/accept_length.json").read_text("utf-8"))
    assert measured["ordinary"]["prompts"] == len(questions)
    assert measured["ordinary"]["accept_length"] < measured["wirings"]["as trained"]["accept_length"]


def test_every_family_is_there() -> None:
    openings = {prompt.split()[0] for prompt in training_prompts(2000)}
    assert len(openings) > 2 * len(FAMILIES)


def test_more_prompts_than_there_are() -> None:
    with pytest.raises(ValueError, match="fewer"):
        training_prompts(50_000)


def test_a_line_cut_off_by_an_interruption_is_passed_over(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "answers.jsonl"
    whole = '{"prompt": "a", "ids": [1, 2], "prompt_length": 1, "states": "s", "start": 0, "rows": 1}'
    path.write_text(whole + '\n{"prompt": "b", "ids": [1')
    assert read_answers(path) == [Talk("a", [1, 2], 1, "s", 0, 1)]
    assert read_answers(tmp_path / "none.jsonl") == []
