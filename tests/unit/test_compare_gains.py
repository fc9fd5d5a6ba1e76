"""A gain per channel is read against the norm weights that are known: w, w - 1, w + 1, w squared, or none of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import compare_faults as faults
import numpy as np
import pytest
from compare_world import dumped, make_world, rms, served
from safetensors.numpy import save_file

from drafttrace.compare.diff import diff
from drafttrace.compare.gains import read_gain
from drafttrace.compare.result import FAULT, Finding, Result
from drafttrace.tracer.norm_weights import norm_gains

RNG = np.random.default_rng(11)
WEIGHTS = {f"layers.{k}.norm.weight": 1 + 0.2 * RNG.standard_normal(96) for k in range(40)}
W = WEIGHTS["layers.7.norm.weight"]
NOISE = 1 + 0.01 * RNG.standard_normal(96)

# What a mistake with w does to a state that has passed the right norm, and to one that has passed none.
OVER_NORMED = {"w-1": (W - 1) / W, "w+1": (W + 1) / W, "w*w": W, "1": 1 / W}
OVER_PLAIN = {"w-1": W - 1, "w+1": W + 1, "w*w": W * W, "w": W}


@pytest.mark.parametrize(("kind", "gain"), OVER_NORMED.items())
def test_a_mistake_in_a_norm_is_read(kind: str, gain: np.ndarray) -> None:
    found = read_gain(gain * NOISE, WEIGHTS, normed=True)
    assert found is not None and (found.kind, found.weight) == (kind, "layers.7.norm.weight")
    assert found.left < 0.02 and min(found.others.values()) > 0.05 and found.tried == 40


@pytest.mark.parametrize(("kind", "gain"), OVER_PLAIN.items())
def test_what_a_plain_state_was_multiplied_with_is_read(kind: str, gain: np.ndarray) -> None:
    found = read_gain(gain * NOISE, WEIGHTS, normed=False)
    assert found is not None and (found.kind, found.weight) == (kind, "layers.7.norm.weight")


def test_a_gain_that_is_no_weights_is_not_read() -> None:
    for seed in range(1000, 1050):
        gain = 1 + 0.2 * np.random.default_rng(seed).standard_normal(96)
        assert read_gain(gain, WEIGHTS, normed=True) is None
        assert read_gain(gain, WEIGHTS, normed=False) is None


def test_a_flat_weight_proves_nothing() -> None:
    """Ones fit every gain that is nearly one number: within 10 % here."""
    flat = {"flat": np.ones(96)}
    assert read_gain(1 + 0.1 * np.random.default_rng(0).standard_normal(96), flat, normed=False) is None


def test_weights_of_another_width_and_odd_numbers_are_passed_over() -> None:
    odd = {"wide": np.ones(128), "zeros": np.zeros(96), "nan": np.full(96, np.nan)}
    assert read_gain(W, odd, normed=True) is None
    assert read_gain(np.full(96, np.nan), WEIGHTS, normed=True) is None
    assert read_gain(np.zeros(96), WEIGHTS, normed=False) is None


# In a comparison

WORLD = make_world(layers=20)
NOISY = WORLD.noisy(0.01)
WIRING = (2, 8, 14)
NORMS: Mapping[str, np.ndarray] = {
    f"model.layers.{k}.input_layernorm.weight": 1 + 0.25 * np.random.default_rng(100 + k).standard_normal(64)
    for k in range(20)
}
MINE = "model.layers.8.input_layernorm.weight"


def compared(
    put_in: Callable[..., object], norms: Mapping[str, np.ndarray] = NORMS, on: str = "reference"
) -> Result:
    left, right = served(WORLD, WIRING), dumped(NOISY, WIRING)
    if on == "reference":
        return diff(left, put_in(right), norms=lambda: norms)  # type: ignore[arg-type]
    return diff(put_in(left), right, norms=lambda: norms)  # type: ignore[arg-type]


def first(found: Result) -> Finding:
    assert found.findings[0].severity == FAULT
    return found.findings[0]


@pytest.mark.parametrize("on", ["left", "reference"])
@pytest.mark.parametrize(
    ("kind", "gain", "says", "remedy"),
    [
        ("w-1", lambda w: (w - 1) / w, "w - 1 where w is right", "1 + the stored weight"),
        ("w-1", lambda w: w - 1, "w - 1 where w is right", "1 + the stored weight"),
        ("w+1", lambda w: (w + 1) / w, "w + 1 where w is right", "the stored weight alone"),
        ("w*w", lambda w: w * w, "w twice (w²)", "Apply the weight once"),
        ("1", lambda w: 1 / w, "the weight is not applied", "Apply the norm's weight"),
        ("w", lambda w: w, "w, without the norm", "root mean square"),
    ],
)
def test_a_slots_gain_is_named_with_its_weight(
    kind: str, gain: Callable[[np.ndarray], np.ndarray], says: str, remedy: str, on: str
) -> None:
    found = first(compared(faults.gain(gain(NORMS[MINE]).astype(np.float32), (1,)), on=on))
    assert found.id == "norm-gain" and found.slots == (1,)
    assert says in found.summary and MINE in found.summary and remedy in found.remedy, found.summary
    weight = found.evidence["fits"]["1"]["weight"]
    assert (weight["in_place_of_w"], weight["w"]) == (kind, MINE)
    assert weight["left_over"] < 0.05 < min(weight["left_over_by_others"].values())


def test_a_gain_of_no_known_weight_says_how_many_were_tried() -> None:
    other = (1 + 0.25 * np.random.default_rng(7).standard_normal(64)).astype(np.float32)
    found = first(compared(faults.gain(other, (1,))))
    assert found.id == "norm-gain" and "any of the 20 norm weights" in found.summary
    alone = diff(served(WORLD, WIRING, sweep=()), faults.gain(other, (1,))(dumped(NOISY, WIRING)))
    assert first(alone).id == "norm-gain" and "no norm weight is at hand" in first(alone).summary


def test_a_norm_too_many_is_named_by_its_weight() -> None:
    weight = NORMS[MINE]
    for gain, how in ((weight, f"(that of “{MINE}”)"), (weight - 1, f"(that of “{MINE}”, applied as w - 1)")):
        found = first(compared(faults.over_slots(lambda x, g=gain: rms(x) * g.astype(np.float32), (1,)), on="left"))
        assert found.id == "norm-extra" and how in found.summary, found.summary


def test_the_last_state_with_w_twice_is_no_second_norm() -> None:
    """Only a second norm divides by the rows' size again."""
    weight = WORLD.norm_weight
    found = first(compared(faults.over_last(lambda x: x * weight)))
    assert found.id == "norm-gain" and "w twice (w²)" in found.summary, found.summary
    found = first(compared(faults.over_last(lambda x: rms(x) * weight)))
    assert found.id == "norm-extra" and "twice" in found.summary


