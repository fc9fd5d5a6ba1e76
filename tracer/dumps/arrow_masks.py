"""The loss mask of a speculators sample: it lies only in the Arrow table beside the tensors.

pyarrow is optional. Without it the states can still be compared; only the mask is missing, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Ints
from drafttrace.tracer.dumps.arrow_stream import Batch, batches_of
from drafttrace.tracer.errors import DrafttraceError

_NUMBER = re.compile(r"(\d+)$")


def mask_for(sample: Path, tokens: Ints) -> tuple[Ints | None, Path | None, str]:
    """The mask of the Arrow row whose input_ids are ``tokens``: ``(mask, folder, note)``.

    The row with the sample's number is tried first, then every row (a split may start at another row). Mask and
    folder are None where there are none; the note says why, or is empty.
    """
    folder = next((where for where in (sample.parent, sample.parent.parent) if _arrow_files(where)), None)
    if folder is None:
        return None, None, "no loss mask: no Arrow table stands beside the file"
    try:
        import pyarrow as pa
    except ImportError:
        return None, folder, "no loss mask: it lies in the Arrow table, and pyarrow is not installed"
    try:
        number = _NUMBER.search(sample.stem)
        mask, where = _find(folder, tokens, int(number[1]) if number else -1)
    except (pa.ArrowException, DrafttraceError, OSError, KeyError, ValueError, TypeError) as error:
        return None, folder, f"no loss mask: the Arrow table cannot be read ({type(error).__name__})"
    if mask is None:
        return None, folder, "no loss mask: no row of the Arrow table has the token ids of this file"
    expected = int(number[1]) if number else -1
    note = "" if where == expected else f"the Arrow row with these token ids is {where}, not {expected}"
    return mask, folder, note


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    return _listed(folder, folder.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _listed(folder: Path, _modified: int) -> tuple[Path, ...]:
    """Listed once per state of the folder: it may hold ten thousand samples."""
    return tuple(sorted(folder.glob("*.arrow")))


def _find(folder: Path, tokens: Ints, number: int) -> tuple[Ints | None, int]:
    """The mask and number of the row with these tokens. Batches are read one by one, that of row ``number`` first."""
    batches = _table(folder)
    starts = np.concatenate([[0], np.cumsum([batch.rows for batch in batches])]).tolist()
    if 0 <= number < starts[-1]:
        part = int(np.searchsorted(starts, number, side="right")) - 1
        found = _mask_in(batches[part], tokens, [number - starts[part]])
        if found is not None:
            return found[0], number
    for part, batch in enumerate(batches):
        found = _mask_in(batch, tokens, range(batch.rows))
        if found is not None:
            return found[0], starts[part] + found[1]
    return None, -1


def _mask_in(batch: Batch, tokens: Ints, rows: Iterable[int]) -> tuple[Ints, int] | None:
    columns = _columns(batch)
    ids, masks = columns.column("input_ids"), columns.column("loss_mask")
    for row in rows:
        held = ids[row].values
        if held is not None and len(held) == len(tokens) and np.array_equal(_numbers(held), tokens):
            return _numbers(masks[row].values).astype(np.int64), row
    return None


@lru_cache(maxsize=2)
def _columns(batch: Batch) -> Any:
    """Both columns of a batch. Arrow aborts the process where it follows damaged offsets, so they are checked first."""
    columns = batch.read().select(["input_ids", "loss_mask"])
    columns.validate(full=True)
    if columns.num_rows != batch.rows:
        raise ValueError("a batch has another number of rows than its head says")
    return columns


def _numbers(values: Any) -> npt.NDArray[Any]:
    """An Arrow array of numbers. ``np.asarray`` would do, but makes pyarrow import pandas, half a second."""
    name = str(values.type)
    if name not in {"int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"} or values.null_count:
        return np.array(values.to_pylist(), np.int64)
    flat: npt.NDArray[Any] = np.frombuffer(values.buffers()[1], np.dtype(name))
    return flat[values.offset : values.offset + len(values)]


def _table(folder: Path) -> list[Batch]:
    """The record batches of every ``*.arrow`` of the folder; nothing of their content is read yet."""
    files = _arrow_files(folder)
    stamps = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return _batches(stamps)


@lru_cache(maxsize=4)
def _batches(stamps: tuple[tuple[str, int, int], ...]) -> list[Batch]:
    return [batch for name, _size, _modified in stamps for batch in batches_of(Path(name))]
