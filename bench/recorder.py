"""What the recorder costs, as ratios measured in one run on one machine.

    python bench/recorder.py [--runs 5] [--json FILE]

Two real servers stand side by side, one without the plugin and one with it, and are asked in turn, so that whatever
else the machine does hits both. Exit code 1 where a ratio is worse than its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sglang_cpu.arguments import cpu_args
from sglang_cpu.server import CpuServer

from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.writer import TraceWriter

ROOT = Path(__file__).resolve().parents[1]
PAIR = ROOT / "pairs/tiny-llama"
CLIENTS, TOKENS = 8, 48
MIB = 1 << 20


@dataclass(frozen=True)
class Figure:
    """One measured ratio (or size) and the limit that it must keep."""

    name: str
    value: float
    limit: float | None
    at_least: bool
    detail: str

    @property
    def good(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def crowd(server: CpuServer, round_: int, first: dict[str, Any] | None = None) -> float:
    """Tokens per second of eight concurrent requests. ``first``: additions to the first one."""
    made: list[int] = []

    def send(client: int) -> None:
        ids = [5 + (client * 7 + round_ * 11 + k * 3) % 200 for k in range(24)]
        extra = (first or {}) if client == 0 else {}
        answer = server.generate(input_ids=ids, max_new_tokens=TOKENS, ignore_eos=True, **extra)
        made.append(answer["meta_info"]["completion_tokens"])

    threads = [threading.Thread(target=send, args=(client,)) for client in range(CLIENTS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(made) != CLIENTS:
        raise SystemExit("a request failed; see the server's log")
    return sum(made) / (time.perf_counter() - began)


def traced(server: CpuServer) -> dict[str, Any]:
    """What makes a request a traced one."""
    asked = server.post("/drafttrace/traces", {"taps": {}})
    return {"rid": asked["rid"], "extra_key": asked["id"]}


def paired(runs: int, left: Callable[[int], float], right: Callable[[int], float]) -> tuple[float, list[float]]:
    """Median of right / left over ``runs`` pairs, the order changing from pair to pair."""
    ratios = []
    for run in range(runs):
        if run % 2:
            after, before = right(run), left(run)
        else:
            before, after = left(run), right(run)
        ratios.append(after / before)
    return statistics.median(ratios), ratios


def scheduler_memory(server: CpuServer) -> int:
    """Resident bytes of the scheduler process."""
    children = psutil.Process(server.pid).children(recursive=True)
    return max(
        (child.memory_info().rss for child in children if "scheduler" in " ".join(child.cmdline())), default=0
    )


def write_speed(folder: Path, *, disk: bool, rows: int = 512, batches: int = 12) -> tuple[float, str]:
    """Speed of a trace of a large model (H 7168) against plain writes of the same bytes to the same place.

    disk: until the bytes are on the disk (fsync); else until they are in the page cache.
    """
    width = 7168
    specs = tuple(TensorSpec(f"aux/{slot}", width, DType.BF16) for slot in range(3))
    block = np.random.default_rng(0).integers(0, 1 << 16, (rows, width), np.uint16)
    records = schema.records(schema.TARGET_ROW, rows, position=np.arange(rows))

    def raw() -> float:
        path = folder / "raw"
        began = time.perf_counter()
        with open(path, "wb", buffering=0) as file:
            for _ in range(batches):
                for _ in specs:
                    file.write(block.data)
            if disk:
                os.fsync(file.fileno())
        took = time.perf_counter() - began
        path.unlink()
        return took

    def trace() -> float:
        path = folder / "trace.h5"
        began = time.perf_counter()
        writer = TraceWriter(path, TraceLayout(specs), request_id="bench")
        for _ in range(batches):
            writer.append_target(records, {spec.name: block for spec in specs})
            writer.flush()
        writer.finish(complete=True)
        if disk:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        took = time.perf_counter() - began
        path.unlink()
        return took

    raw()  # the first pages that a process touches cost extra
    ratios = []
    for run in range(5):
        first, second = (raw, trace) if run % 2 else (trace, raw)
        times = {first: first(), second: second()}
        ratios.append(times[raw] / times[trace])
    total = batches * len(specs) * block.nbytes
    return statistics.median(ratios), f"{total / MIB:.0f} MiB in {batches} batches, each flushed"


def measure(runs: int, folder: Path) -> list[Figure]:
    """All figures."""
    figures = []
    for disk, name, limit in ((True, "to the disk", 0.8), (False, "to the page cache", None)):
        speed, detail = write_speed(folder, disk=disk)
        figures.append(Figure(f"trace writing / raw write, {name}", speed, limit, True, detail))
    extra = ["--enable-return-hidden-states"]
    args = cpu_args(PAIR / "target", PAIR / "draft", max_running_requests=CLIENTS, extra=extra)
    (folder / "traces").mkdir()
    on = {"DRAFTTRACE": "1", "DRAFTTRACE_DIR": str(folder / "traces")}
    with (
        CpuServer(args, folder / "without.log", start_timeout=900) as plain,
        CpuServer(args, folder / "with.log", on, start_timeout=900) as plugin,
    ):
        for server in (plain, plugin):
            crowd(server, 0)  # warm up
        before = scheduler_memory(plain)
        ratio, ratios = paired(runs, lambda run: crowd(plain, run), lambda run: crowd(plugin, run))
        figures.append(Figure("plugin on, nothing traced / no plugin", ratio, 0.99, True, _all(ratios)))
        ratio, ratios = paired(runs, lambda run: crowd(plugin, run), lambda run: crowd(plugin, run, traced(plugin)))
        figures.append(Figure("one of eight traced / none traced", ratio, 0.95, True, _all(ratios)))
        states = plugin.get("/drafttrace/traces")["traces"]
        complete = sum(state["state"] == "complete" for state in states)
        grown = (scheduler_memory(plugin) - scheduler_memory(plain)) / MIB
        figures.append(
            Figure("memory of the scheduler, MiB more", grown, 200.0, False, f"{complete}/{len(states)} complete")
        )
        figures.append(Figure("scheduler without the plugin, MiB", before / MIB, None, False, ""))
        hidden = {"return_hidden_states": True}
        ratio, ratios = paired(runs, lambda run: crowd(plain, run), lambda run: crowd(plain, run, hidden))
        figures.append(
            Figure("SGLang's return_hidden_states, one of eight / none", ratio, None, True, _all(ratios))
        )
    return figures


def _all(ratios: list[float]) -> str:
    return "runs " + " ".join(f"{ratio:.3f}" for ratio in sorted(ratios))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="pairs of runs per ratio")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.runs, Path(folder))
    for figure in figures:
        limit = "" if figure.limit is None else f"({'>=' if figure.at_least else '<='} {figure.limit:g})"
        print(f"{'ok ' if figure.good else 'BAD'} {figure.name:52} {figure.value:9.3f} {limit:10} {figure.detail}")
    print("--debug-tensor-dump-output-folder: no number; in SGLang 0.5.23 it kills an EAGLE-3 server")
    print("    ('AuxHiddenStateList' object has no attribute 'cpu').")
    if options.json:
        load = os.getloadavg()[0]
        options.json.write_text(json.dumps({"load": load, "figures": [asdict(f) for f in figures]}, indent=1))
    return int(not all(figure.good for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
