"""``drafttrace diff`` on what two tensor-parallel ranks really recorded: healthy, disagreeing, holding parts of a sum."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import recording
from edited_traces import edited
from sglang_cpu.arguments import cpu_args

from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import make_reference, tokens_of

pytestmark = pytest.mark.live


def diff(*arguments: Any) -> Mapping[str, Any]:
    """The JSON of the command, its exit code checked."""
    done = subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", "diff", *map(str, arguments), "--json", "-"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["exit_code"] == done.returncode
    return result


def faults(result: Mapping[str, Any]) -> list[str]:
    return [f["id"] for f in result["findings"] if f["severity"] == "fault"]


@pytest.fixture(scope="module")
def made(server_pool: Any, pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces of both ranks, trace.h5 and trace_rank1.h5, and a reference made by transformers."""
    pair = pairs["tiny-llama"]
    dump = open_capture(str(pair.dump))
    assert dump.mask is not None
    prompt = dump.tokens[: int(np.argmax(dump.mask > 0))].tolist()
    traced = server_pool.get(cpu_args(pair.target, pair.draft, tp=2), serve=("--all-ranks",))

    def ask(ids: list[int]) -> Callable[[], recording.Recording]:
        return lambda: recording.record(traced, ids, max_new_tokens=32)

    # Two requests at the same time, so that their rows share batches.
    first, other = recording.together([ask(prompt), ask([*prompt[:2], *prompt[12:20], *prompt[5:]])])
    second = recording.collect(traced, f"{first.id}_rank1")
    home = tmp_path_factory.mktemp("ranks")
    shutil.copy(first.path, home / "trace.h5")
    shutil.copy(second.path, home / "trace_rank1.h5")
    shutil.copy(other.path, home / "other.h5")
    tokens = tokens_of(open_capture(str(home / "trace.h5")))
    wiring = tuple(first.trace.about["wiring"]["boundaries"])
    make_reference(pair.target, [tokens], home / "reference.safetensors", slots=wiring, dtype="fp32")
    return home


@pytest.fixture
def ranks(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    for path in made.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path


def change(path: Path, name: str, how: Callable[[np.ndarray], np.ndarray]) -> None:
    """Rewrite one bf16 tensor of a trace as float32 values come out of ``how``."""
    with edited(path) as file:
        data = file[name]
        values = data[...].astype(np.float32)
        data[...] = how(values)


def test_ranks_that_agree_raise_no_alarm(ranks: Path) -> None:
    result = diff(ranks / "trace.h5", ranks / "reference.safetensors")
    assert result["verdict"] == "match" and not faults(result), result["findings"]
    alone = diff(ranks / "trace.h5")
    assert not faults(alone)


def test_requests_of_one_batch_share_no_rows_until_one_is_copied(ranks: Path) -> None:
    arguments = (ranks / "trace.h5", ranks / "reference.safetensors", "--others", ranks / "other.h5")
    assert not faults(diff(*arguments))
    with h5py.File(ranks / "other.h5") as file:
        row = file["target/aux/2"][15]
    with edited(ranks / "trace.h5") as file:
        file["target/aux/2"][25] = row
    named = diff(*arguments)
    assert faults(named)[0] == "cross-request", [(f["id"], f["summary"]) for f in named["findings"]]
    assert named["findings"][0]["evidence"]["rows"][0]["their_position"] == 15


def test_ranks_that_disagree_are_named_from_the_command_line(ranks: Path) -> None:
    with edited(ranks / "trace.h5") as file:
        hashes = file["ranks/1/hashes"]
        hashes[7, 0] = hashes[7, 0] + np.uint64(1)
    for reference in ((), (ranks / "reference.safetensors",)):
        result = diff(ranks / "trace.h5", *reference)
        assert faults(result) == ["rank-divergence"]


def test_rows_that_a_rank_holds_in_another_order_are_named(ranks: Path) -> None:
    with edited(ranks / "trace.h5") as file:
        hashes = file["ranks/1/hashes"][...]
        count = int(file["tokens/prompt_length"][()])
        hashes[:count] = np.roll(hashes[:count], count // 2, axis=0)
        file["ranks/1/hashes"][...] = hashes
    result = diff(ranks / "trace.h5")
    assert faults(result) == ["rows-by-rank"]


def test_parts_of_a_sum_are_found_with_the_other_rank_s_trace_beside_the_first(ranks: Path) -> None:
    part = np.random.default_rng(0)

    def first(values: np.ndarray) -> np.ndarray:
        return values * 0.3 + part.standard_normal(values.shape).astype(np.float32) * 30

    with h5py.File(ranks / "trace.h5") as file:
        whole = file["target/aux/1"][...].astype(np.float32)
    change(ranks / "trace.h5", "target/aux/1", first)
    with h5py.File(ranks / "trace.h5") as file:
        mine = file["target/aux/1"][...].astype(np.float32)
    change(ranks / "trace_rank1.h5", "target/aux/1", lambda values: whole - mine)
    for name in ("target/aux/0", "target/aux/2"):
        change(ranks / "trace_rank1.h5", name, lambda values: values * 0)
    result = diff(ranks / "trace.h5", ranks / "reference.safetensors")
    assert faults(result)[0] == "partial-sum", [(f["id"], f["summary"]) for f in result["findings"]]
    assert result["findings"][0]["slots"] == [1]
    (ranks / "trace_rank1.h5").rename(ranks / "elsewhere.h5")
    assert "partial-sum" not in faults(diff(ranks / "trace.h5", ranks / "reference.safetensors"))
    given = diff(ranks / "trace.h5", ranks / "reference.safetensors", "--rank-trace", ranks / "elsewhere.h5")
    assert faults(given)[0] == "partial-sum"
