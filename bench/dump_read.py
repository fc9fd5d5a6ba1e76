"""How fast a large safetensors dump is read block by block, and how much memory that takes.

``python bench/dump_read.py [--gigabytes 2] [--folder DIR]`` writes a dump with four slots of 4096 channels, reads its
raw bytes, then every slot of it through drafttrace, and prints both speeds and the resident memory above that of the
interpreter. Exit code 1 where a bound of the design is missed: 0.7 of the raw speed, 300 MB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SLOTS, WIDTH, BLOCK_ROWS = 4, 4096, 512
SPEED, MEMORY = 0.7, 300 << 20


def write(path: Path, size: int) -> None:
    """A dump of about ``size`` bytes in the layout of the vLLM connector."""
    from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter

    rows = size // (SLOTS * WIDTH * 2)
    specs = {"hidden_states": ("bf16", (rows, SLOTS, WIDTH)), "token_ids": ("int64", (rows,))}
    block = np.random.default_rng(0).integers(0x3F00, 0x4000, (BLOCK_ROWS, SLOTS, WIDTH), np.uint16)
    with SafetensorsWriter(path, specs, {}) as tensors:
        tensors["token_ids"][:] = np.arange(rows)
        for start in range(0, rows, BLOCK_ROWS):
            part = tensors["hidden_states"][start : start + BLOCK_ROWS]
            part[:] = block[: len(part)]


def resident() -> int:
    """Bytes of this process in memory, pages of mapped files included."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def read_raw(path: Path) -> float:
    """Seconds to read the file once into one buffer of 16 MiB."""
    buffer = bytearray(16 << 20)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def read_blocks(path: Path) -> tuple[float, int]:
    """Seconds to read every slot block by block, and the largest growth of resident memory.

    A block is in memory when it is handed out, as what ``read_raw`` reads is.
    """
    from drafttrace.tracer.open import open_capture

    base = resident()
    capture = open_capture(str(path))
    assert capture.last is not None
    states = [*(slot.rows for slot in capture.slots), capture.last.rows]
    most = rows_read = 0
    start = time.perf_counter()
    for first in range(0, len(states[0]), BLOCK_ROWS):
        for rows in states:
            rows_read += len(rows.raw(first, first + BLOCK_ROWS))
        most = max(most, resident() - base)
    seconds = time.perf_counter() - start
    assert rows_read == sum(len(rows) for rows in states)
    return seconds, most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--read", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:  # in a process of its own, so that writing is not counted
        times = [(read_raw(arguments.read), *read_blocks(arguments.read)) for _ in range(3)]
        best_raw, best_blocks = min(row[0] for row in times), min(row[1] for row in times)
        memory = max(row[2] for row in times)
        size = arguments.read.stat().st_size
        print(f"raw bytes        {size / best_raw / 1e9:6.2f} GB/s")
        print(f"block by block   {size / best_blocks / 1e9:6.2f} GB/s  ({best_raw / best_blocks:.2f} of raw)")
        print(f"resident memory  {memory / 1e6:6.0f} MB above the interpreter")
        return int(best_raw / best_blocks < SPEED or memory > MEMORY)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "hs_0.safetensors"
        write(path, int(arguments.gigabytes * 1e9))
        return subprocess.run([sys.executable, __file__, "--read", str(path)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
