"""How far equal states are apart, and how far neighbouring boundaries are: the noise that every verdict stands on.

    python bench/noise.py [--pair smol] [--json FILE]

For the prompt of a recorded trace in ``traces/``: the trace against transformers in bf16, transformers in bf16 against
float32, and every boundary against the next one (the last against the one before), as medians over rows without row 0,
which some models blow up.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import make_reference

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # run as a file, only bench/ is on the path, and `pairs` is no installed package
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Setting:
    """A trace with a sweep, its target, and the boundaries that training put into the slots."""

    trace: str
    target: Callable[[], Path]
    wiring: tuple[int, ...]


def _smol() -> Path:
    from pairs.smol.fetch import target_dir

    return target_dir()


SETTINGS = {
    "tiny-llama": Setting("tiny-llama/healthy.h5", lambda: ROOT / "pairs/tiny-llama/target", (2, 8, 13)),
    "tiny-kimi": Setting("tiny-kimi/fixed.h5", lambda: ROOT / "pairs/tiny-kimi/target", (0, 3, 31)),
    "smol": Setting("smol/as-trained.h5", _smol, (0, 16, 28)),
}


@dataclass(frozen=True)
class Noise:
    """One boundary of one pair, ``layers`` of which the target has. Relative L2 and cosine are medians over rows.

    neighbour: the boundary that it is compared with, the next one, or the one before where it is the last. row0: its norm
    over the median norm.
    """

    pair: str
    boundary: int
    layers: int
    served: float
    dtype: float
    neighbour: int
    neighbour_distance: float
    neighbour_cosine: float
    norm: float
    row0: float


def relative(left: Floats, right: Floats) -> float:
    """Median relative L2 over rows."""
    return float(np.median(np.linalg.norm(left - right, axis=1) / np.linalg.norm(right, axis=1)))


def cosine(left: Floats, right: Floats) -> float:
    """Median cosine over rows."""
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(np.median((left * right).sum(1) / norms))


def measure(name: str, setting: Setting, scratch: Path) -> list[Noise]:
    """The noise at every boundary that the trace swept."""
    trace = open_capture(str(ROOT / "traces" / setting.trace))
    length = trace.prompt_length
    if length is None:
        raise DrafttraceError(f"{setting.trace} does not say how long its prompt is; record it again.")
    tokens = np.asarray(trace.tokens[:length], np.int64)
    made: dict[str, Capture] = {}
    for dtype in ("bf16", "fp32"):
        out = scratch / f"{name}-{dtype}.safetensors"
        make_reference(setting.target(), [tokens], out, slots=setting.wiring, dtype=dtype)
        made[dtype] = open_capture(str(out))
    low, full = ({k: rows.floats() for k, rows in made[d].boundaries.items()} for d in ("bf16", "fp32"))
    found = []
    for k, rows in sorted(trace.boundaries.items()):
        count = min(len(rows), length)
        served = rows.floats()[1:count]
        ours, exact = low[k][1:count], full[k][1:count]
        neighbour = k + 1 if k + 1 in low else k - 1
        near = low[neighbour][1:count]
        norms = np.linalg.norm(full[k][:count], axis=1)
        found.append(
            Noise(
                name,
                k,
                max(low),
                relative(served, ours),
                relative(ours, exact),
                neighbour,
                relative(near, ours),
                cosine(near, ours),
                float(np.median(norms)),
                float(norms[0] / np.median(norms)),
            )
        )
    return found


def measure_all(names: Iterable[str]) -> tuple[list[Noise], list[str]]:
    """The noise of these pairs, and one sentence for every pair that could not be measured."""
    found: list[Noise] = []
    failed: list[str] = []
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                found += measure(name, SETTINGS[name], Path(scratch))
            except (DrafttraceError, OSError) as error:
                failed.append(f"{name} was left out: {error}")
    return found, failed


def show(found: Iterable[Noise]) -> None:
    """A table of them."""
    print(
        "relative L2 (medians)      SGLang/HF  bf16/fp32  neighbour            its cosine      norm  row 0 / median"
    )
    for n in found:
        print(
            f"{n.pair:<12} B{n.boundary:<12} {n.served:9.4f}  {n.dtype:9.4f}  B{n.neighbour:<3} "
            f"{n.neighbour_distance:13.4f}  {n.neighbour_cosine:10.4f}  {n.norm:8.4g}  {n.row0:14.1f}"
        )


def main() -> int:
    """Measure and print; 2 where a pair could not be measured or the file cannot be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=SETTINGS, action="append")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from pairs.smol.options import check_file

    try:
        if options.json is not None:
            check_file(options.json, "--json")
    except DrafttraceError as error:
        print(error, file=sys.stderr)
        return 2
    found, failed = measure_all(options.pair or SETTINGS)
    if found:
        show(found)
    for sentence in failed:
        print(sentence, file=sys.stderr)
    if options.json and found:
        options.json.write_text(json.dumps([asdict(n) for n in found], indent=1) + "\n")
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
