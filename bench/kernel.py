"""The row kernel against the speed at which this machine reads memory, and the locator's products against a GEMM."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bench.figures import Figure, median_ratio, paired, spread
from drafttrace.compare.kernels import blocks, native
from drafttrace.compare.kernels.pairs import cross_dots
from drafttrace.tracer.rows import DType

WIDTH = 7168
SIDE_BYTES = 512 << 20  # far larger than any cache
NOTHING = np.empty(0, np.int64)
MASSIVE = np.array([1433, 3584])


def speed(count: int, work: Callable[[], object]) -> float:
    """GB/s of a piece of work that reads ``count`` bytes."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began) / 1e9


def matrix(dtype: DType, rows: int, seed: int) -> npt.NDArray[np.generic]:
    """Finite, ordinary values in storage form: one block of random rows, repeated."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((64, WIDTH)).astype(np.float32)
    if dtype is DType.BF16:
        block: npt.NDArray[np.generic] = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype.storage == np.uint8:
        block = rng.integers(0x20, 0x40, values.shape).astype(np.uint8) | (values < 0).astype(np.uint8) << 7
    else:
        block = values.astype(dtype.storage)
    return np.tile(block, (rows // 64 + 1, 1))[:rows]


def kernel(
    left: npt.NDArray[np.generic],
    right: npt.NDArray[np.generic],
    dtype: DType,
    massive: npt.NDArray[np.int64],
    *,
    ulp: bool,
    hashes: bool,
    workers: int,
) -> Callable[[], object]:
    """All rows of both matrices, the rows shared among ``workers`` threads."""
    from concurrent.futures import ThreadPoolExecutor

    index = np.arange(len(left))
    out = native.Output.empty(len(left))
    sides = native.Block(left, dtype), native.Block(right, dtype)
    cuts = [len(left) * k // workers for k in range(workers + 1)]

    def part(k: int) -> None:
        span = slice(cuts[k], cuts[k + 1])
        native.measure(sides[0], index[span], sides[1], index[span], massive, out.part(span.start, span.stop),
                       ulp=ulp, hashes=hashes)  # fmt: skip

    def work() -> None:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(part, range(workers)))

    return work


def measure(runs: int) -> list[Figure]:
    """All figures of this group."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's idle threads would spin while others are measured
    import torch

    if not native.available():
        raise RuntimeError("there is no compiled kernel: install drafttrace where a C compiler is")
    torch.set_num_threads(blocks.threads())
    figures = []
    values = torch.ones(2 * SIDE_BYTES // 4)
    workers = blocks.threads()
    for dtype in (DType.BF16, DType.FP16, DType.FP32, DType.FP8_E4M3, DType.FP8_E5M2):
        rows = SIDE_BYTES // (WIDTH * dtype.storage.itemsize)
        left, right = matrix(dtype, rows, 0), matrix(dtype, rows, 1)
        size = left.nbytes + right.nbytes

        def timed(size: int = size, **more: object) -> Callable[[], float]:
            work = kernel(left, right, dtype, **more)  # type: ignore[arg-type]  # noqa: B023
            return lambda: speed(size, work)

        if dtype is DType.BF16:
            first = timed(massive=NOTHING, ulp=False, hashes=False, workers=workers)()
            figures.append(
                Figure("kernel", "bf16, first call / later ones", 0.0, None, True, "x", f"{first:.1f} GB/s")
            )
        kinds = {
            "plain measures": timed(massive=NOTHING, ulp=False, hashes=False, workers=workers),
            "with trimmed cosine": timed(massive=MASSIVE, ulp=False, hashes=False, workers=workers),
            "with trimmed cosine and hashes": timed(massive=MASSIVE, ulp=False, hashes=True, workers=workers),
            "everything, bf16 steps too": timed(massive=MASSIVE, ulp=True, hashes=True, workers=workers),
        }
        times = paired(runs, lambda: speed(2 * SIDE_BYTES, values.sum), *kinds.values())
        for name, found in zip(kinds, times[1:], strict=True):
            target = {"plain measures": 0.8, "with trimmed cosine": 0.5}.get(name)
            detail = f"{statistics.median(found):.1f} of {statistics.median(times[0]):.1f} GB/s"
            ratio = median_ratio(found, times[0])
            figures.append(Figure("kernel", f"{dtype}, {name} / torch.sum", ratio, target, True, "x", detail))
            if dtype is DType.BF16 and name == "plain measures":
                figures[0] = Figure("kernel", "bf16, first call / later ones", first / statistics.median(found), 0.5,
                                    True, "x", f"{first:.1f} GB/s")  # fmt: skip
        if dtype is DType.BF16:
            figures += _threads(runs, left, right, size)
            figures.append(_naive(runs, left, right, size, statistics.median(times[1])))
    figures += products(runs)
    return figures


def _threads(runs: int, left: npt.NDArray[np.generic], right: npt.NDArray[np.generic], size: int) -> list[Figure]:
    """Two threads against one, beside what torch.sum gains.

    Everything that a comparison asks for is arithmetic, and is held to the target. The plain measures alone wait for the
    memory, which one core nearly fills: nothing gains there what torch.sum does not, and they are only shown.
    """
    import torch

    figures = []
    values = torch.ones(2 * SIDE_BYTES // 4)

    def summed(threads: int) -> float:
        torch.set_num_threads(threads)
        return speed(2 * SIDE_BYTES, values.sum)

    rates = paired(runs, lambda: summed(1), lambda: summed(2))
    torch.set_num_threads(blocks.threads())
    machine = median_ratio(rates[1], rates[0])
    figures.append(Figure("kernel", "torch.sum, 2 threads / 1", machine, None, True, "x",
                          f"{statistics.median(rates[0]):.1f} GB/s with one"))  # fmt: skip
    for name, more, target in (("plain measures", False, None), ("everything", True, 1.7)):
        one, two = (
            kernel(left, right, DType.BF16, MASSIVE if more else NOTHING, ulp=more, hashes=more, workers=n)
            for n in (1, 2)
        )
        times = paired(runs, lambda work=one: speed(size, work), lambda work=two: speed(size, work))  # type: ignore[misc]
        detail = f"torch.sum {machine:.2f} x; one thread {spread(times[0], '{:.1f}')} GB/s"
        figures.append(Figure("kernel", f"bf16, {name}, 2 threads / 1", median_ratio(times[1], times[0]), target, True,
                              "x", detail))  # fmt: skip
    return figures


def _naive(
    runs: int, left: npt.NDArray[np.generic], right: npt.NDArray[np.generic], size: int, ours: float
) -> Figure:
    """torch's own cosine of bf16 rows."""
    import torch

    part = min(len(left), 2048)
    x, y = (torch.from_numpy(np.ascontiguousarray(s[:part])).view(torch.bfloat16) for s in (left, right))
    bytes_ = size * part // len(left)
    rates = [speed(bytes_, lambda: torch.nn.functional.cosine_similarity(x, y, dim=-1)) for _ in range(runs)]
    naive = statistics.median(rates)
    return Figure("kernel", "bf16, kernel / torch.cosine_similarity", ours / naive, None, True, "x",
                  f"{naive:.2f} GB/s in torch")  # fmt: skip


def products(runs: int) -> list[Figure]:
    """Slot x boundary over a layer sweep of 62 boundaries, per sampled row as it is stored, against a large matrix product.

    Many calls are timed as one: a call takes some milliseconds, and torch's idle threads keep a core busy about as long
    after a product of their own. A sweep is stored as bf16; float32 rows wait for twice the bytes, and are only shown.
    """
    import torch

    torch.set_num_threads(blocks.threads())
    streams, boundaries, rows = 8, 62, 36
    calls = 16
    work = 2 * streams * boundaries * rows * WIDTH * calls
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)

    def rate(count: float, what: Callable[[], object]) -> float:
        began = time.perf_counter()
        what()
        return count / (time.perf_counter() - began) / 1e9

    figures = []
    for dtype, target in ((DType.BF16, 0.4), (DType.FP32, None)):
        xs, ys = (
            [native.Block(matrix(dtype, rows, first + k), dtype) for k in range(n)]
            for first, n in ((0, streams), (streams, boundaries))
        )

        def ours(xs: list[native.Block] = xs, ys: list[native.Block] = ys) -> None:
            for _ in range(calls):
                cross_dots(xs, ys)

        times = paired(runs, lambda: rate(2 * 2048**3, lambda: a @ b), lambda: rate(work, ours))
        name = f"slots x 62 boundaries, {dtype} / GEMM 2048"
        detail = f"{statistics.median(times[1]):.0f} of {statistics.median(times[0]):.0f} GFLOP/s"
        figures.append(Figure("matrix", name, median_ratio(times[1], times[0]), target, True, "x", detail))
    return figures
