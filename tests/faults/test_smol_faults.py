"""Wiring and norm faults put into the real model's dump, and its noise: bf16 against fp32 is no fault."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_lab import SINGLE, Bench, compare, computed, listed, make_bench
from fault_rows import Row
from part_lab import PARTS

from drafttrace.compare.diff import diff
from drafttrace.compare.noise_pair import measure_noise
from drafttrace.compare.result import FAULT
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import make_reference

ROOT = Path(__file__).resolve().parents[2]

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


@pytest.mark.parametrize("fault", PARTS)
def test_a_fault_of_some_rows_of_a_real_dump_is_named_first(fault: str, bench: Bench, fault_row: Any) -> None:
    wanted, make = PARTS[fault]
    begin = time.perf_counter()
    found = diff(bench.computed, make(bench))
    row = Row(fault, "smol", (wanted,), listed(found), time.perf_counter() - begin)
    fault_row(row)
    assert row.reached and found.exit_code == 1, [(f.id, f.summary) for f in found.findings]


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
    found = diff(left, dump, noise=measure_noise(left, left))
    faults = tuple((f.id, f.confidence) for f in found.findings if f.severity == FAULT)
    row = Row(f"healthy: --noise of equal recordings, {dtype}", "smol", (), faults, 0.0)
    fault_row(row)
    assert row.reached and found.exit_code == 0, [(f.id, f.summary) for f in found.findings]


@pytest.mark.parametrize("layout", ["reference", "arrow", "specforge", "v1"])
def test_the_last_state_is_no_slot_of_the_incident(layout: str, smol: Any, tmp_path: Path) -> None:
    """Against all but v1 a second fault was told: "slot 2 is one boundary early: B29 where training had B30". Training had
    B28 in slot 2; B30 is the last state that these layouts store."""
    trace = open_capture(str(ROOT / "traces/smol/as-trained.h5"))
    if layout == "reference":
        path = tmp_path / "reference.safetensors"
        make_reference(smol.target, [np.asarray(trace.tokens)], path, slots=smol.wiring)
    else:
        from pairs.smol.answers import load_model
        from pairs.smol.dump import read_text, write_dump
        from pairs.tokenizer import Encoded

        ids = [int(token) for token in trace.tokens]
        write_dump(tmp_path, [read_text(load_model(smol.target), Encoded(ids, [1] * len(ids)))], layout)
        path = {
            "arrow": tmp_path / "hidden_states/hs_0.safetensors",
            "specforge": tmp_path / "rows_0-2000/data_0.ckpt",
            "v1": tmp_path / "data_0.pt",
        }[layout]
    found = diff(trace, open_capture(str(path)))
    faults = [f for f in found.findings if f.severity == FAULT]
    assert [f.id for f in faults] == ["slot-shift"], faults
    assert ("slot 2 holds B29, which training did not feed" in faults[0].summary) == (layout != "v1")


REPEATED = ("1" * 60, "1", "the " * 64, "the ", "A" * 12, "=" * 64, "cat dog " * 40, "- = " * 100)


def test_prompts_of_one_repeated_token_raise_no_alarm(smol: Any, tmp_path: Path, fault_row: Any) -> None:
    """bf16 against fp32 gave "slot 2 is B27, training had B17", "times one factor per channel" and the like: neighbouring
    boundaries are nearer to each other there than bf16 rounds."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smol.target)
    samples = [np.asarray(tokenizer.encode(text), np.int64) for text in REPEATED]
    sides = []
    for dtype in ("bf16", "fp32"):
        (tmp_path / dtype).mkdir()
        made = make_reference(smol.target, samples, tmp_path / dtype, slots=(2, 15, 27), dtype=dtype)
        sides.append([open_capture(str(path)) for path in made])
    for text, low, high in zip(REPEATED, *sides, strict=True):
        for left, reference in ((low, high), (high, low), (replace(low, boundaries={}), high)):
            found = diff(left, reference)
            faults = tuple((f.id, f.confidence) for f in found.findings if f.severity == FAULT)
            row = Row(f"healthy: {text[:8].strip()!r} repeated, bf16 against fp32", "smol", (), faults, 0.0)
            assert row.reached and found.exit_code == 0, [(f.id, f.summary) for f in found.findings]
        fault_row(row)
