"""Wiring and norm faults put into the real model's dump, and its noise: bf16 against fp32 is no fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dump_lab import SINGLE, Bench, compare, computed, listed, make_bench
from fault_rows import Row

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT
from drafttrace.tracer.open import open_capture

pytestmark = [pytest.mark.real, pytest.mark.faults]


@pytest.fixture(scope="module")
def bench(smol: Any, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(smol.target, smol.wiring, open_capture(str(smol.dump)), tmp_path_factory.mktemp("smol-bench"))


@pytest.mark.parametrize("fault", SINGLE)
def test_a_fault_of_a_real_dump_is_named_first(fault: str, bench: Bench, fault_row: Any) -> None:
    wanted, make = SINGLE[fault]
    found, seconds = compare(bench, make)
    row = Row(fault, "smol", (wanted,), listed(found), seconds)
    fault_row(row)
    assert row.reached, [(f.id, f.summary) for f in found.findings]
    assert found.exit_code == (0 if wanted == "quantization-noise" else 1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_healthy_real_dump_raises_no_alarm(dtype: str, smol: Any, tmp_path: Path, fault_row: Any) -> None:
    dump = open_capture(str(smol.dump))
    left = computed(smol.target, smol.wiring, dump, tmp_path / "computed.safetensors", dtype)
    left = replace(left, about={**left.about, "wiring": {"n": max(left.boundaries), "source": "draft config"}})
    for kind, ours in (("", left), (" without a sweep", replace(left, boundaries={}))):
        found = diff(ours, dump)
        faults = tuple((f.id, f.confidence) for f in found.findings if f.severity == FAULT)
        row = Row(f"healthy: {dtype}{kind}", "smol", (), faults, 0.0)
        fault_row(row)
        assert row.reached and found.exit_code == 0, [(f.id, f.summary) for f in found.findings]
