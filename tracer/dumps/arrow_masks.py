"""The loss mask of a speculators sample: it lies only in the Arrow table beside the tensors.

pyarrow is optional. Without it the states can still be compared; only the mask is missing, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Ints
from drafttrace.tracer.dumps import mask_entries
from drafttrace.tracer.dumps.arrow_stream import Batch, batches_of
from drafttrace.tracer.errors import DrafttraceError

Weights = npt.NDArray[Any]  # whole numbers, or float64 as they are stored
_NUMBER = re.compile(r"(\d+)$")


class _NoMask(Exception):
    """The row of a sample has something that is no mask. The text completes "no loss mask: "."""


def mask_for(sample: Path, tokens: Ints) -> tuple[Ints | None, Path | None, str]:
    """The mask of the Arrow row whose input_ids are ``tokens``: ``(mask, folder, note)``.

    The row with the sample's number is tried first, then every row (a split may start at another row). Mask and
    folder are None where there are none; the note says why, or is empty.
    """
    folder = next((where for where in (sample.parent, sample.parent.parent) if _arrow_files(where)), None)
    if folder is None:
        return None, None, "no loss mask: no Arrow table stands beside the file"
    try:
        import pyarrow  # noqa: F401 - whether it is there
    except ImportError:
        return None, folder, "no loss mask: it lies in the Arrow table, and pyarrow is not installed"
    number = _NUMBER.search(sample.stem)
    expected = int(number[1]) if number else -1
    try:
        found, unread = _find(folder, tokens, expected)
    except _NoMask as error:
        return None, folder, f"no loss mask: {error}"
    except (DrafttraceError, OSError) as error:
        return None, folder, f"no loss mask: the Arrow table cannot be read ({error})"
    said = f" ({', '.join(f'{name} cannot be read: {why}' for name, why in unread.items())})" if unread else ""
    if not found:
        if unread:
            return (
                None,
                folder,
                f"no loss mask: no readable row of the Arrow table has the token ids of this file{said}",
            )
        return None, folder, "no loss mask: no row of the Arrow table has the token ids of this file"
    if any(not np.array_equal(mask, found[0][0]) for mask, _where in found):
        rows = ", ".join(str(where) for _mask, where in found[:5] if where < _UNCOUNTED)
        rows = f"rows {rows}{', ...' if len(found) > 5 else ''}" if rows else f"{len(found)} rows"
        return (
            None,
            folder,
            f"no loss mask: {rows} of the Arrow table have these token ids, and different masks{said}",
        )
    weights, where = found[0]
    notes = [] if where == expected else [_told(where, expected) + said]
    notes += mask_entries.weights_told(weights)
    return mask_entries.counted(weights), folder, "; ".join(notes)


def other_columns(folder: Path) -> dict[str, str]:
    """The columns of an Arrow table that are neither token ids nor mask nor length, with the type of those of numbers, and
    "" for texts and the rest. Empty without pyarrow, and where no file can be read: :func:`mask_for` says that."""
    try:
        import pyarrow  # noqa: F401 - whether it is there

        files = _arrow_files(folder)
    except (ImportError, OSError):
        return {}
    batches = next((held for path in files if (held := _readable(path, {}))), [])
    try:
        return dict(_schema(batches[0])) if batches else {}
    except (DrafttraceError, OSError, ValueError):  # pyarrow's errors are ValueErrors and OSErrors
        return {}


@lru_cache(maxsize=8)
def _schema(batch: Batch) -> tuple[tuple[str, str], ...]:
    types = [(str(field.name), str(field.type)) for field in batch.schema()]
    return tuple(
        (name, kind if _LISTS.fullmatch(kind) and name != "position_ids" else "")
        for name, kind in types
        if name not in _OWN_COLUMNS
    )


_OWN_COLUMNS = frozenset({"input_ids", "loss_mask", "seq_len", "attention_mask"})
# Lists of numbers, lists of those included: what a trainer reads beside the tokens.
_LISTS = re.compile(r"(?:\w*list<\w+: )+(?:u?int\d+|float|double|halffloat|bool)(?: not null)?(?:>(?:\[\d+\])?)+")


def _told(where: int, expected: int) -> str:
    """That the row of a sample is not the one with its number."""
    if where >= _UNCOUNTED:
        return (
            "the mask is that of the one Arrow row with these token ids; its number is not known, for a file before it "
            "cannot be counted"
        )
    return f"the Arrow row with these token ids is {where}" + (f", not {expected}" if expected >= 0 else "")


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    return _listed(folder, folder.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _listed(folder: Path, _modified: int) -> tuple[Path, ...]:
    """Listed once per state of the folder: it may hold ten thousand samples."""
    return tuple(sorted(folder.glob("*.arrow")))


def _find(folder: Path, tokens: Ints, number: int) -> tuple[list[tuple[Weights, int]], dict[str, str]]:
    """Mask and number of every row with these tokens, of row ``number`` alone where it is one; and the files that cannot
    be read, with why. Batches are read one by one, that of row ``number`` first. After a file whose rows nobody can count
    the numbers are unknown: no row is taken by its number there."""
    unread: dict[str, str] = {}
    batches: list[tuple[Batch, int, Path]] = []
    start = 0
    for path in _arrow_files(folder):
        held = _readable(path, unread)
        if path.name in unread:
            start = _UNCOUNTED if not held else start
        for batch in held:
            batches.append((batch, start, path))
            start += batch.rows
    found: list[tuple[Weights, int]] = []
    for batch, start, path in batches:
        if start <= number < min(_UNCOUNTED, start + batch.rows):
            found = _masks_in(batch, tokens, [number - start], start, path, unread)
    if found:
        return found, unread
    for batch, start, path in batches:
        if path.name not in unread:
            found += _masks_in(batch, tokens, range(batch.rows), start, path, unread)
    return found, unread


# Where the numbers begin after a file whose rows cannot be counted: no sample has one so high.
_UNCOUNTED = 1 << 40


def _readable(path: Path, unread: dict[str, str]) -> list[Batch]:
    """The batches of one file; none, and why, where it is damaged: the others are of use all the same."""
    try:
        stat = path.stat()
        return _batches(str(path), stat.st_size, stat.st_mtime_ns)
    except (DrafttraceError, OSError, ValueError) as error:
        unread[path.name] = str(error).rstrip(".") or type(error).__name__
        return []


def _masks_in(
    batch: Batch, tokens: Ints, rows: Iterable[int], start: int, path: Path, unread: dict[str, str]
) -> list[tuple[Weights, int]]:
    import pyarrow as pa

    try:
        return [(mask, start + row) for mask, row in _mask_in(batch, tokens, rows, start)]
    except _NoMask:
        raise
    except KeyError:
        unread[path.name] = "it has no columns input_ids and loss_mask"
    except (pa.ArrowException, DrafttraceError, OSError, ValueError, TypeError) as error:
        unread[path.name] = str(error).strip().split("\n")[0][:100].rstrip(".") or type(error).__name__
    return []


def _mask_in(batch: Batch, tokens: Ints, rows: Iterable[int], start: int) -> Iterator[tuple[Weights, int]]:
    columns = _columns(batch)
    ids, masks = columns.column("input_ids"), columns.column("loss_mask")
    for row in rows:
        held = getattr(ids[row], "values", None)  # a column may be of nulls or of numbers
        if held is not None and len(held) == len(tokens) and np.array_equal(_numbers(held), tokens):
            yield _weights(masks[row], start + row), row


def _weights(scalar: Any, row: int) -> Weights:
    """The entries of a mask, also where they lie in a batch of one. Raises _NoMask for what says of no token whether it
    counts: nothing, an entry that is nothing, a list of lists, and numbers that are none."""
    which = f"row {row}" if row < _UNCOUNTED else "the row"
    what = f"{which} of the Arrow table has these token ids, and its loss_mask"
    held = getattr(scalar, "values", None)
    while held is not None and "list<" in str(held.type) and len(held) == 1:
        scalar, held = held[0], held[0].values
    if held is None:
        raise _NoMask(f"{what} is {'no list' if scalar.is_valid else 'null'}")
    if held.null_count:
        entries = "1 entry" if held.null_count == 1 else f"{held.null_count:,} entries"
        raise _NoMask(f"{what} holds null for {entries}")
    kind = str(held.type)
    if not re.fullmatch(r"u?int\d+|float|double|halffloat|bool", kind):
        raise _NoMask(f"{what} holds entries of the type {kind[:60]}, no numbers")
    if kind in _WHOLE:
        return _numbers(held).astype(np.int64)
    values = np.array(held.to_pylist(), np.float64)
    if not np.isfinite(values).all():
        raise _NoMask(f"{what} holds {values[~np.isfinite(values)][0]}, which weights no token")
    return values


_WHOLE = frozenset({"int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"})


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
    if name not in _WHOLE or values.null_count:
        return np.array(values.to_pylist(), np.int64)
    flat: npt.NDArray[Any] = np.frombuffer(values.buffers()[1], np.dtype(name))
    return flat[values.offset : values.offset + len(values)]


@lru_cache(maxsize=1024)
def _batches(path: str, _size: int, _modified: int) -> list[Batch]:
    """The record batches of a file; nothing of their content is read yet."""
    return batches_of(Path(path))
