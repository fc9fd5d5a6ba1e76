"""The last state is judged as a slot is: training targets are made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compare_faults import over_last
from compare_world import bf16, dumped, make_world, rms, served

from drafttrace.compare.diff import diff
from drafttrace.compare.findings.base import finding, name_slots
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import Finding, Result
from drafttrace.compare.thresholds import DEFAULT
from drafttrace.tracer.capture import Capture, LastState, Norm

Floats = npt.NDArray[Any]
WORLD = make_world(layers=16)
WIRING = (2, 8, 13)


def reference(level: float = 0.0) -> Capture:
    """What ``drafttrace reference`` makes: slots, every boundary, and B(n) before the final norm as the last state."""
    world = WORLD.noisy(level) if level else WORLD
    made = dumped(world, WIRING, last="pre", declared=WIRING, last_declared=world.n)
    return replace(
        made,
        path="reference.safetensors",
        boundaries={k: bf16(rows) for k, rows in enumerate(world.streams)},
        about={"target_layers": world.n},
    )


def dump(last: int | str = "pre") -> Capture:
    return dumped(WORLD, WIRING, last=last)


def faults(result: Result) -> list[Finding]:
    return [f for f in result.findings if f.severity == "fault"]


def ids(result: Result) -> list[str]:
    return [f.id for f in faults(result)]


@pytest.mark.parametrize("boundary", [8, 13])
@pytest.mark.parametrize("exchanged", [False, True])
def test_an_inner_boundary_as_the_last_state_was_a_match_beside_a_reference(boundary: int, exchanged: bool) -> None:
    """The table compared the reference's B13 with B13, and n was not read from the reference: MATCH, exit 0."""
    sides = (dump(boundary), reference()) if exchanged else (reference(), dump(boundary))
    result = diff(*sides)
    assert ids(result) == ["last-not-last"] and f"B{boundary}" in result.summary and result.exit_code == 1


@pytest.mark.parametrize("exchanged", [False, True])
def test_between_two_dumps_a_slot_as_the_last_state_was_unexplained(exchanged: bool) -> None:
    sides = (dump(13), dump()) if exchanged else (dump(), dump(13))
    result = diff(*sides)
    assert ids(result) == ["last-not-last"] and "slot 2" in result.summary
    assert faults(result)[0].evidence["side"] == ("left" if exchanged else "reference")


