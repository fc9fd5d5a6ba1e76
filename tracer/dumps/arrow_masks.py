"""The loss mask of a speculators sample: it lies only in the Arrow table beside the tensors.

pyarrow is optional. Without it the states can still be compared; only the mask is missing, and that is said.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Ints

_NUMBER = re.compile(r"(\d+)$")


def mask_for(sample: Path, tokens: Ints) -> tuple[Ints | None, Path | None, str]:
    """The mask of the Arrow row whose input_ids are ``tokens``: ``(mask, folder, note)``.

    The row with the sample's number is tried first, then every row (a split may start at another row). Mask and
    folder are None where there are none; the note says why, or is empty.
    """
    folder = next((where for where in (sample.parent, sample.parent.parent) if any(where.glob("*.arrow"))), None)
    if folder is None:
        return None, None, "no loss mask: no Arrow table stands beside the file"
    try:
        import pyarrow as pa
    except ImportError:
        return None, folder, "no loss mask: it lies in the Arrow table, and pyarrow is not installed"
    try:
        number = _NUMBER.search(sample.stem)
        mask, where = _find(folder, tokens, int(number[1]) if number else -1)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        return None, folder, f"no loss mask: the Arrow table cannot be read ({type(error).__name__})"
    if mask is None:
        return None, folder, "no loss mask: no row of the Arrow table has the token ids of this file"
    expected = int(number[1]) if number else -1
    note = "" if where == expected else f"the Arrow row with these token ids is {where}, not {expected}"
    return mask, folder, note


def _find(folder: Path, tokens: Ints, number: int) -> tuple[Ints | None, int]:
    batches = _table(folder)
    lengths = [batch.num_rows for batch in batches]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    order = [number] if 0 <= number < starts[-1] else []
    for row in [*order, *range(int(starts[-1]))]:
        part = int(np.searchsorted(starts, row, side="right")) - 1
        batch, local = batches[part], row - int(starts[part])
        ids = batch.column("input_ids")[local].values
        if ids is not None and len(ids) == len(tokens) and np.array_equal(np.asarray(ids), tokens):
            values = batch.column("loss_mask")[local].values
            return np.asarray(values).astype(np.int64), row
    return None, -1


@lru_cache(maxsize=4)
def _table(folder: Path) -> list[Any]:
    """The record batches of every ``*.arrow`` of the folder, memory-mapped (a stream, as `datasets` writes it)."""
    import pyarrow as pa

    batches: list[Any] = []
    for path in sorted(folder.glob("*.arrow")):
        source = pa.memory_map(str(path))
        try:
            reader = pa.ipc.open_stream(source)
            batches.extend(reader)
        except pa.ArrowInvalid:
            source.seek(0)
            file = pa.ipc.open_file(source)
            batches.extend(file.get_batch(k) for k in range(file.num_record_batches))
    return batches
