"""How fast a large safetensors dump is read block by block, and how much memory that takes.

``python bench/dump_read.py [--gigabytes 2] [--folder DIR]`` writes a dump with four slots of 4096 channels, reads its
raw bytes, then every slot of it through drafttrace in blocks of several sizes, and prints the speeds and the resident
memory above that of the interpreter. Exit code 1 where a bound of the design is missed: 0.7 of the raw speed, 300 MB.

The raw bytes are read into one buffer of 16 MiB, which the processor's cache holds, and once more in blocks of the same
size, of which two take turns, as whoever looks at one block needs while the next one is read: large blocks are slower
whoever reads them. The speed is held against both. The largest block is the largest that is read once for all slots: their
rows are 128 MiB, and as many of the block before are still in somebody's hands. Larger ones are gathered stripe by
stripe, for more would not fit into 300 MB: a quarter of the speed of the small buffer, and as fast as raw blocks of
that size (0.20 s of the processor for 0.54 GB, either way): their memory is fresh, and no cache holds it.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SLOTS, WIDTH, BLOCK_ROWS = 4, 4096, (64, 256, 512, 1024, 2048, 4096)
_WRITTEN = 512  # rows at a time
SPEED, MEMORY = 0.7, 300_000_000


def write(path: Path, size: int) -> None:
    """A dump of about ``size`` bytes in the layout of the vLLM connector."""
    from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter

    rows = size // (SLOTS * WIDTH * 2)
    specs = {"hidden_states": ("bf16", (rows, SLOTS, WIDTH)), "token_ids": ("int64", (rows,))}
    block = np.random.default_rng(0).integers(0x3F00, 0x4000, (_WRITTEN, SLOTS, WIDTH), np.uint16)
    with SafetensorsWriter(path, specs, {}) as tensors:
        tensors["token_ids"][:] = np.arange(rows)
        for start in range(0, rows, _WRITTEN):
            part = tensors["hidden_states"][start : start + _WRITTEN]
            part[:] = block[: len(part)]


def resident() -> int:
    """Bytes of this process in memory, pages of mapped files included."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def read_raw(path: Path, size: int = 16 << 20, buffers: int = 1) -> float:
    """Seconds to read the file once in blocks of ``size`` bytes, into so many buffers in turn."""
    start = time.perf_counter()
    held = [mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(buffers)]
    with path.open("rb", buffering=0) as file:
        for buffer in itertools.cycle(held):
            if not file.readinto(buffer):
                break
    return time.perf_counter() - start


def read_blocks(path: Path, size: int) -> tuple[float, int]:
    """Seconds to read every slot in blocks of ``size`` rows, and the largest growth of resident memory.

    A block is in memory when it is handed out, as what ``read_raw`` reads is. Asking the system how much memory that
    takes is no reading, and stands outside the clock.
    """
    from drafttrace.tracer.open import open_capture

    base = resident()
    capture = open_capture(str(path))
    assert capture.last is not None
    states = [*(slot.rows for slot in capture.slots), capture.last.rows]
    most = rows_read = 0
    seconds = 0.0
    for first in range(0, len(states[0]), size):
        start = time.perf_counter()
        for rows in states:
            block = rows.raw(first, first + size)  # stays until the next one is read, as with any reader
            rows_read += len(block)
        seconds += time.perf_counter() - start
        most = max(most, resident() - base)
    assert rows_read == sum(len(rows) for rows in states)
    return seconds, most


def measure(path: Path) -> int:
    """Print a line for the raw bytes and for every size of a block, each the best of three. Exit code 1 for a miss."""
    total, missed = path.stat().st_size, False
    raw = min(read_raw(path) for _ in range(3))
    print(f"raw bytes            {total / raw / 1e9:6.2f} GB/s")
    for size in BLOCK_ROWS:
        block = size * SLOTS * WIDTH * 2
        rounds = [(read_raw(path, block, 2), *read_blocks(path, size)) for _ in range(3)]
        alike, seconds, memory = (
            min(row[0] for row in rounds),
            min(row[1] for row in rounds),
            max(row[2] for row in rounds),
        )
        missed = missed or max(raw, alike) / seconds < SPEED or memory > MEMORY
        print(
            f"blocks of {size:4} rows  {total / seconds / 1e9:6.2f} GB/s: {raw / seconds:.2f} of raw, "
            f"{alike / seconds:.2f} of raw blocks of {block >> 20} MiB; {memory / 1e6:.0f} MB above the interpreter"
        )
    return int(missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--read", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:  # in a process of its own, so that writing is not counted
        return measure(arguments.read)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "hs_0.safetensors"
        write(path, int(arguments.gigabytes * 1e9))
        return subprocess.run([sys.executable, __file__, "--read", str(path)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
