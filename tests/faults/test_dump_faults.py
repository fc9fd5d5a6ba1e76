"""Faults put into the real training dumps of both tiny pairs, alone and two at a time.

The other side is what the target itself computes for the same tokens with transformers, every boundary of it
(``drafttrace reference``), in float32 against the dump's bf16: as good as a served trace for everything that a dump
can get wrong, and it needs no server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import compare_faults as faults
import numpy as np
import pytest
from compare_world import bf16, rms
from fault_rows import Row

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture, LastState, Norm
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import make_reference, tokens_of

pytestmark = pytest.mark.faults

WIRING = {"tiny-kimi": (0, 3, 31), "tiny-llama": (2, 8, 13)}
SAMPLES = {"tiny-kimi": range(4), "tiny-llama": range(4)}


@dataclass(frozen=True)
class Bench:
    """One pair: the dump, the target's own states for its tokens, and what faults need to know of the model."""

    name: str
    dump: Capture
    computed: Capture
    mlp: dict[int, np.ndarray]
    norm_weight: np.ndarray

    @property
    def wiring(self) -> tuple[int, ...]:
        return WIRING[self.name]

    @property
    def layers(self) -> int:
        return max(self.computed.boundaries)

    def boundary(self, k: int) -> np.ndarray:
        """B(k) of the dump's tokens, in the row order of the dump."""
        return self.computed.boundaries[k].floats()[: len(self.dump.table)]


def sample(pair: Any, index: int) -> Capture:
    folder = pair.dump.parent
    return open_capture(str(folder / pair.dump.name.replace("0", str(index))))


