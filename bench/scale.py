"""How time and memory of ``drafttrace diff`` grow with rows, with slots, and for files far larger than the memory.

``python -m bench.scale --gigabytes 20`` writes 20 GB a side below ``--folder`` (and takes them away again).
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.figures import Figure, Ran, run
from bench.kimi_pair import Bits, Shape, Stream, to_bits
from drafttrace.tracer.capture import Accepted, Phase, Probe
from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.writer import TraceWriter

MIB = 1 << 20
TOOL = (sys.executable, "-m", "drafttrace.tracer.cli")
WIDTH, BLOCK = 7168, 256


class Repeated:
    """Both sides of a pair of any size, made from one block of rows; every row differs from all others in four
    channels, which hold its number."""

    def __init__(self, slots: int, width: int) -> None:
        self.wiring = tuple(round(k * 59 / max(1, slots)) for k in range(slots + 1))
        stream = Stream(Shape(tokens=2 * BLOCK, width=width))
        values = [stream.rows(k, BLOCK, 2 * BLOCK) for k in self.wiring]
        self.left = [to_bits(v) for v in values]
        self.right = [to_bits(stream.noisy(v, BLOCK)) for v in values]

    def numbered(self, block: Bits, start: int, count: int) -> Bits:
        """Rows ``start..`` of one stream."""
        made = block[:count].copy()
        number = np.arange(start, start + count, dtype=np.int64)
        for k in range(4):  # a mantissa of 7 bits each
            made[:, 100 + k] = (made[:, 100 + k] & 0xFF80) | ((number >> (7 * k)) & 0x7F).astype(np.uint16)
        return made


def write(folder: Path, tokens: int, slots: int = 3, width: int = WIDTH) -> tuple[Path, Path, int]:
    """(trace, dump, bytes of both sides): ``slots`` slots and a last state of ``tokens`` rows."""
    made = Repeated(slots, width)
    ids = np.random.default_rng(1).integers(5, 150_000, tokens)
    names = [*(f"aux/{i}" for i in range(slots)), "last"]
    trace, dump = folder / "trace.h5", folder / "hs_0.safetensors"
    layout = TraceLayout(tuple(TensorSpec(name, width, DType.BF16) for name in names))
    about = {"wiring": {"boundaries": list(made.wiring[:-1]), "source": "bench", "n": 61, "last_norm": "pre"}}
    specs = {"hidden_states": ("bf16", (tokens, slots + 1, width)), "token_ids": ("int64", (tokens,))}
    with (
        TraceWriter(trace, layout, request_id="bench", about=about, prompt=ids, overwrite=True) as writer,
        SafetensorsWriter(dump, specs, {}) as tensors,
    ):
        tensors["token_ids"][:] = ids
        for start in range(0, tokens, BLOCK):
            count = min(BLOCK, tokens - start)
            records = schema.records(
                schema.TARGET_ROW,
                count,
                position=np.arange(start, start + count),
                token_id=ids[start : start + count],
                phase=Phase.PREFILL,
                accepted=Accepted.ACCEPTED,
                live_rows=count,
                padded_rows=count,
            )
            rows = {name: made.numbered(block, start, count) for name, block in zip(names, made.left, strict=True)}
            writer.append_target(records, rows)
            for slot, block in enumerate(made.right):
                tensors["hidden_states"][start : start + count, slot] = made.numbered(block, start, count)
            if start % (64 * BLOCK) == 0:
                writer.flush()
        probes = [Probe(name, 1, 1, tokens, 0) for name in names]
        writer.finish(complete=True, tokens=ids, prompt_length=tokens, probes=probes)
    return trace, dump, 2 * tokens * (slots + 1) * width * 2


def diff(trace: Path, dump: Path, folder: Path) -> Ran:
    """One cold command. Raises RuntimeError where it does not say match."""
    log = folder / "log.txt"
    ran = run((*TOOL, "diff", str(trace), str(dump), "--json", "-"), log=log)
    if ran.code != 0:
        raise RuntimeError(f"diff ended with {ran.code}: {log.read_text()[-800:]}")
    return ran


def out_of_cache(*files: Path) -> None:
    """Let the system forget what it holds of the files."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def curve(folder: Path, runs: int) -> list[Figure]:
    """Processor time for 1, 2, 4, 8 and 16 times as many rows, and slots, against a straight line."""
    figures = []
    for what, base in (("rows", 1024), ("slots", 1)):
        points: list[tuple[int, float, float]] = []
        for factor in (1, 2, 4, 8, 16):
            tokens, slots = (base * factor, 3) if what == "rows" else (1024, factor)
            trace, dump, size = write(folder, tokens, slots)
            diff(trace, dump, folder)
            ran = [diff(trace, dump, folder) for _ in range(runs)]
            points.append((size, statistics.median(r.cpu for r in ran), max(r.memory for r in ran) / MIB))
            trace.unlink()
            dump.unlink()
        factors, seconds = (1, 2, 4, 8, 16), [point[1] for point in points]
        slope, start = np.polyfit(factors[:-1], seconds[:-1], 1)
        growth = seconds[-1] / (start + slope * factors[-1])
        shown = ", ".join(f"{size / 1e6:.0f} MB {cost:.2f} s {memory:.0f} MiB" for size, cost, memory in points)
        name = f"{what}: 16x / the line through 1x to 8x"
        figures.append(Figure("scale", name, growth, 1.2, False, "x", shown))
    return figures


def large(folder: Path, gigabytes: float) -> list[Figure]:
    """A pair larger than the memory against one of 1 GB a side, both read from the disk."""
    row = 4 * WIDTH * 2
    memory, speed, raw = {}, {}, {}
    for size in (1.0, gigabytes):
        trace, dump, count = write(folder, math.ceil(size * 1e9 / row))
        out_of_cache(trace, dump)
        ran = diff(trace, dump, folder)
        memory[size], speed[size] = ran.memory, count / ran.seconds / 1e9
        out_of_cache(trace, dump)
        read = run(("cat", str(trace), str(dump)))
        raw[size] = count / read.seconds / 1e9
        trace.unlink()
        dump.unlink()
    bare = run((sys.executable, "-c", "pass")).memory
    big = gigabytes
    return [
        Figure("scale", f"{big:g} GB a side: memory above the interpreter", (memory[big] - bare) / MIB, 300, False,
               "MiB", f"1 GB a side: {(memory[1.0] - bare) / MIB:.0f}"),
        Figure("scale", f"{big:g} GB / 1 GB a side, throughput from the disk", speed[big] / speed[1.0], 0.8, True, "x",
               f"{speed[big]:.2f} and {speed[1.0]:.2f} GB/s; cat reads {raw[big]:.2f} and {raw[1.0]:.2f}"),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = large(Path(folder), options.gigabytes)
    for figure in figures:
        print(figure)
    return int(not all(figure.good for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