def test_weights_are_read_only_where_a_gain_asks_for_them() -> None:
    def never() -> Mapping[str, np.ndarray]:
        raise AssertionError("the weights were read")

    for dump in (dumped(NOISY, WIRING), faults.permuted((1, 0, 2))(dumped(NOISY, WIRING))):
        diff(served(WORLD, WIRING), dump, norms=never)


# Out of a checkpoint


def folder_of(tmp_path: Path, model_type: str) -> Path:
    tensors = {
        "model.norm.weight": np.full(16, 0.5, np.float32),
        "model.layers.0.input_layernorm.weight": np.full(16, 0.25, np.float32),
        "model.layers.0.self_attn.q_norm.weight": np.ones(8, np.float32),
        "model.layers.0.mlp.up_proj.weight": np.ones((4, 16), np.float32),
        "vision_tower.norm.weight": np.ones(16, np.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    return tmp_path


def test_norms_are_read_as_what_they_multiply_by(tmp_path: Path) -> None:
    plain = norm_gains(folder_of(tmp_path, "llama"), 16)
    assert {name: gain[0] for name, gain in plain.items()} == {
        "model.norm.weight": 0.5,
        "model.layers.0.input_layernorm.weight": 0.25,
    }
    assert norm_gains(folder_of(tmp_path, "gemma3"), 16)["model.norm.weight"][0] == 1.5
