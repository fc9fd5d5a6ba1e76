"""Loss masks that stand a token off the answers, in the shapes of common chat templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare_world import dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.masks import find_mask_shifts, spans
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.chat_marks import ChatMarks, chat_marks
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.tokenizer import load_decoder

WORLD = make_world(layers=4, tokens=48)
ROOT = Path(__file__).resolve().parents[2]

START, END, NEWLINE, USER, ASSISTANT, HEAD_END, BOS, THINK, ASS, ISTANT = range(1, 11)
WORDS = {NEWLINE: "\\n", USER: "user", ASSISTANT: "assistant", ASS: "ass", ISTANT: "istant"}


def decode(token: int) -> str:
    return WORDS.get(token, f"word{token}")


def words(count: int, seed: int) -> list[int]:
    return [int(w) for w in np.random.default_rng(seed).integers(100, 900, count)]


def chatml(turns: int) -> list[list[tuple[int, int]]]:
    """Turns of (token, mask): <start> role newline text <end> newline; the mask holds text and end mark."""
    made = []
    for turn in range(turns):
        for role, keep in ((USER, 0), (ASSISTANT, 1)):
            text = words(7, 2 * turn + keep)
            made.append(
                [(START, 0), (role, 0), (NEWLINE, 0), *((w, keep) for w in text), (END, keep), (NEWLINE, 0)]
            )
    return made


def split_roles(turns: int) -> list[list[tuple[int, int]]]:
    """As :func:`chatml`, in a vocabulary that has no token of its own for "assistant"; the last answer was cut."""
    made = [
        [(t, k) for token, k in turn for t in ((ASS, ISTANT) if token == ASSISTANT else (token,))]
        for turn in chatml(turns)
    ]
    made[-1] = made[-1][:-3]
    return made


def single_marks(turns: int) -> list[list[tuple[int, int]]]:
    """<user> text <end> <assistant> text <end>, as the tiny pairs write it."""
    made = [[(BOS, 0)]]
    for turn in range(turns):
        for role, keep in ((USER, 0), (ASSISTANT, 1)):
            text = words(6, 2 * turn + keep)
            made.append([(role, 0), *((w, keep) for w in text), (END, keep)])
    return made


def two_marks(turns: int) -> list[list[tuple[int, int]]]:
    """<start> role <head end> newline text <end>."""
    made = [[(BOS, 0)]]
    for turn in range(turns):
        for role, keep in ((USER, 0), (ASSISTANT, 1)):
            text = words(6, 2 * turn + keep)
            made.append(
                [(START, 0), (role, 0), (HEAD_END, 0), (NEWLINE, 0), *((w, keep) for w in text), (END, keep)]
            )
    return made


SHAPES: dict[str, tuple[Callable[[int], list[list[tuple[int, int]]]], ChatMarks]] = {
    "chatml": (chatml, ChatMarks(frozenset({START}), frozenset({END}))),
    "split roles": (split_roles, ChatMarks(frozenset({START}), frozenset({END}))),
    "single marks": (single_marks, ChatMarks(frozenset({BOS, USER, ASSISTANT}), frozenset({END}))),
    "two marks": (two_marks, ChatMarks(frozenset({BOS, START, HEAD_END}), frozenset({END}))),
}


def sample(shape: str, turns: int, shift: int = 0, wrap: bool = False) -> Capture:
    pairs = [pair for turn in SHAPES[shape][0](turns) for pair in turn]
    tokens, mask = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    moved = np.roll(mask, shift)
    if not wrap and shift > 0:
        moved[:shift] = 0
    if not wrap and shift < 0:
        moved[shift:] = 0
    dump = dumped(WORLD, (1, 2, 3))
    return replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens), mask=moved, valid_length=len(tokens))


def found(dump: Capture, marks: ChatMarks | None, text: bool = True) -> list[int]:
    left = replace(dump, mask=None)
    return [m.shift for m in find_mask_shifts(left, dump, marks, decode if text else None)]


@pytest.mark.parametrize("turns", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_that_stands_right_is_left_alone(shape: str, turns: int) -> None:
    for text in (True, False):
        assert found(sample(shape, turns), SHAPES[shape][1], text) == []


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_moved_mask_is_found(shape: str, turns: int, shift: int, wrap: bool) -> None:
    assert found(sample(shape, turns, shift, wrap), SHAPES[shape][1]) == [shift]


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_without_the_end_mark_and_masks_with_more_of_the_header_are_conventions(shape: str) -> None:
    dump = sample(shape, 3)
    assert dump.mask is not None
    without_end, longer = dump.mask.copy(), dump.mask.copy()
    for first, stop in spans(dump.mask):
        without_end[stop - 1] = 0
        longer[first - 1] = 1  # trainers that shift ids and not the mask ask for this
    for mask in (without_end, longer):
        assert found(replace(dump, mask=mask), SHAPES[shape][1]) == []


def test_an_answer_that_begins_with_a_mark_of_its_own_is_no_shift() -> None:
    tokens = np.array([BOS, USER, *words(5, 0), END, ASSISTANT, THINK, *words(6, 1), END], np.int64)
    mask = (np.arange(len(tokens)) >= 9).astype(np.int64)
    dump = dumped(WORLD, (1, 2, 3))
    dump = replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens), mask=mask, valid_length=len(tokens))
    assert found(dump, ChatMarks(frozenset({BOS, USER, ASSISTANT, THINK}), frozenset({END}))) == []


def test_without_a_tokenizer_an_answer_that_follows_an_end_mark_at_once_is_seen() -> None:
    ends = {"target_config": {"eos_token_id": END}}
    dump = sample("single marks", 2, -1)
    left = replace(dump, mask=None, about=ends)
    assert [m.shift for m in find_mask_shifts(left, dump, None)] == [-1]
    assert find_mask_shifts(left, sample("single marks", 2), None) == ()


def test_two_masks_over_the_same_tokens_are_held_against_each_other() -> None:
    right, late = sample("chatml", 2), sample("chatml", 2, 1)
    assert [m.shift for m in find_mask_shifts(right, late, SHAPES["chatml"][1], decode)] == [1]
    [shift] = find_mask_shifts(right, late, None)
    assert (shift.shift, shift.by) == (1, "the other side's mask")
    assert find_mask_shifts(right, right, None) == ()


def test_the_prompt_of_the_request_says_where_the_answer_starts() -> None:
    world = make_world(layers=4, tokens=40)
    dump = replace(dumped(world, (1, 2, 3)), mask=(np.arange(40) >= 19).astype(np.int64))
    left = served(world, (1, 2, 3), prompt=20)
    [shift] = find_mask_shifts(left, dump, None)
    assert (shift.shift, shift.by, shift.both_ends) == (-1, "the request's prompt", False)
    assert find_mask_shifts(served(world, (1, 2, 3), prompt=19), dump, None) == ()


def test_the_finding_names_the_tokens_and_turns_the_verdict() -> None:
    dump = sample("single marks", 3, -1)
    world = replace(WORLD, tokens=dump.tokens[:48])
    left = served(world, (1, 2, 3), sweep=())
    result = diff(left, dump, marks=SHAPES["single marks"][1], decode=lambda token: f"<{token}>")
    assert result.findings[0].id == "mask-shift" and result.exit_code == 1
    assert "3 of 3 answers" in result.findings[0].summary and "“<5>”" in result.findings[0].summary


def real(pair: str) -> Sequence[Capture]:
    names = {"tiny-kimi": "dump/data_{}.pt", "tiny-llama": "dump/hidden_states/hs_{}.safetensors"}
    return [open_capture(str(ROOT / "pairs" / pair / names[pair].format(i))) for i in range(8)]


@pytest.mark.parametrize("pair", ["tiny-kimi", "tiny-llama"])
def test_the_masks_of_real_dumps_are_right_and_moved_ones_are_found(pair: str) -> None:
    marks = chat_marks(ROOT / "pairs" / pair / "target")
    assert marks is not None and 1 in marks.ends and 3 in marks.opens
    text = load_decoder(ROOT / "pairs" / pair / "target")
    for dump in real(pair):
        assert dump.mask is not None
        left = replace(dump, mask=None)
        assert find_mask_shifts(left, dump, marks, text) == find_mask_shifts(left, dump, marks) == ()
        for shift in (-2, -1, 1, 2):
            moved = find_mask_shifts(left, replace(dump, mask=np.roll(dump.mask, shift)), marks, text)
            assert [m.shift for m in moved] == [shift]
