"""What the plugin costs a server that traces nothing.

    python -m bench.recorder_idle [--pair tiny-llama] [--starts 16] [--blocks 6] [--json FILE]

Two servers that do the same differ by up to 2 % for as long as they live (``bench/recorder.py`` holds two such servers
against each other), and the hooks of an idle plugin take microseconds of a round: longer runs do not tell the two apart,
only more starts do. So a server with the plugin and one without it are started anew ``--starts`` times; each time they
are asked in turn, ``--blocks`` crowds of eight requests each, and the ratio is the median over the starts, with the
standard error over them beside it. Exit code 1 where the ratio by the clock is below 0.99.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from sglang_cpu.arguments import cpu_args
from sglang_cpu.server import CpuServer

from bench.recorder import CLIENTS, IDLE, NONE, TOKENS, Figure, Run, crowd, models_of, told, untraced

LIMIT = 0.99


def fixed_addresses() -> None:
    """Let memory lie at the same addresses in every process that is started from here (Linux): where it lies is a part of
    what makes two equal servers differ."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).personality(0x0040000)  # ADDR_NO_RANDOMIZE of linux/personality.h


def one_start(
    folder: Path, models: tuple[Path, Path], tokens: int, blocks: int, start: int
) -> list[dict[str, Run]]:
    """The crowds of one start of both servers, by kind."""
    args = cpu_args(*models, max_running_requests=CLIENTS)
    (folder / "traces").mkdir()
    same = {"PYTHONHASHSEED": "0"}
    on = {"DRAFTTRACE": "1", "DRAFTTRACE_DIR": str(folder / "traces")}
    servers = {
        NONE: CpuServer(args, folder / "without.log", same, start_timeout=900),
        IDLE: CpuServer(args, folder / "with.log", same | on, start_timeout=900),
    }
    with ExitStack() as stack:
        for kind in (NONE, IDLE) if start % 2 else (IDLE, NONE):
            stack.enter_context(servers[kind])
        for number in range(2):  # warm up
            for server in servers.values():
                crowd(server, tokens, number, untraced())
        for server in servers.values():
            server.post("/freeze_gc")
        found = []
        for block in range(blocks):
            order = random.Random(f"{start} {block}").sample([NONE, IDLE], 2)
            found.append({kind: crowd(servers[kind], tokens, 2 + block, untraced()) for kind in order})
        return found


def figures_of(pair: str, starts: Sequence[Sequence[dict[str, Run]]]) -> list[Figure]:
    """Speed of the server with the plugin as a share of the other's, by the clock and by processor time."""
    figures = []
    for what, field, limit in (("the clock", "clock", LIMIT), ("processor time", "processor", None)):
        ratios = [
            statistics.median(getattr(one[NONE], field) / getattr(one[IDLE], field) for one in blocks)
            for blocks in starts
        ]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
        each = " ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
        name = f"{pair}: plugin on, nothing traced / no plugin, by {what}"
        detail = f"standard error {error:.3f}; {len(ratios)} starts {each}"
        figures.append(Figure(name, statistics.median(ratios), limit, True, detail))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="append", choices=("tiny-llama", "tiny-kimi", "smol"))
    parser.add_argument("--starts", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=6, help="crowds of either server for each start")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    fixed_addresses()
    figures: list[Figure] = []
    for pair in options.pair or ["tiny-llama"]:
        models = models_of(pair)
        if models is None:
            print(f"{pair} is left out: `python -m pairs.smol.fetch` was not run")
            continue
        starts = []
        for start in range(options.starts):
            with tempfile.TemporaryDirectory() as folder:
                starts.append(one_start(Path(folder), models, TOKENS.get(pair, 48), options.blocks, start))
        figures += figures_of(pair, starts)
    return told(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
