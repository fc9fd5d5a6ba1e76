"""What a trace will hold. Declared before the first row, because SWMR forbids new datasets later."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace.schema import MAX_PRESENT_BITS

IdType = Literal["int32", "int64"]

_TARGET_NAME = re.compile(r"aux/\d+|embed|last|boundary/\d+")
_DRAFT_NAME = re.compile(r"hidden_in|fc_in|fc_out|embed_in|hidden_out|topk/draft_ids|topk/ids|topk/logits")
_ID_NAMES = ("topk/draft_ids", "topk/ids")

_CHUNK_BYTES = 1 << 20  # large enough that a prefill is written at the speed of the disk
_CHUNK_LEAST = 1 << 14
_CHUNK_ROWS = 64  # small enough that a short trace, or a sweep over its first rows, does not hold empty space


@dataclass(frozen=True)
class TensorSpec:
    """One dataset ``[rows, width]``. dtype: a :class:`DType`, or ``int32`` / ``int64`` for token ids."""

    name: str
    width: int
    dtype: DType | IdType

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"the tensor {self.name} has the width {self.width}; it must be 1 or more")
        if not isinstance(self.dtype, DType) and self.dtype not in ("int32", "int64"):
            raise ValueError(f"the tensor {self.name} has the dtype {self.dtype!r}; use a DType, int32 or int64")

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """The numpy dtype of the arrays that the writer takes and the reader hands out."""
        return self.dtype.storage if isinstance(self.dtype, DType) else np.dtype(self.dtype)

    @cached_property
    def row_bytes(self) -> int:
        return self.width * self.storage.itemsize

    @cached_property
    def chunk_rows(self) -> int:
        """Rows of one HDF5 chunk: at most 1 MiB, and no more than 64 where these fill 16 KiB."""
        return max(1, min(max(_CHUNK_ROWS, _CHUNK_LEAST // self.row_bytes), _CHUNK_BYTES // self.row_bytes))

    def growth(self, start: int, stop: int) -> int:
        """Bytes that a file grows by when the tensor grows from ``start`` to ``stop`` rows, chunks and index."""
        chunks = -(-stop // self.chunk_rows) - -(-start // self.chunk_rows)
        return chunks * (self.chunk_rows * self.row_bytes + 64)

    @cached_property
    def is_boundary(self) -> bool:
        """Boundaries of a layer sweep may cover only the first rows of the table; they have no present bit."""
        return self.name.startswith("boundary/")


@dataclass(frozen=True)
class TraceLayout:
    """The tensors of the target and of the draft, and the ranks that report row hashes.

    Target names: ``aux/{i}``, ``embed``, ``last``, ``boundary/{k}``. Draft names: ``hidden_in``, ``fc_in``,
    ``fc_out``, ``embed_in``, ``hidden_out``, ``topk/draft_ids``, ``topk/ids``, ``topk/logits``. Without draft
    tensors there may still be draft rows. ``hashed`` names the columns of ``/ranks/{r}/hashes``.
    Raises ValueError for a name that is unknown or given twice, and for more than 32 tensors with present bits.
    """

    target: tuple[TensorSpec, ...] = ()
    draft: tuple[TensorSpec, ...] = ()
    ranks: tuple[int, ...] = ()
    hashed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for side, specs, pattern in (("target", self.target, _TARGET_NAME), ("draft", self.draft, _DRAFT_NAME)):
            names = [spec.name for spec in specs]
            for spec in specs:
                name = spec.name
                if isinstance(spec.dtype, DType) is (name in _ID_NAMES):
                    raise ValueError(f"the {side} tensor {name} cannot have the dtype {spec.dtype}")
                if not pattern.fullmatch(name):
                    raise ValueError(f"'{name}' is no {side} tensor of a trace")
                if names.count(name) > 1:
                    raise ValueError(f"the {side} tensor {name} is declared twice")
            if len(present_names(specs)) > MAX_PRESENT_BITS:
                raise ValueError(f"more than {MAX_PRESENT_BITS} {side} tensors: the present field has no more bits")
        if self.ranks and not self.hashed:
            raise ValueError("ranks are declared but no tensor is named to be hashed")

    def to_json(self) -> str:
        """The text stored as ``/about/layout``."""
        sides = {"target": self.target, "draft": self.draft}
        data: dict[str, Any] = {
            side: [{"name": s.name, "width": s.width, "dtype": str(s.dtype)} for s in specs]
            for side, specs in sides.items()
        }
        return json.dumps(data | {"ranks": list(self.ranks), "hashed": list(self.hashed)})

    @staticmethod
    def from_json(text: str) -> TraceLayout:
        """The layout that :meth:`to_json` wrote. Raises ValueError (also KeyError, TypeError) for anything else."""
        data = json.loads(text)

        def specs(side: str) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(s["name"], int(s["width"]), _dtype(s["dtype"])) for s in data[side])

        return TraceLayout(specs("target"), specs("draft"), tuple(data["ranks"]), tuple(data["hashed"]))


def _dtype(text: str) -> DType | IdType:
    if text == "int32":
        return "int32"
    return "int64" if text == "int64" else DType(text)


def present_names(specs: tuple[TensorSpec, ...]) -> tuple[str, ...]:
    """The tensor names of the bits of ``present``, lowest bit first."""
    return tuple(spec.name for spec in specs if not spec.is_boundary)
