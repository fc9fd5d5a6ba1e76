"""What a comparison costs, in numbers that do not depend on the machine's mood, against bounds in bench/bounds.json.

Bytes read, Python calls, memory and imported modules are the same on every machine; the kernel's time is taken as a
multiple of another pass over the same bytes in the same moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from bench import scale
from bench.kimi_pair import Shape, write_dump, write_trace
from drafttrace.compare.diff import diff
from drafttrace.compare.kernels import native
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.tensor import StoredRows
from drafttrace.tracer.file_bytes import Bytes, FileBytes
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace.h5rows import H5Rows

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = json.loads((ROOT / "bench/bounds.json").read_text())
SHAPE = Shape(tokens=320, width=4096, shifted=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    write_trace(folder / "trace.h5", SHAPE)
    write_dump(folder / "hs_0.safetensors", SHAPE)
    return folder / "trace.h5", folder / "hs_0.safetensors"


def captures(pair: tuple[Path, Path]) -> tuple[Capture, Capture]:
    ours = open_capture(str(pair[0]))
    return ours, open_capture(str(pair[1]), like=ours)


def assert_within(name: str, value: float) -> None:
    """A little above the bound is a regression; far below it, the bound is out of date."""
    assert value <= BOUNDS[name], f"{name}: {value:.6g} is above the committed {BOUNDS[name]}"
    assert value >= BOUNDS[name] / 4, f"{name}: {value:.6g}; lower the bound in bench/bounds.json"


def test_how_often_every_stored_byte_is_read(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    for kind in (StoredRows, H5Rows):
        original = kind.raw

        def counted(self: object, start: int, stop: int, original: object = original) -> object:
            nonlocal read
            block = original(self, start, stop)  # type: ignore[operator]
            read += block.nbytes
            return block

        monkeypatch.setattr(kind, "raw", counted)
    diff(*captures(pair))
    assert_within("bytes_read_per_stored_byte", read / (2 * SHAPE.side_bytes))


@pytest.mark.skipif(not native.available(), reason="no C compiler was there when this was installed")
def test_how_many_python_calls_a_comparison_makes(pair: tuple[Path, Path]) -> None:
    diff(*captures(pair))  # what is imported lazily
    sides = captures(pair)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        diff(*sides)
    finally:
        sys.setprofile(before)
    assert_within("python_calls", calls)


@pytest.mark.skipif(not native.available(), reason="no C compiler was there when this was installed")
def test_how_much_memory_a_comparison_takes(pair: tuple[Path, Path]) -> None:
    sides = captures(pair)
    tracemalloc.start()
    try:
        diff(*sides)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert_within("peak_bytes", peak)


@pytest.mark.skipif(not native.available(), reason="no C compiler was there when this was installed")
def test_how_much_memory_every_further_row_takes(tmp_path: Path) -> None:
    """20 GB a side are 350,000 rows of four states: 113 bytes a row and state are 158 MB."""
    peaks = []
    for tokens in (40_000, 80_000):
        folder = tmp_path / str(tokens)
        folder.mkdir()
        trace, dump, _size = scale.write(folder, tokens, width=128)
        tracemalloc.start()
        try:
            diff(*captures((trace, dump)))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert_within("bytes_per_row_and_state", (peaks[1] - peaks[0]) / (40_000 * 4))


def modules_of(*words: str | Path) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import sys\nfrom drafttrace.tracer.cli import main\n"
        "sys.argv = ['drafttrace', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('modules:', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.rpartition("modules:")[2].split())


def test_how_many_modules_a_diff_imports(pair: tuple[Path, Path]) -> None:
    found = {name for name in modules_of("diff", *pair, "--quiet") if name.split(".")[0] != "pydantic"}
    assert_within("modules_of_diff", len(found))


@pytest.mark.skipif(not native.available(), reason="no C compiler was there when this was installed")
def test_what_inspect_imports(pair: tuple[Path, Path]) -> None:
    """0.3 s are little: h5py is for HDF5 alone, and numpy.ma (which np.median and np.unique import) for nothing."""
    trace, dump = (modules_of("inspect", path) for path in pair)
    assert_within("modules_of_inspect_trace", len(trace))
    assert_within("modules_of_inspect_safetensors", len(dump))
    assert "h5py" in trace and "h5py" not in dump
    assert not {"numpy.ma", "numpy.random", "numpy.polynomial", "torch", "pydantic", "pyarrow", "polars"} & (
        trace | dump
    )


def test_inspect_reads_every_stored_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that lie row by row in one tensor were once read with all their neighbours, each anew: four times."""
    shape, dump = Shape(tokens=1100, width=4096), tmp_path / "hs_0.safetensors"  # three blocks
    write_dump(dump, shape)
    read = 0
    gather = FileBytes.gather

    def counted(self: FileBytes, out: Bytes, places: Iterable[int], run: int) -> None:
        nonlocal read
        read += out.nbytes
        gather(self, out, places, run)

    monkeypatch.setattr(FileBytes, "gather", counted)
    found = inspect_capture(str(dump))
    assert len(found.states) == 4 and all(state.statistics.rows_read == shape.tokens for state in found.states)
    assert 1 <= read / dump.stat().st_size < 1.1


@pytest.mark.skipif(not native.available(), reason="no C compiler was there when this was installed")
def test_the_kernel_costs_no_more_than_a_few_passes_over_its_bytes() -> None:
    """A loop that is no longer vectorised costs a factor of six or more."""
    bits = (np.random.default_rng(0).standard_normal((256, 4096), np.float32).view(np.uint32) >> 16).astype(
        np.uint16
    )
    rows, index = native.Block(bits, DType.BF16), np.arange(256)
    out, massive = native.Output.empty(256), np.array([5, 900])

    def seconds(what: object) -> float:
        began = time.perf_counter()
        what()  # type: ignore[operator]
        return time.perf_counter() - began

    def measured() -> None:
        native.measure(rows, index, rows, index, massive, out, ulp=False, hashes=False)

    def hashed() -> None:
        native.hash_rows(rows, index)
        native.hash_rows(rows, index)

    ratios = [min(seconds(measured) for _ in range(5)) / min(seconds(hashed) for _ in range(5)) for _ in range(9)]
    assert_within("kernel_per_hash_time", float(np.median(ratios)))


@pytest.mark.skipif(not native.available(), reason="no C compiler was there when this was installed")
def test_products_of_bf16_rows_cost_no_more_than_a_few_passes_over_their_bytes() -> None:
    """Eight streams against 24, all in the cache. 1.6 with AVX-512 on a Xeon, 2.1 with AVX2."""
    bits = np.random.default_rng(0).standard_normal((32, 4, 4096), np.float32).view(np.uint32) >> 16
    streams = [native.Block(rows, DType.BF16) for rows in bits.astype(np.uint16)]
    products, index = native.Products(streams[:8], streams[8:]), np.arange(96)
    others = native.Block(np.concatenate([block.raw for block in streams[8:]]), DType.BF16)

    def seconds(what: Callable[[], object]) -> float:
        began = time.thread_time()
        for _ in range(5):
            what()
        return time.thread_time() - began

    def multiplied() -> None:
        products.of(0, 4)

    def hashed() -> None:
        native.hash_rows(others, index)

    ratios = [min(seconds(multiplied) for _ in range(5)) / min(seconds(hashed) for _ in range(5)) for _ in range(9)]
    assert_within("products_per_hash_time", float(np.median(ratios)))
