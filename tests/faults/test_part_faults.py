"""Faults in less than half of the rows of a dump, or in one phase of a recorded request: each is named first."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dump_lab import Bench, computed, listed, make_bench
from fault_rows import Row
from part_lab import PARTS, SLOT, VERIFY
from test_dump_faults import WIRING, sample

from drafttrace.compare.diff import diff
from drafttrace.compare.noise_pair import measure_noise
from drafttrace.compare.result import FAULT
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.open import open_capture

pytestmark = pytest.mark.faults

TRACES = Path(__file__).resolve().parents[2] / "traces"
RECORDED = {
    "tiny-kimi": (TRACES / "tiny-kimi/fixed.h5", TRACES / "tiny-kimi/dump/data_0.pt"),
    "tiny-llama": (TRACES / "tiny-llama/healthy.h5", TRACES / "tiny-llama/dump/hidden_states/hs_0.safetensors"),
}


@pytest.fixture(scope="module", params=WIRING)
def bench(
    request: pytest.FixtureRequest, pairs: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Bench]:
    name = request.param
    home = tmp_path_factory.mktemp(name)
    return name, make_bench(pairs[name].target, WIRING[name], sample(pairs[name], 0), home)


CASES = [
    (fault, sweep)
    for sweep in (True, False)
    for fault, (wanted, _) in PARTS.items()
    if sweep or wanted not in {"boundary-offset", "wrong-boundary"}  # a boundary is found with a sweep
]


@pytest.mark.parametrize(("fault", "sweep"), CASES)
def test_a_fault_of_some_rows_of_a_dump_is_named_first(
    fault: str, sweep: bool, bench: tuple[str, Bench], fault_row: Any
) -> None:
    (name, lab), (wanted, make) = bench, PARTS[fault]
    left = lab.computed if sweep else replace(lab.computed, boundaries={})
    begin = time.perf_counter()
    found = diff(left, make(lab))
    kind = "" if sweep else " (no sweep)"
    row = Row(fault + kind, name, (wanted,), listed(found), time.perf_counter() - begin)
    fault_row(row)
    first = found.findings[0]
    assert row.reached and found.exit_code == 1, [(f.id, f.summary) for f in found.findings]
    assert first.slots == (SLOT,) and "row" in first.summary, first.summary


@pytest.mark.parametrize("fault", VERIFY)
@pytest.mark.parametrize("name", RECORDED)
def test_a_fault_of_the_verify_pass_alone_is_named_first(name: str, fault: str, fault_row: Any) -> None:
    trace, dump = (open_capture(str(path)) for path in RECORDED[name])
    wanted, make = VERIFY[fault]
    begin = time.perf_counter()
    found = diff(make(trace, WIRING[name][SLOT]), dump)
    row = Row(fault, name, (wanted,), listed(found), time.perf_counter() - begin, place="trace")
    fault_row(row)
    first = found.findings[0]
    assert row.reached and found.exit_code == 1, [(f.id, f.summary) for f in found.findings]
    assert first.slots == (SLOT,) and (wanted == "zero-rows" or "verify rows (positions" in first.summary)


FLOORS = ("equal bit for bit", "bf16 against fp32")


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("index", range(2))
@pytest.mark.parametrize("name", WIRING)
def test_a_healthy_dump_raises_no_alarm_beside_a_recorded_floor(
    name: str, index: int, floor: str, pairs: Any, tmp_path: Path, fault_row: Any
) -> None:
    """Two recordings of one server are equal bit for bit: with their floor of 0 every other implementation was wrong."""
    dump = sample(pairs[name], index)
    left = of_target(pairs[name], name, dump, tmp_path / "left.safetensors", "fp32")
    twin = left if floor == FLOORS[0] else of_target(pairs[name], name, dump, tmp_path / "twin.safetensors", "bf16")
    noise = measure_noise(left, twin)
    for kind, ours in (("", left), (" without a sweep", replace(left, boundaries={}))):
        begin = time.perf_counter()
        found = diff(ours, dump, noise=noise)
        faults = tuple((f.id, f.confidence) for f in found.findings if f.severity == FAULT)
        row = Row(f"healthy: --noise {floor}, sample {index}{kind}", name, (), faults, time.perf_counter() - begin)
        fault_row(row)
        assert row.reached and found.verdict == "match", [(f.id, f.summary) for f in found.findings]


@pytest.mark.parametrize("name", RECORDED)
def test_a_healthy_trace_raises_no_alarm_beside_a_floor_of_nothing(name: str, fault_row: Any) -> None:
    trace, dump = (open_capture(str(path)) for path in RECORDED[name])
    for kind, ours in (("", trace), (" without a sweep", replace(trace, boundaries={}, embed=None))):
        begin = time.perf_counter()
        found = diff(ours, dump, noise=measure_noise(trace, trace))
        faults = tuple((f.id, f.confidence) for f in found.findings if f.severity == FAULT)
        row = Row(
            f"healthy: --noise of equal traces{kind}", name, (), faults, time.perf_counter() - begin, place="trace"
        )
        fault_row(row)
        assert row.reached and found.verdict == "match", [(f.id, f.summary) for f in found.findings]


def of_target(pair: Any, name: str, dump: Capture, out: Path, dtype: str) -> Capture:
    """What the target computes for a dump's tokens, with its number of layers."""
    made = computed(pair.target, WIRING[name], dump, out, dtype)
    return replace(made, about={**made.about, "wiring": {"n": max(made.boundaries), "source": "draft config"}})
