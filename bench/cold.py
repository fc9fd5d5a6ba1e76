"""Cold commands: ``drafttrace diff`` of one Kimi-K2.5-sized pair beside what people would use instead, and start-up."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.figures import Figure, Ran, median_ratio, paired, run, spread
from bench.kimi_pair import Shape, write

MIB = 1 << 20
TOOL = (sys.executable, "-m", "drafttrace.tracer.cli")
SCRIPT = Path(__file__).with_name("torch_script.py")


def comparator(left: Path, reference: Path) -> tuple[str, ...]:
    """SGLang's own dump comparator on the same tensors."""
    return (
        sys.executable, "-m", "sglang.srt.debug_utils.comparator", "--baseline-path", str(reference),
        "--target-path", str(left), "--preset", "raw", "--output-format", "json",
        "--report-path", "",
    )  # fmt: skip


class Watched:
    """A command whose every run is kept. expect: the exit codes that mean that it worked."""

    def __init__(self, command: tuple[str, ...], expect: tuple[int, ...], log: Path) -> None:
        self.command, self.expect, self.log = command, expect, log
        self.runs: list[Ran] = []

    def __call__(self) -> float:
        ran = run(self.command, log=self.log)
        if ran.code not in self.expect:
            raise RuntimeError(f"{' '.join(self.command)} ended with {ran.code}: {self.log.read_text()[-800:]}")
        self.runs.append(ran)
        return ran.seconds

    @property
    def memory(self) -> int:
        return max(ran.memory for ran in self.runs)

    @property
    def cpu(self) -> float:
        return statistics.median(ran.cpu for ran in self.runs)


def measure(runs: int, folder: Path) -> list[Figure]:
    """All figures of this group."""
    figures: list[Figure] = []
    log = folder / "log.txt"
    for name, shape in (("match", Shape()), ("slot-shift", Shape(shifted=True))):
        place = folder / name
        write(place, shape)
        trace = str(place / "trace.h5")
        worked = (0,) if name == "match" else (1,)
        tool = Watched((*TOOL, "diff", trace, str(place / "hs_0.safetensors"), "--json", "-"), worked, log)
        torch_file = Watched((*TOOL, "diff", trace, str(place / "data_0.pt"), "--json", "-"), (0, 1), log)
        script = Watched(
            (sys.executable, str(SCRIPT), *(str(place / "sglang" / s) for s in ("left", "reference"))), (0,), log
        )
        other = Watched(comparator(place / "sglang/left", place / "sglang/reference"), (0, 1), log)
        bare, with_numpy = (
            Watched((sys.executable, "-c", code), (0,), log) for code in ("pass", "import numpy, h5py, typer")
        )
        for warm_up in (tool, torch_file, script):  # files into the page cache, compiled Python files
            warm_up()
            warm_up.runs.clear()
        commands: list[Callable[[], float]] = [tool, torch_file, script, bare, with_numpy]
        why_not = _missing()
        if why_not is None:
            other()
            other.runs.clear()
            commands.append(other)
        times = paired(runs, *commands)
        first = statistics.median(times[0])
        figures += [
            Figure("cold", f"diff, {name}, safetensors: seconds", first, 0.8, False, "s", spread(times[0])),
            Figure("cold", f"diff, {name}, safetensors: memory", tool.memory / MIB, 350, False, "MiB", ""),
            Figure("cold", f"diff, {name}, safetensors: processor", tool.cpu, None, False, "s", ""),
            Figure("cold", f"diff, {name}, .pt: seconds", statistics.median(times[1]), 2.2, False, "s", spread(times[1])),
            Figure("cold", f"diff, {name}, .pt: memory", torch_file.memory / MIB, None, False, "MiB", ""),
            Figure("cold", f"{name}: ten lines of torch / diff", median_ratio(times[2], times[0]), None, True, "x",
                   f"{statistics.median(times[2]):.2f} s, {script.memory / MIB:.0f} MiB"),
            Figure("cold", f"{name}: the same, processor time", script.cpu / tool.cpu, None, True, "x", ""),
            Figure("cold", f"{name}: bare interpreter", statistics.median(times[3]), None, False, "s", ""),
            Figure("cold", f"{name}: numpy, h5py and typer imported", statistics.median(times[4]), None, False, "s", ""),
        ]  # fmt: skip
        title = f"{name}: SGLang's comparator / diff"
        if why_not is None:
            detail = f"{statistics.median(times[5]):.2f} s, {other.memory / MIB:.0f} MiB"
            figures.append(Figure("cold", title, median_ratio(times[5], times[0]), 10, True, "x", detail))
            ratio = other.cpu / tool.cpu
            figures.append(Figure("cold", f"{name}: the same, processor time", ratio, None, True, "x", ""))
        else:
            figures.append(Figure("cold", title, float("nan"), None, True, "x", f"not run: {why_not}"))
    figures += _startup(runs, folder, log)
    return figures


def _startup(runs: int, folder: Path, log: Path) -> list[Figure]:
    """--help and inspect, each beside a bare interpreter."""
    place = folder / "match"
    named = {
        "--help": (*TOOL, "--help"),
        "inspect trace": (*TOOL, "inspect", str(place / "trace.h5")),
        "inspect safetensors": (*TOOL, "inspect", str(place / "hs_0.safetensors")),
    }
    commands = [Watched(command, (0,), log) for command in named.values()]
    bare = Watched((sys.executable, "-c", "pass"), (0,), log)
    for command in commands:  # compiled Python files
        command()
        command.runs.clear()
    times = paired(runs, *commands, bare)
    return [
        Figure("start", f"{name}: seconds", statistics.median(t), 0.3, False, "s",
               f"{median_ratio(t, times[-1]):.1f} bare interpreters, {c.cpu:.2f} s of processor")
        for name, t, c in zip(named, times, commands, strict=False)
    ]  # fmt: skip


def _missing() -> str | None:
    """Why SGLang's comparator cannot run here."""
    for module in ("sglang", "polars", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    return None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for figure in measure(3, Path(folder)):
            print(figure)
