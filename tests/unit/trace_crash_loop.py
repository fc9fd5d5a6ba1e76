"""Writes one sample trace again and again, each time with another fault, and reads what is left.

Run by test_trace_crash.py in a process that has the faulty disk preloaded. Prints one JSON line.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import sys
import warnings
from pathlib import Path

import numpy as np
from trace_samples import PROMPT, TOKENS, WIDE, draft_frame, expected, open_writer, target_frame

from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.trace import layout, sides
from drafttrace.tracer.trace.reader import read_trace

KILLED = 77
REFUSED = 78
FULL = "the disk is full"


def capacity(turn: int) -> int:
    """Bytes of the full disk: none, too few to begin, and then 8 KiB more each turn around what a trace takes."""
    return (turn << 19) if turn < 3 else (1 << 20) + ((turn - 2) << 13)


ROUNDS = 1


def write(path: Path, progress: mmap.mmap) -> None:
    """The sample; ``progress`` counts: 1 the writer is open, 1 + k after k flushes, 9 finished."""
    writer = open_writer(path, prompt=TOKENS[:PROMPT])
    progress[0] = 1
    try:
        for index in range(ROUNDS + 1):
            writer.append_target(*target_frame(index))
            writer.append_draft(*draft_frame(index))
            writer.flush()
            progress[0] += 1
    except OSError:
        writer.finish(complete=False, tokens=TOKENS, about={"request": {"text": "y" * 5000}}, reason=FULL)
        raise
    writer.finish(complete=True, tokens=TOKENS, about={"request": {"text": "x" * 5000}})
    progress[0] = 9


def check(path: Path, progress: int) -> str | None:
    """What is wrong with the file that a writer left at ``progress``; None where nothing is."""
    try:
        capture = read_trace(path)
    except DrafttraceError as error:
        return None if progress == 0 else f"unreadable: {error}"
    if progress == 0:  # before the writer was open nothing is promised but a sentence
        return None if len(capture.table) == 0 and not capture.complete else "rows out of nothing"
    flushed = min(progress - 1, ROUNDS + 1)
    rows = len(capture.table)
    if rows < (PROMPT + WIDE * (flushed - 1) if flushed > 0 else 0):
        return f"only {rows} rows after {flushed} flushes"
    for slot in capture.slots:
        if not np.array_equal(slot.rows.raw(0, rows), expected(slot.name, ROUNDS)[:rows]):
            return f"{slot.name} has other values"
    draft = capture.draft
    if draft is None or len(draft.table) > rows or not draft.present["fc_in"].all():
        return "the draft is not whole"
    if capture.complete and (rows != PROMPT + ROUNDS * WIDE or len(capture.tokens) != len(TOKENS)):
        return "it says complete and is not"
    known = capture.tokens[: len(TOKENS)]
    if len(known) < PROMPT or not np.array_equal(known, TOKENS[: len(known)]):
        return f"the tokens are {known}"
    if capture.wiring != (2, 30, 58):
        return "the wiring is lost"
    return None


def attempt(path: Path, progress: mmap.mmap, disk: ctypes.CDLL, turn: int, full: bool) -> None:
    """In the child: writes until the fault, and ends as a process ends that goes on living after it."""
    code = 0
    disk.fault_at(ctypes.c_long(capacity(turn) if full else turn), int(full))
    try:
        write(path, progress)
    except (OSError, DrafttraceError) as error:
        assert "cannot be written" in str(error) and "No space left" in str(error), error
        code = REFUSED
    gc.collect()
    # Where not even an empty file can be made, HDF5 says so and is well.
    assert disk.refused_writes() == 0 or turn == 0, "HDF5 met the end of the disk"
    disk.fault_at(ctypes.c_long(-1), 0)
    sys.exit(code)


def main(folder: Path, library: str, full: bool) -> None:
    disk = ctypes.CDLL(library)
    progress = mmap.mmap(-1, 1)
    problems: list[str] = []
    seen: set[int] = set()
    for turn in range(1000):
        path = folder / f"{turn}.h5"
        progress[0] = 0
        child = os.fork()
        if child == 0:
            attempt(path, progress, disk, turn, full)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, REFUSED if full else KILLED):
            problems.append(f"turn {turn}: the child ended with {code}")
        seen.add(progress[0])
        problem = check(path, progress[0]) if path.exists() else None
        if code == REFUSED and progress[0] and FULL not in read_trace(path).notes[0]:
            problem = "the reason is not in the trace"
        if problem:
            problems.append(f"turn {turn}, progress {progress[0]}: {problem}")
        path.unlink(missing_ok=True)
        if code == 0 or len(problems) > 5:
            break
    print(json.dumps({"turns": turn, "stages": sorted(seen), "problems": problems}))


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads of numpy
    if "small chunks" in sys.argv[3]:
        sides.TABLE_CHUNK = layout._CHUNK_ROWS = 8
        layout._CHUNK_LEAST = 1
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "full")