TURN = np.linalg.qr(np.random.default_rng(1).standard_normal((64, 64)))[0]
CHANGES: dict[str, tuple[Callable[[Floats], Floats], str]] = {
    "x1.2": (lambda x: 1.2 * x, "scale"),
    "x1.3": (lambda x: 1.3 * x, "scale"),
    "x1.04": (lambda x: 1.04 * x, "scale"),
    "negated": (lambda x: -x, "scale"),
    "rolled by 1": (lambda x: np.roll(x, 1, axis=0), "token-shift"),
    "rolled by -1": (lambda x: np.roll(x, -1, axis=0), "token-shift"),
    "the final norm": (lambda x: rms(x) * WORLD.norm_weight, "norm-extra"),
    "rotated": (lambda x: x @ TURN, "rotation"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("left", ["trace", "reference", "another dump"])
def test_a_changed_last_state_was_a_match_or_unexplained(left: str, change: str) -> None:
    """x1.3 was MATCH while its table row read 0.2323, noise; the others were differences without a cause."""
    spoil, name = CHANGES[change]
    ours = {"trace": served(WORLD, WIRING), "reference": reference(), "another dump": dump()}[left]
    result = diff(ours, over_last(spoil)(dump()))
    assert ids(result) == [name], result.findings
    assert "last state" in result.summary and "boundaries all" not in faults(result)[0].remedy


@pytest.mark.parametrize("change", ["x1.2", "rolled by -1", "rotated"])
def test_of_two_sides_the_left_one_s_last_state_is_named(change: str) -> None:
    spoil, name = CHANGES[change]
    result = diff(over_last(spoil)(reference()), dump())
    assert ids(result) == [name] and "left side's last state" in result.summary


SPOILED: dict[str, tuple[Callable[[Floats], Floats], str]] = {
    "rolled": (lambda x: np.roll(x, 1, axis=0), "token-shift"),
    "negated": (lambda x: -x, "unexplained"),
    "shuffled": (lambda x: np.random.default_rng(2).permuted(x, axis=1), "unexplained"),
}


@pytest.mark.parametrize("change", SPOILED)
def test_a_traces_own_last_state_could_be_anything(change: str) -> None:
    """The dump's stands before the final norm, so that the sweep's B(n) was compared in its place: nothing looked at it."""
    spoil, name = SPOILED[change]
    result = diff(over_last(spoil)(served(WORLD, WIRING)), dump())
    assert ids(result) == [name] and "last state" in result.summary, result.findings


@pytest.mark.parametrize(
    "left", [served(WORLD, WIRING), reference(), reference(0.01)], ids=["trace", "same", "noisy"]
)
@pytest.mark.parametrize("right", [dump(), reference()], ids=["dump", "reference"])
def test_a_healthy_last_state_is_no_fault(left: Capture, right: Capture) -> None:
    result = diff(left, right)
    assert result.verdict == "match" and ids(result) == [] and "compared with nothing" not in result.summary


def test_a_last_state_behind_a_layer_norm_is_no_fault() -> None:
    """LayerNorm takes the mean away and adds a bias: no RMS norm is that."""
    end = WORLD.streams[-1].astype(np.float64)
    centred = end - end.mean(1, keepdims=True)
    rows = centred / centred.std(1, keepdims=True) * WORLD.norm_weight + np.linspace(-1, 1, 64)
    trace = served(WORLD, WIRING)
    result = diff(replace(trace, last=LastState("last", bf16(rows), Norm.POST, "recorded", WORLD.n)), dump())
    assert ids(result) == [] and result.verdict == "match"


def test_a_last_state_compared_with_nothing_is_said_so() -> None:
    """'Nothing is wrong: all slots match' of a trace without a sweep, whose last state stands behind the final norm."""
    result = diff(served(WORLD, WIRING, sweep=()), dump())
    assert result.verdict == "match" and "The last state was compared with nothing" in result.summary
    assert "compared with nothing" in rejudge(result, DEFAULT).summary


def scattered(size: float) -> Capture:
    """One row in eight of the last state is some percent off, as routers of experts leave it."""

    def change(x: Floats) -> Floats:
        rng = np.random.default_rng(3)
        rows = np.array([4, 5, 13, 20, 22, 37, 41])
        x = x.copy()
        noise = rng.standard_normal((len(rows), x.shape[1])) / np.sqrt(x.shape[1])
        x[rows] += size * noise * np.linalg.norm(x[rows], axis=1, keepdims=True)
        return x

    return over_last(change)(reference())


def test_tokens_that_routers_sent_elsewhere_were_unexplained() -> None:
    """JSON text on tiny-kimi in bf16 and float32: 10 of 128 rows of the last state, 0.06 to 0.15 off, and MISMATCH. They
    leave the others at one layer each, and drift off from there."""
    result = diff(reference(), scattered(0.2))
    assert result.verdict == "noise" and ids(result) == []
    assert "last state: 7 of 47 rows" in result.summary and "router" in result.summary
    again = rejudge(result, DEFAULT)
    assert (again.verdict, again.summary) == (result.verdict, result.summary)


def test_scattered_rows_that_hold_something_else_are_a_fault() -> None:
    assert ids(diff(reference(), scattered(3.0))) == ["unexplained"]


def test_a_last_state_at_noise_is_no_match() -> None:
    """The table's row read noise under the headline MATCH."""
    noisy = WORLD.noisy(0.065)
    left = reference()
    right = over_last(lambda _: noisy.streams[-1])(dump())
    result = diff(left, right)
    state = next(s for s in result.others if s.slot == -1)
    assert state.verdict == "noise" and result.verdict == "noise" and "last state" in result.summary


def test_a_slot_in_two_phases_was_named_twice() -> None:
    """'slots 0, 1, 1 and 2'."""
    assert name_slots([0, 1, 1, 2]) == "slots 0, 1 and 2"
    assert finding("norm-extra", "x", slots=[0, 1, 1, 2]).slots == (0, 1, 2)
