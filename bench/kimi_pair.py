"""The files that the speed benchmarks read: one request as a Kimi-K2.5-sized target computes it, in every layout.

``write(folder)`` makes a trace (``trace.h5``) and the training dump of the same tokens, as safetensors
(``hs_0.safetensors``), as a torch file (``data_0.pt``) and as two folders of SGLang's dumper (``sglang/left``,
``sglang/reference``). Values behave like a residual stream: massive channels, a massive first row, neighbouring
boundaries alike, and noise of other kernels between the sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Accepted, Phase, Probe
from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.writer import TraceWriter

Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]
LAYERS = 61


@dataclass(frozen=True)
class Shape:
    """tokens x slots x width; sweep: rows of a layer sweep in the trace, 0 for none. wiring: what training stored.

    The trace serves ``wiring[:-1]``, or with ``shifted`` the fault that this tool was made for, ``wiring[1:]``.
    """

    tokens: int = 1281
    width: int = 7168
    wiring: tuple[int, ...] = (0, 3, 31, 59)
    sweep: int = 0
    shifted: bool = False
    seed: int = 0

    @property
    def served(self) -> tuple[int, ...]:
        return self.wiring[1:] if self.shifted else self.wiring[:-1]

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """The request's tokens."""
        return np.random.default_rng((1, self.seed)).integers(5, 150_000, self.tokens)

    @property
    def side_bytes(self) -> int:
        return self.tokens * len(self.wiring) * self.width * 2


class Stream:
    """B(k) of one request, row block by row block, so that a file of any size can be written with little memory."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._seed = shape.seed

    def rows(self, boundary: int, start: int, stop: int) -> Floats:
        """B(boundary) of rows ``start..stop``, float32 ``[n, width]``: a sum of increments that depth weighs."""
        width = self._shape.width
        parts = [self._part(k, start, stop) for k in (0, 1, 2)]
        depth = boundary / LAYERS
        values = parts[0] * (1 - 0.6 * depth) + parts[1] * (3 * depth) + parts[2] * (5 * depth**2)
        if boundary > 1:
            values[:, [width // 5, width // 2]] += 40.0 + 60 * depth
        if start == 0:
            values[0] *= 50
        return values

    def _part(self, which: int, start: int, stop: int) -> Floats:
        rng = np.random.default_rng((self._seed, which, start))
        return rng.standard_normal((stop - start, self._shape.width), np.float32)

    def noisy(self, values: Floats, start: int, level: float = 0.004) -> Floats:
        """The same values as other kernels compute them."""
        rng = np.random.default_rng((self._seed, 99, start))
        noise = rng.standard_normal(values.shape, np.float32) * np.float32(level)
        return values * (1 + noise)


def to_bits(values: Floats) -> Bits:
    """float32 as bf16, to nearest even."""
    bits = values.view(np.uint32)
    rounded: Bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def write(folder: Path, shape: Shape, *, torch_files: bool = True, block: int = 256) -> None:
    """All files of one pair below ``folder``. torch_files: also the layouts that only torch can write."""
    folder.mkdir(parents=True, exist_ok=True)
    write_trace(folder / "trace.h5", shape, block)
    write_dump(folder / "hs_0.safetensors", shape, block)
    if torch_files:
        _write_torch(folder, shape.token_ids)


def write_dump(path: Path, shape: Shape, block: int = 256) -> None:
    """The training side in the layout of the vLLM connector: ``hidden_states [tokens, slots, width]``, token ids."""
    stream = Stream(shape)
    specs = {
        "hidden_states": ("bf16", (shape.tokens, len(shape.wiring), shape.width)),
        "token_ids": ("int64", (shape.tokens,)),
    }
    with SafetensorsWriter(path, specs, {}) as tensors:
        tensors["token_ids"][:] = shape.token_ids
        for start in range(0, shape.tokens, block):
            stop = min(start + block, shape.tokens)
            for slot, boundary in enumerate(shape.wiring):
                values = stream.noisy(stream.rows(boundary, start, stop), start)
                tensors["hidden_states"][start:stop, slot] = to_bits(values)


def write_trace(path: Path, shape: Shape, block: int = 256) -> None:
    """What the server computed: a complete trace of one prefill."""
    tokens, stream = shape.token_ids, Stream(shape)
    names = {f"aux/{i}": k for i, k in enumerate(shape.served)} | {"last": shape.wiring[-1]}
    sweep = {f"boundary/{k}": k for k in range(LAYERS + 1)} if shape.sweep else {}
    layout = TraceLayout(tuple(TensorSpec(name, shape.width, DType.BF16) for name in (*names, *sweep)))
    wiring = {"boundaries": list(shape.served), "source": "bench", "n": LAYERS, "last_norm": "pre"}
    about = {"wiring": wiring}
    with TraceWriter(path, layout, request_id="bench", about=about, prompt=tokens, overwrite=True) as writer:
        for start in range(0, shape.tokens, block):
            stop = min(start + block, shape.tokens)
            records = schema.records(
                schema.TARGET_ROW,
                stop - start,
                position=np.arange(start, stop),
                token_id=tokens[start:stop],
                phase=Phase.PREFILL,
                accepted=Accepted.ACCEPTED,
                live_rows=stop - start,
                padded_rows=stop - start,
            )
            made = {name: to_bits(stream.rows(k, start, stop)) for name, k in names.items()}
            swept = min(stop, shape.sweep) - start
            if swept > 0:
                made |= {name: to_bits(stream.rows(k, start, stop)[:swept]) for name, k in sweep.items()}
            writer.append_target(records, made)
            writer.flush()
        probes = [Probe(name, 1, 1, shape.tokens, 0) for name in names]
        writer.finish(complete=True, tokens=tokens, prompt_length=shape.tokens, probes=probes)


def _write_torch(folder: Path, tokens: npt.NDArray[np.int64]) -> None:
    """The dump as the torch file of speculators 0.3 and as SGLang dumper folders, with the tensors of both sides."""
    import torch

    from drafttrace.tracer.open import open_capture

    def tensors(path: Path) -> list[torch.Tensor]:
        capture = open_capture(str(path))
        assert capture.last is not None
        states = [*(slot.rows for slot in capture.slots), capture.last.rows]
        return [torch.from_numpy(np.array(s.raw(0, len(s)))).view(torch.bfloat16) for s in states]

    left, reference = tensors(folder / "trace.h5"), tensors(folder / "hs_0.safetensors")
    ids = torch.from_numpy(tokens)
    torch.save(
        {"input_ids": ids, "loss_mask": torch.ones_like(ids), "hidden_states": reference}, folder / "data_0.pt"
    )
    for side, held in (("left", left), ("reference", reference)):
        place = folder / "sglang" / side
        place.mkdir(parents=True, exist_ok=True)
        for index, tensor in enumerate(held):
            name = f"step=0___rank=0___dump_index={index + 1}___name=slot_{index}.pt"
            torch.save({"value": tensor, "meta": {"name": f"slot_{index}"}}, place / name)
