"""Every speed figure, as ratios measured in one run. ``python -m bench.speed [--runs 5] [--json FILE] [--only GROUP]``.

Groups: cold (commands beside SGLang's comparator and a torch script), start, kernel, matrix, scale; the pair that is
larger than the memory is a run of its own (``python -m bench.scale``). Exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from bench.figures import Figure

GROUPS = ("kernel", "cold", "scale")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="rounds of paired runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=GROUPS, action="append")
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for group in options.only or GROUPS:
            figures += _group(group, options.runs, folder)
    for figure in figures:
        print(line(figure))
    if options.json:
        from drafttrace.compare.kernels import native

        about = {"machine": platform.machine(), "processors": os.cpu_count(), "load": os.getloadavg()[0],
                 "kernel": native.description(), "runs": options.runs}  # fmt: skip
        listed = [figure.to_json() for figure in figures]
        options.json.write_text(json.dumps({**about, "figures": listed}, indent=1, allow_nan=False) + "\n")
    return int(not all(figure.good for figure in figures))


def _group(name: str, runs: int, folder: Path) -> list[Figure]:
    if name == "kernel":
        from bench import kernel

        return kernel.measure(runs)
    if name == "cold":
        from bench import cold

        return cold.measure(runs, folder)
    from bench import scale

    return scale.curve(folder, max(1, runs // 2))


def line(figure: Figure) -> str:
    """One figure as a line of the table."""
    mark = "     " if figure.target is None else "ok   " if figure.good else "MISS "
    bound = "" if figure.target is None else f"({'>=' if figure.at_least else '<='} {figure.target:g})"
    return f"{mark}{figure.group:7} {figure.name:62} {figure.value:9.3f} {figure.unit:4} {bound:10} {figure.detail}"


if __name__ == "__main__":
    sys.exit(main())
