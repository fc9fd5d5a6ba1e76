"""Faults for training dumps, and what they are compared with: what the target itself computes for the same tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import compare_faults as faults
import numpy as np
from compare_world import bf16, rms

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture, LastState, Norm
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import make_reference, tokens_of


@dataclass(frozen=True)
class Bench:
    """One pair: the dump, the target's own states for its tokens, and what faults need to know of the model."""

    dump: Capture
    computed: Capture
    wiring: tuple[int, ...]
    mlp: dict[int, np.ndarray]
    norm_weight: np.ndarray

    @property
    def layers(self) -> int:
        return max(self.computed.boundaries)

    def boundary(self, k: int) -> np.ndarray:
        """B(k) of the dump's tokens, in the row order of the dump."""
        return self.computed.boundaries[k].floats()[: len(self.dump.table)]


def computed(target: Path, wiring: tuple[int, ...], dump: Capture, out: Path, dtype: Any = "fp32") -> Capture:
    """The target's own states for a dump's tokens: every boundary, the pair's wiring as slots."""
    [path] = make_reference(target, [tokens_of(dump)], out, slots=wiring, dtype=dtype)
    made = open_capture(str(path))
    return replace(made, prompt_length=len(made.tokens))


def make_bench(target: Path, wiring: tuple[int, ...], dump: Capture, home: Path) -> Bench:
    """A bench for one sample of a dump; the target runs twice."""
    left = computed(target, wiring, dump, home / "computed.safetensors")
    weight, mlp = _halves(target, wiring, dump)
    post = rms(left.boundaries[max(left.boundaries)].floats()) * weight
    last = LastState("last", bf16(post), Norm.POST, "normed by this test", max(left.boundaries))
    about = {**left.about, "wiring": {"n": max(left.boundaries), "source": "draft config"}}
    return Bench(dump, replace(left, last=last, about=about), wiring, mlp, weight)


def _halves(target: Path, wiring: tuple[int, ...], dump: Capture) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The final norm's weight, and what the MLP of the layer below every slot puts out."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    held: dict[int, np.ndarray] = {}

    def keep(k: int) -> Callable[..., None]:
        return lambda module, args, out: held.__setitem__(k, out.detach()[0].numpy().copy())

    for k in wiring:
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


def post(bench: Bench) -> np.ndarray:
    assert bench.computed.last is not None
    return bench.computed.last.rows.floats()


def gain_of(bench: Bench) -> np.ndarray:
    """A norm weight of the model's own."""
    return bench.norm_weight


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