@pytest.fixture(scope="module")
def bench(pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    made: dict[str, Bench] = {}

    def of(name: str) -> Bench:
        if name not in made:
            made[name] = _bench(name, pairs[name], tmp_path_factory.mktemp(name))
        return made[name]

    return of


def computed(pair: Any, dump: Capture, out: Path, dtype: Any = "fp32") -> Capture:
    """The target's own states for a dump's tokens: every boundary, the pair's wiring as slots."""
    [path] = make_reference(pair.target, [tokens_of(dump)], out, slots=WIRING[pair.name], dtype=dtype)
    made = open_capture(str(path))
    return replace(made, prompt_length=len(made.tokens))


def _bench(name: str, pair: Any, home: Path) -> Bench:
    if not pair.target.is_dir():
        pytest.fail(f"the pair {name} is not there: make it with python -m pairs.make_pair {name}")
    dump = sample(pair, 0)
    left = computed(pair, dump, home / "computed.safetensors")
    weight, mlp = _halves(pair, dump)
    post = rms(left.boundaries[max(left.boundaries)].floats()) * weight
    last = LastState("last", bf16(post), Norm.POST, "normed by this test", max(left.boundaries))
    about = {**left.about, "wiring": {"n": max(left.boundaries), "source": "draft config"}}
    return Bench(name, dump, replace(left, last=last, about=about), mlp, weight)


def _halves(pair: Any, dump: Capture) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The final norm's weight, and what the MLP of the layer below every slot puts out."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
    held: dict[int, np.ndarray] = {}

    def keep(k: int) -> Callable[..., None]:
        return lambda module, args, out: held.__setitem__(k, out.detach()[0].numpy().copy())

    for k in WIRING[pair.name]:
        if k:
            model.model.layers[k - 1].mlp.register_forward_hook(keep(k))
    with torch.no_grad():
        model(torch.from_numpy(np.asarray(tokens_of(dump)))[None])
    weight: np.ndarray = model.model.norm.weight.detach().numpy().copy()
    return weight, held


Maker = Callable[[Bench], faults.Fault]


def slots_at(step: Callable[[int], int], which: tuple[int, ...] = (0, 1, 2)) -> Maker:
    """Some slots replaced by another boundary."""

    def make(bench: Bench) -> faults.Fault:
        def put_in(dump: Capture) -> Capture:
            slots = list(dump.slots)
            for i in which:
                slots[i] = replace(slots[i], rows=bf16(bench.boundary(step(bench.wiring[i]))))
            return replace(dump, slots=tuple(slots))

        return put_in

    return make


def residual_missing(bench: Bench) -> faults.Fault:
    def put_in(dump: Capture) -> Capture:
        slots = list(dump.slots)
        for i, k in enumerate(bench.wiring):
            if k:
                slots[i] = replace(slots[i], rows=bf16(bench.mlp[k][: len(dump.table)]))
        return replace(dump, slots=tuple(slots))

    return put_in


def last_as(change: Callable[[Bench], np.ndarray], norm: Norm = Norm.POST, boundary: int | None = None) -> Maker:
    """The last state replaced, with what its format claims about it."""

    def make(bench: Bench) -> faults.Fault:
        def put_in(dump: Capture) -> Capture:
            rows = bf16(change(bench)[: len(dump.table)])
            return replace(dump, last=LastState("last", rows, norm, "the format", boundary))

        return put_in

    return make


def plain(fault: faults.Fault) -> Maker:
    return lambda bench: fault


def with_mask_off_by_one(dump: Capture) -> Capture:
    """The mask one token early, against the prompt's true end."""
    assert dump.mask is not None
    start = int(np.argmax(dump.mask > 0))
    return replace(dump, mask=np.roll(dump.mask, -1), prompt_length=start)


def post(bench: Bench) -> np.ndarray:
    assert bench.computed.last is not None
    return bench.computed.last.rows.floats()


GAIN = (1 + 0.3 * np.random.default_rng(1).standard_normal(4096)).astype(np.float32)


def gain_of(bench: Bench) -> np.ndarray:
    return GAIN[: bench.dump.slots[0].rows.width]


SINGLE: dict[str, tuple[str, Maker]] = {
    "token shift +1 (states)": ("token-shift", plain(faults.shifted_states(1))),
    "token shift -1 (states)": ("token-shift", plain(faults.shifted_states(-1))),
    "token shift +2 (states)": ("token-shift", plain(faults.shifted_states(2))),
    "token shift (ids)": ("token-shift", plain(faults.shifted_ids(1))),
    "two slots swapped": ("slot-permutation", plain(faults.permuted((1, 0, 2)))),
    "slots in reverse": ("slot-permutation", plain(faults.permuted((2, 1, 0)))),
    "one slot one boundary late": ("boundary-offset", slots_at(lambda k: k + 1, (1,))),
    "all slots one boundary late": ("boundary-offset", slots_at(lambda k: k + 1)),
    "one slot four boundaries late": ("wrong-boundary", slots_at(lambda k: k + 4, (1,))),
    "first slot left out": ("slot-count", plain(faults.without_first)),
    "bf16 bytes read as fp16": ("dtype-reinterpretation", plain(faults.reread_as_fp16)),
    "rotation": ("rotation", plain(faults.rotated)),
    "slot 0 all zero": ("zero-rows", plain(faults.zeroed((0,)))),
    "two rows zero": ("zero-rows", plain(faults.zero_rows((5, 6)))),
    "one NaN": ("nan-inf", plain(faults.nan_at(7))),
    "scale 1.04": ("scale", plain(faults.scaled(1.04))),
    "sqrt(H) on slot 0": ("scale", lambda b: faults.scaled(float(b.dump.slots[0].rows.width) ** 0.5, (0,))),
    "gain w - 1 on a slot": ("norm-gain", lambda b: faults.gain((gain_of(b) - 1) / gain_of(b), (1,))),
    "slots normed": ("norm-missing", lambda b: faults.normed(gain_of(b))),
    "residual missing": ("residual-missing", residual_missing),
    "FP8 dump": ("quantization-noise", plain(faults.fp8)),
    "other chat template": ("template-divergence", plain(faults.extra_tokens(3, 10))),
    "truncated prompt": ("template-divergence", plain(faults.truncated(24))),
    "final norm twice": ("norm-extra", last_as(lambda b: rms(post(b)) * b.norm_weight)),
    "final norm missing": ("norm-missing", last_as(lambda b: b.boundary(b.layers))),
    "last one boundary early": ("last-not-last", last_as(lambda b: b.boundary(b.layers - 1), Norm.PRE)),
}


def compare(bench: Bench, *makers: Maker) -> tuple[Result, float]:
    dump = bench.dump
    for make in makers:
        dump = make(bench)(dump)
    begin = time.perf_counter()
    found = diff(bench.computed, dump)
    return found, time.perf_counter() - begin


def listed(found: Result) -> tuple[tuple[str, float], ...]:
    wanted = [f for f in found.findings if f.severity == FAULT or f.id == "quantization-noise"]
    return tuple((f.id, f.confidence) for f in wanted)


@pytest.mark.parametrize("fault", SINGLE)
@pytest.mark.parametrize("name", WIRING)
def test_a_fault_of_the_dump_is_named_first(name: str, fault: str, bench: Any, fault_row: Any) -> None:
    wanted, make = SINGLE[fault]
    found, seconds = compare(bench(name), make)
    row = Row(fault, name, (wanted,), listed(found), seconds)
    fault_row(row)
    assert row.reached, [(f.id, f.summary) for f in found.findings]
    assert found.exit_code == (0 if wanted == "quantization-noise" else 1)


PAIRS = [
    ("two slots swapped", "token shift +1 (states)"),
    ("all slots one boundary late", "token shift +1 (states)"),
    ("all slots one boundary late", "scale 1.04"),
    ("two slots swapped", "scale 1.04"),
    ("one slot one boundary late", "slot 0 all zero"),
    ("rotation", "two slots swapped"),
    ("bf16 bytes read as fp16", "two slots swapped"),
    ("two slots swapped", "other chat template"),
    ("all slots one boundary late", "truncated prompt"),
    ("final norm twice", "two slots swapped"),
    ("final norm missing", "all slots one boundary late"),
    ("last one boundary early", "two slots swapped"),
    ("one slot one boundary late", "one NaN"),
    ("slots normed", "token shift -1 (states)"),
    ("all slots one boundary late", "FP8 dump"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("name", WIRING)
def test_two_stacked_faults_are_both_named(name: str, first: str, second: str, bench: Any, fault_row: Any) -> None:
    wanted = (SINGLE[first][0], SINGLE[second][0])
    found, seconds = compare(bench(name), SINGLE[first][1], SINGLE[second][1])
    row = Row(f"{first} + {second}", name, wanted, listed(found), seconds)
    fault_row(row)
    assert row.reached, [(f.id, f.summary) for f in found.findings]
    assert found.exit_code == 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("name", WIRING)
def test_a_healthy_dump_raises_no_alarm(
    name: str, index: int, dtype: str, pairs: Any, tmp_path: Path, fault_row: Any
) -> None:
    dump = sample(pairs[name], index)
    left = computed(pairs[name], dump, tmp_path / "computed.safetensors", dtype)
    left = replace(left, about={**left.about, "wiring": {"n": max(left.boundaries), "source": "draft config"}})
    for kind, ours in (("", left), (" without a sweep", replace(left, boundaries={}))):
        begin = time.perf_counter()
        found = diff(ours, dump)
        row = Row(
            f"healthy: sample {index} in {dtype}{kind}", name, (), _faults(found), time.perf_counter() - begin
        )
        fault_row(row)
        assert row.reached and found.exit_code == 0, [(f.id, f.summary) for f in found.findings]


def _faults(found: Result) -> tuple[tuple[str, float], ...]:
    return tuple((f.id, f.confidence) for f in found.findings if f.severity == FAULT)


def test_a_mask_that_is_shifted_is_named(bench: Any, fault_row: Any) -> None:
    for name in WIRING:
        if bench(name).dump.mask is None:
            continue
        found, seconds = compare(bench(name), plain(with_mask_off_by_one))
        row = Row("mask shifted", name, ("mask-shift",), listed(found), seconds)
        fault_row(row)
        assert row.reached, [(f.id, f.summary) for f in found.findings]
