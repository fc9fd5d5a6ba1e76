"""Names, numbers and row records of the trace file. What stands here is on disk: add, never rename or renumber."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = "drafttrace.trace"
FORMAT_VERSION = 1

# What the file is built from. HDF5 1.10 reads it; SWMR needs at least this.
LIBVER = ("v110", "v110")

TARGET_ROWS = "target/rows"
DRAFT_ROWS = "draft/rows"
TOKENS = "tokens/ids"
PROMPT_LENGTH = "tokens/prompt_length"
PROBES = "probes"
ABOUT = "about"
LAYOUT = "about/layout"
RANKS = "ranks"
SUMMARY = "summary"
PADDING = "padding"

# /target/sums and /draft/sums: what every row adds up to, see trace.sums. Older traces have none.
SUMS = "sums"
ROWS = "rows"

# Attributes of /
ATTR_FORMAT = "format"
ATTR_VERSION = "format_version"
ATTR_COMPLETE = "complete"
ATTR_REASON = "incomplete_reason"
ATTR_CREATED = "created_utc"
ATTR_TOOL = "tool_version"
ATTR_REQUEST = "request_id"

# Attribute of both row tables: the tensor names of the bits of `present`, lowest bit first, as a JSON list.
ATTR_PRESENT = "present_bits"
# Attribute of every tensor: the value of rows.DType, or int32 / int64.
ATTR_DTYPE = "dtype"
# Attribute of /ranks/{r}/hashes: the tensor names of its columns, as a JSON list.
ATTR_HASHED = "hashed"
# Attribute of both tables of sums: what its columns sum up, "rows" and tensor names, as a JSON list.
ATTR_SUMMED = "summed"

MAX_PRESENT_BITS = 32

# Values of the field `graph`
EAGER = 0
GRAPH_REPLAY = 1

# Values of the field `source`: where a row was read
SOURCE_HOOK = 0
SOURCE_GRAPH_BUFFER = 1
SOURCE_PYTHON_SEAM = 2

Records = npt.NDArray[np.void]

TARGET_ROW = np.dtype(
    [
        ("position", "<i8"),
        ("token_id", "<i8"),
        ("phase", "u1"),  # capture.Phase
        ("round", "<i4"),
        ("accepted", "u1"),  # capture.Accepted
        ("frame", "<i4"),
        ("graph", "u1"),
        ("source", "u1"),
        ("live_rows", "<i4"),  # rows of the whole batch that belong to a request
        ("padded_rows", "<i4"),  # rows of the batch after padding
        ("cached_prefix", "<i4"),  # tokens of the request that the prefix cache supplied
        ("rank", "<i2"),
        ("present", "<u4"),  # which tensors exist for this row, see ATTR_PRESENT
    ]
)
DRAFT_ROW = np.dtype([*TARGET_ROW.descr, ("step", "<i4")])
RANK_ROW = np.dtype(
    [
        ("position", "<i8"),
        ("token_id", "<i8"),
        ("phase", "u1"),
        ("round", "<i4"),
        ("frame", "<i4"),
        ("step", "<i4"),
    ]
)
PADDED = np.dtype(
    [
        ("frame", "<i4"),
        ("tap", "S32"),
        ("hash", "<u8"),  # row_hash.row_hashes of the first padding row, in storage form and in the tensor's width
    ]
)
PROBE_FIELDS = ("expected", "fired", "rows", "dropped")
PROBE = np.dtype([("name", "S96"), *((field, "<i8") for field in PROBE_FIELDS)])

# What a field means where a caller (or an older file) does not have it.
DEFAULTS: dict[str, int] = {
    "position": -1,
    "token_id": -1,
    "phase": 0,
    "round": -1,
    "accepted": 2,  # capture.Accepted.UNKNOWN
    "frame": 0,
    "graph": EAGER,
    "source": SOURCE_HOOK,
    "live_rows": 0,
    "padded_rows": 0,
    "cached_prefix": 0,
    "rank": 0,
    "present": 0,
    "step": -1,
}


def records(dtype: np.dtype[np.void], count: int, **fields: Any) -> Records:
    """``count`` records of TARGET_ROW, DRAFT_ROW, RANK_ROW or PADDED; fields that are not given have their defaults.

    A field is a number for all records or an array ``[count]``. Raises ValueError for an unknown field.
    """
    names = dtype.names or ()
    unknown = sorted(set(fields) - set(names))
    if unknown:
        raise ValueError(f"no such row field: {', '.join(unknown)}; known are {', '.join(names)}")
    rows = np.zeros(count, dtype)
    for name in names:
        rows[name] = fields.get(name, DEFAULTS.get(name, 0))
    return rows


def adopt(rows: Records, dtype: np.dtype[np.void]) -> Records:
    """Records of another (older or newer) version as ``dtype``: by field name, defaults where one is missing."""
    if rows.dtype == dtype:
        return rows
    have = set(rows.dtype.names or ())
    return records(dtype, len(rows), **{name: rows[name] for name in dtype.names or () if name in have})
