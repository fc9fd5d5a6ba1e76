"""What the recorder costs, as ratios measured in one run on one machine.

    python bench/recorder.py [--pair tiny-llama] [--pair smol] [--blocks 16] [--starts 4] [--json FILE]

Three real servers stand side by side, one with the plugin and two without it. They are asked in turn, one short crowd of
eight requests after the other, so that whatever else the machine does hits all of them: a block is one crowd of each
kind, in an order of its own. Every ratio is the median over the blocks, once by the clock and once by
the processor time of all processes of the server, which a busy machine disturbs less. Two servers that do the same can
differ by a few percent for as long as they live: ``--starts`` starts them anew, and the two without the plugin are held
against each other as well, which tells what the other ratios are worth. Exit code 1 where a ratio is worse than its limit.

``smol`` is SmolLM2-135M, whose rounds take as long as real ones (``python -m pairs.smol.fetch``; left out where it was
not fetched). ``tiny-llama`` has rounds of a few milliseconds: nothing is harder for a recorder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
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
CLIENTS = 8
TOKENS = {"smol": 16}  # of every request; 48 for the pairs that take milliseconds for a round
MIB = 1 << 20
_CROWDS = itertools.count()
NONE, TWIN, IDLE, TRACED, HIDDEN = KINDS = (
    "no plugin",
    "no plugin, its twin",
    "nothing traced",
    "one of eight traced",
    "return_hidden_states",
)


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
        return bool(self.value >= self.limit if self.at_least else self.value <= self.limit)


@dataclass(frozen=True)
class Run:
    """One crowd: seconds by the clock and of processor time for every token."""

    clock: float
    processor: float


def processor_seconds(server: CpuServer) -> float:
    """Processor time of all processes of the server so far, threads that ended included.

    By the processes' own clocks, which count nanoseconds; what the system lists (psutil) counts hundredths.
    """
    root = psutil.Process(server.pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with suppress(OSError, psutil.NoSuchProcess):
            total += time.clock_gettime((~process.pid << 3) | 2)  # what clock_getcpuclockid(3) makes of a process
    return total


def crowd(server: CpuServer, tokens: int, round_: int, first: Mapping[str, Any]) -> Run:
    """Eight concurrent requests. ``first``: additions to the first one.

    Every crowd of a round asks the same, and none finds its prompts in the prefix cache, where the one before left them.
    """
    made: list[int] = []
    own = f"crowd {next(_CROWDS)}"

    def send(client: int) -> None:
        ids = [5 + (client * 7 + round_ * 11 + k * 3) % 200 for k in range(24)]
        extra = {"extra_key": own, **(first if client == 0 else {})}
        answer = server.generate(input_ids=ids, max_new_tokens=tokens, ignore_eos=True, **extra)
        made.append(answer["meta_info"]["completion_tokens"])

    threads = [threading.Thread(target=send, args=(client,)) for client in range(CLIENTS)]
    used = processor_seconds(server)
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if len(made) != CLIENTS:
        raise SystemExit("a request failed; see the server's log")
    time.sleep(0.1)  # what the writer does after the last token is a part of the cost
    return Run(took / sum(made), (processor_seconds(server) - used) / sum(made))


def traced(server: CpuServer) -> dict[str, Any]:
    """What makes a request a traced one."""
    asked = server.post("/drafttrace/traces", {"taps": {}})
    return {"rid": asked["rid"], "extra_key": asked["id"]}


def untraced() -> dict[str, Any]:
    """The same for a request that is not traced: a name and a corner of the prefix cache cost something by themselves."""
    name = uuid.uuid4().hex
    return {"rid": name, "extra_key": name}


def scheduler_memory(server: CpuServer) -> int:
    """Resident bytes of the scheduler process and of the processes that it started."""
    children = psutil.Process(server.pid).children(recursive=True)
    schedulers = (child for child in children if "scheduler" in " ".join(child.cmdline()))
    return max((sum(p.memory_info().rss for p in (s, *s.children(recursive=True))) for s in schedulers), default=0)


def write_speed(folder: Path, *, disk: bool, rows: int = 512, batches: int = 12) -> tuple[float, str]:
    """Speed of a trace of a large model (H 7168) against plain writes of the same bytes to the same place.

    disk: until the bytes are on the disk (fsync); else until they are in the page cache.
    """
    width = 7168
    specs = tuple(TensorSpec(f"aux/{slot}", width, DType.BF16) for slot in range(3))
    block = np.random.default_rng(0).integers(0, 1 << 16, (rows, width), np.uint16)
    records = schema.records(schema.TARGET_ROW, rows, position=np.arange(rows))

    def raw() -> tuple[float, float]:
        path = folder / "raw"
        began, used = time.perf_counter(), time.process_time()
        with open(path, "wb", buffering=0) as file:
            for _ in range(batches):
                for _ in specs:
                    file.write(block.data)
            if disk:
                os.fsync(file.fileno())
        took = time.perf_counter() - began, time.process_time() - used
        path.unlink()
        return took

    def trace() -> tuple[float, float]:
        path = folder / "trace.h5"
        began, used = time.perf_counter(), time.process_time()
        writer = TraceWriter(path, TraceLayout(specs), request_id="bench")
        for _ in range(batches):
            writer.append_target(records, {spec.name: block for spec in specs})
            writer.flush()
        writer.finish(complete=True)
        if disk:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        took = time.perf_counter() - began, time.process_time() - used
        path.unlink()
        return took

    raw(), trace()  # the first pages that a process touches cost extra
    ratios = []
    for run in range(9):
        first, second = (raw, trace) if run % 2 else (trace, raw)
        times = {first: first(), second: second()}
        ratios.append([times[raw][which] / times[trace][which] for which in (0, 1)])
    total = batches * len(specs) * block.nbytes
    clock, processor = (statistics.median(column) for column in zip(*ratios, strict=True))
    return (
        clock,
        f"{total / MIB:.0f} MiB in {batches} batches, each flushed; of processor time {processor:.2f}; "
        + _all([ratio[0] for ratio in ratios]),
    )


def writing(folder: Path) -> list[Figure]:
    """The speed of the trace file."""
    figures = []
    for disk, name, limit in ((True, "to the disk", 0.8), (False, "to the page cache", None)):
        speed, detail = write_speed(folder, disk=disk)
        figures.append(Figure(f"trace writing / raw write, {name}", speed, limit, True, detail))
    return figures


def serving(pair: str, models: tuple[Path, Path], blocks: int, starts: int) -> list[Figure]:
    """What the plugin, a traced request and SGLang's own hidden states cost on one pair of models."""
    tokens = TOKENS.get(pair, 48)
    found: list[list[dict[str, Run]]] = []
    memory, states = [], []
    for start in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            count = max(1, blocks // starts + (start < blocks % starts))
            made = _one_start(Path(folder), models, tokens, count, start)
        found.append(made.blocks)
        memory.append(made.memory)
        states += made.states
    complete = sum(state["state"] == "complete" for state in states)
    detail = f"{complete}/{len(states)} traces complete" + "".join(
        f"; {state['reason']}" for state in states if state["state"] != "complete"
    )
    grown = max(plugin - plain for plain, plugin in memory) / MIB
    return [
        *_ratio(f"{pair}: two servers without plugin", found, NONE, TWIN, None),
        *_ratio(f"{pair}: plugin on, nothing traced / no plugin", found, NONE, IDLE, 0.99),
        *_ratio(f"{pair}: one of eight traced / none traced", found, IDLE, TRACED, 0.95),
        *_ratio(f"{pair}: return_hidden_states, one of eight / none", found, NONE, HIDDEN, None),
        _trace_cost(pair, list(itertools.chain(*found)), CLIENTS * tokens),
        Figure(f"{pair}: memory of the scheduler, MiB more", grown, 200.0, False, detail),
        Figure(f"{pair}: traces that are complete", complete / max(1, len(states)), 1.0, True, ""),
    ]


@dataclass(frozen=True)
class Start:
    """One start of both servers. blocks: the runs by kind. memory: bytes of both schedulers. states: of all traces."""

    blocks: list[dict[str, Run]]
    memory: tuple[int, int]
    states: list[dict[str, Any]]


def _one_start(folder: Path, models: tuple[Path, Path], tokens: int, blocks: int, start: int) -> Start:
    extra = ["--enable-return-hidden-states"]
    args = cpu_args(*models, max_running_requests=CLIENTS, extra=extra)
    (folder / "traces").mkdir()
    same = {"PYTHONHASHSEED": "0"}  # one difference between the servers less
    on = {"DRAFTTRACE": "1", "DRAFTTRACE_DIR": str(folder / "traces")}
    plain = CpuServer(args, folder / "without.log", same, start_timeout=900)
    twin = CpuServer(args, folder / "twin.log", same, start_timeout=900)
    plugin = CpuServer(args, folder / "with.log", same | on, start_timeout=900)
    servers = [plain, twin, plugin]
    runs = {
        NONE: lambda number: crowd(plain, tokens, number, untraced()),
        TWIN: lambda number: crowd(twin, tokens, number, untraced()),
        IDLE: lambda number: crowd(plugin, tokens, number, untraced()),
        TRACED: lambda number: crowd(plugin, tokens, number, traced(plugin)),
        HIDDEN: lambda number: crowd(plain, tokens, number, {**untraced(), "return_hidden_states": True}),
    }
    with ExitStack() as stack:
        for server in servers[start % 3 :] + servers[: start % 3]:
            stack.enter_context(server)
        for number in range(2):  # warm up
            for kind in KINDS:
                runs[kind](number)
        for (
            server
        ) in servers:  # SGLang does so after its own warm-up, which is skipped here: then by chance or not at all
            server.post("/freeze_gc")
        found = []
        for block in range(blocks):
            order = random.Random(f"{start} {block}").sample(KINDS, len(KINDS))
            found.append({kind: runs[kind](2 + block) for kind in order})
        return Start(found, (scheduler_memory(plain), scheduler_memory(plugin)), _finished(plugin))


def _finished(server: CpuServer) -> list[dict[str, Any]]:
    """The states of all traces, once no trace is being written any more (or after ten seconds)."""
    deadline = time.monotonic() + 10
    while True:
        states: list[dict[str, Any]] = server.get("/drafttrace/traces")["traces"]
        if all(state["state"] in ("complete", "incomplete") for state in states) or time.monotonic() > deadline:
            return states
        time.sleep(0.1)


def _ratio(
    name: str, starts: list[list[dict[str, Run]]], left: str, right: str, limit: float | None
) -> list[Figure]:
    """Speed of ``right`` as a share of that of ``left``: by the clock, and by processor time."""
    figures = []
    for what, field in (("the clock", "clock"), ("processor time", "processor")):
        ratios = [[getattr(one[left], field) / getattr(one[right], field) for one in blocks] for blocks in starts]
        every = list(itertools.chain(*ratios))
        each = " ".join(f"{statistics.median(ones):.3f}" for ones in ratios)
        figures.append(
            Figure(
                f"{name}, by {what}",
                statistics.median(every),
                limit,
                True,
                f"{_all(every)}; medians of the starts {each}",
            )
        )
    return figures


def _trace_cost(pair: str, blocks: list[dict[str, Run]], tokens: int) -> Figure:
    """What one traced request takes of the processor, whatever the model does. tokens: of a crowd."""
    more = [1e3 * tokens * (block[TRACED].processor - block[IDLE].processor) for block in blocks]
    whole = statistics.median(1e3 * tokens * block[IDLE].processor for block in blocks)
    detail = f"a crowd takes {whole:.0f} ms without"
    return Figure(f"{pair}: processor time of one trace, ms", statistics.median(more), None, False, detail)


def _all(ratios: list[float]) -> str:
    return "runs " + " ".join(f"{ratio:.3f}" for ratio in sorted(ratios))


def models_of(pair: str) -> tuple[Path, Path] | None:
    """Target and draft of a pair; None where its target was not fetched."""
    if pair == "smol":
        sys.path.insert(0, str(ROOT))
        from pairs.smol.fetch import FOLDER, cache_root

        target = cache_root() / FOLDER
        return (target, ROOT / "pairs/smol/draft") if target.is_dir() else None
    return ROOT / "pairs" / pair / "target", ROOT / "pairs" / pair / "draft"


def told(figures: Sequence[Figure], place: Path | None) -> int:
    """Print the figures, and write them as JSON where a place is given. Exit code: 1 where one is worse than its limit."""
    for figure in figures:
        limit = "" if figure.limit is None else f"({'>=' if figure.at_least else '<='} {figure.limit:g})"
        print(f"{'ok ' if figure.good else 'BAD'} {figure.name:72} {figure.value:9.3f} {limit:10} {figure.detail}")
    if place is not None:
        load = os.getloadavg()[0]
        place.write_text(json.dumps({"load": load, "figures": [asdict(f) for f in figures]}, indent=1))
    return int(not all(figure.good for figure in figures))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="append", choices=("tiny-llama", "tiny-kimi", "smol"))
    parser.add_argument("--blocks", type=int, default=16, help="runs of every kind for each pair of models")
    parser.add_argument("--starts", type=int, default=4, help="how often the servers are started for them")
    parser.add_argument("--no-writing", action="store_true", help="leave out the speed of the trace file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = [] if options.no_writing else writing(Path(folder))
    for pair in options.pair or ("tiny-llama", "smol"):
        models = models_of(pair)
        if models is None:
            print(f"{pair} is left out: `python -m pairs.smol.fetch` was not run")
            continue
        figures += serving(pair, models, options.blocks, options.starts)
    code = told(figures, options.json)
    print("--debug-tensor-dump-output-folder: no number; in SGLang 0.5.23 it kills an EAGLE-3 server")
    print("    ('AuxHiddenStateList' object has no attribute 'cpu').")
    return code


if __name__ == "__main__":
    sys.exit(main())
