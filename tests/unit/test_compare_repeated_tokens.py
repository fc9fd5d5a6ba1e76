"""A prompt that repeats a token or two: its rows are one row, many times, and nearer to other boundaries than rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare_world import Floats, World, dumped, make_world, served

import drafttrace
from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import FAULT, Result
from drafttrace.compare.rounding import kinds, walk
from drafttrace.compare.sample import slot_streams
from drafttrace.compare.thresholds import DEFAULT, slot_limits

WIRING = (2, 9, 14)


def one_token(rows: int, error: float, seed: int, tokens: tuple[int, ...] = (7,)) -> World:
    """One row per token, repeated. From B4 on a massive channel holds nearly all of it, so that a layer changes a
    thousandth; ``error``: the relative error of that one channel, the same in all rows."""
    rng = np.random.default_rng(seed)
    table = np.random.default_rng(1).standard_normal((len(tokens), 64))
    which = np.arange(rows) % len(tokens)
    stream, streams = table[which].astype(np.float32), []
    layers = np.random.default_rng(2).standard_normal((17, 64))
    wrong = rng.standard_normal(64) * 0.002
    for k in range(17):
        streams.append((stream * (1 + (wrong if k else 0))).astype(np.float32))
        step = 0.3 * layers[k]
        if k == 3:
            step = step + 400 * (1 + error) * (np.arange(64) == 11)
        stream = (stream + step).astype(np.float32)
    ids = np.array(tokens, np.int64)[which]
    return World(ids, streams, [], np.ones(64, np.float32))


def faults(found: Result) -> list[str]:
    return [f.id for f in found.findings if f.severity == FAULT]


@pytest.mark.parametrize("sweep", ["left", "none"])
@pytest.mark.parametrize("rows", [1, 2, 3, 9, 64])
@pytest.mark.parametrize("error", [0.0, 0.02, 0.1, 0.3])
def test_rounding_of_a_repeated_token_is_no_cause(rows: int, error: float, sweep: str) -> None:
    """B9 and B10 are nearer than bf16 rounds there: "slot 2 is B15, training had B14" and "times one factor per channel"
    were told of healthy runs."""
    left = served(one_token(rows, 0.0, 3), WIRING)
    left = left if sweep == "left" else replace(left, boundaries={}, embed=None)
    found = diff(left, dumped(one_token(rows, error, 4), WIRING, last=None))
    assert faults(found) == [] and found.exit_code == 0, [(f.id, f.summary) for f in found.findings]
    assert "a few tokens that repeat" in found.summary
    again = rejudge(found, DEFAULT)
    assert again.exit_code == 0 and faults(again) == []


@pytest.mark.parametrize("tokens", [(7, 9), (7, 9, 11)])
def test_nor_is_that_of_tokens_in_turn(tokens: tuple[int, ...]) -> None:
    found = diff(
        served(one_token(60, 0.0, 3, tokens), WIRING), dumped(one_token(60, 0.06, 4, tokens), WIRING, last=None)
    )
    assert faults(found) == [] and found.exit_code == 0, [(f.id, f.summary) for f in found.findings]


def test_a_gross_fault_of_such_a_prompt_is_one_without_a_wrong_name() -> None:
    """The slots of the massive boundaries hold B2, and B2's slot holds a massive one."""
    left = served(one_token(64, 0.0, 3), WIRING)
    found = diff(left, dumped(one_token(64, 0.02, 4), (9, 2, 14), last=None))
    assert found.exit_code == 1 and not {"rotation", "norm-gain", "norm-extra", "scale"} & set(faults(found))


@pytest.mark.parametrize("wiring", [(2, 10, 14), (10, 2, 14), (0, 2, 9)])
def test_ordinary_text_is_told_as_before(wiring: tuple[int, ...]) -> None:
    world = make_world(layers=16, tokens=48)
    found = diff(served(world, WIRING), dumped(world.noisy(0.004), wiring))
    assert faults(found) and found.exit_code == 1 and not any(slot.kinds for slot in found.slots)


def test_limits_are_never_below_what_rounding_leaves() -> None:
    """A neighbouring boundary at 0.001 asked for 0.0006 of two runs in bf16."""
    world = make_world(layers=16, tokens=48)
    stream = slot_streams("left", served(world, (14,)))[0]
    expected = walk(14, stream)
    assert expected == pytest.approx(2.0**-9 * np.sqrt(29))
    found = slot_limits(DEFAULT, None, 0.001, expected)
    assert found.noise == pytest.approx(3 * expected) and found.match == pytest.approx(2 * expected)
    assert "not told apart" in found.against
    assert slot_limits(DEFAULT, None, 0.2, expected) == slot_limits(DEFAULT, None, 0.2)


def test_kinds_are_rows_unlike_each_other() -> None:
    rng = np.random.default_rng(0)
    rows: Floats = rng.standard_normal((6, 32)).astype(np.float32)
    repeated = np.concatenate([rows, 3 * rows, np.zeros((1, 32), np.float32), np.full((1, 32), np.nan, np.float32)])
    assert kinds(repeated).tolist() == list(range(6)) and kinds(repeated, 4).tolist() == list(range(4))


def test_states_equal_bit_for_bit_are_no_noise() -> None:
    """Two recordings of one server's answer that repeats a token, with a low accept length, were "unstructured noise (; the
    other slots match)"; `watch` called that a drift of the server."""
    trace = drafttrace.open(Path(__file__).resolve().parents[2] / "traces/tiny-kimi/as-trained.h5")
    table = replace(trace.table, token_id=np.full(len(trace.table), 7))
    about = {**trace.about, "request": {**trace.about["request"], "accept_counts": [1, 1, 1], "rounds": 3}}
    same = replace(trace, tokens=np.full(len(trace.tokens), 7), table=table, about=about)
    found = diff(same, replace(same))
    assert found.acceptance.observed == 1 and all(slot.kinds for slot in found.slots)
    assert found.verdict == "match" and found.exit_code == 0, found.summary
    assert all("noise" not in f.summary and "that repeat" not in f.summary for f in found.findings)
