"""Faults put into the real training dumps of both tiny pairs, alone and two at a time.

The other side is what the target itself computes for the same tokens with transformers, every boundary of it
(``drafttrace reference``), in float32 against the dump's bf16: as good as a served trace for everything that a dump
can get wrong, and it needs no server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_lab import SINGLE, Bench, compare, computed, listed, make_bench
from fault_rows import Row

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.chat_marks import chat_marks
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.tokenizer import load_decoder

pytestmark = pytest.mark.faults

WIRING = {"tiny-kimi": (0, 3, 31), "tiny-llama": (2, 8, 13)}


def sample(pair: Any, index: int) -> Capture:
    folder = pair.dump.parent
    return open_capture(str(folder / pair.dump.name.replace("0", str(index))))


@pytest.fixture(scope="module")
def bench(pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    made: dict[str, Bench] = {}

    def of(name: str) -> Bench:
        if name not in made:
            pair = pairs[name]
            made[name] = make_bench(pair.target, WIRING[name], sample(pair, 0), tmp_path_factory.mktemp(name))
        return made[name]

    return of


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
    left = computed(pairs[name].target, WIRING[name], dump, tmp_path / "computed.safetensors", dtype)
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


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("name", WIRING)
def test_a_mask_that_is_shifted_is_named(name: str, shift: int, bench: Any, pairs: Any, fault_row: Any) -> None:
    dump = bench(name).dump
    assert dump.mask is not None
    moved = replace(dump, mask=np.roll(dump.mask, shift))
    target = pairs[name].target
    begin = time.perf_counter()
    found = diff(bench(name).computed, moved, marks=chat_marks(target), decode=load_decoder(target))
    seconds = time.perf_counter() - begin
    row = Row(f"mask {'late' if shift > 0 else 'early'} by one", name, ("mask-shift",), listed(found), seconds)
    fault_row(row)
    assert row.reached, [(f.id, f.summary) for f in found.findings]
    assert found.exit_code == 1


@pytest.mark.parametrize("name", WIRING)
def test_the_mistake_with_a_norms_weight_is_measured(name: str, bench: Any) -> None:
    """The gain is tried as w - 1, w + 1, w squared and no weight, of the norm that the trace's rows show."""
    found, _ = compare(bench(name), SINGLE["gain w - 1 on a slot"][1])
    weight = found.findings[0].evidence["fits"]["1"]["weight"]
    assert weight["in_place_of_w"] == "w-1", weight
    assert weight["left_over"] < 0.05 < min(weight["left_over_by_others"].values())
    assert "1 + the stored weight" in found.findings[0].remedy
