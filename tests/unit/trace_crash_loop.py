"""Writes one sample trace again and again, dying before the n-th write system call, and reads what is left.

Run by test_trace_crash.py in a process that has the crash library preloaded. Prints one JSON line.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import warnings
from pathlib import Path

import numpy as np
from trace_samples import PROMPT, ROUNDS, TOKENS, WIDE, draft_frame, expected, open_writer, target_frame

from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.trace.reader import read_trace

KILLED = 77


def write(path: Path, progress: mmap.mmap) -> None:
    """The sample; ``progress`` counts: 1 the writer is open, 1 + k after k flushes, 9 finished."""
    writer = open_writer(path, prompt=TOKENS[:PROMPT])
    progress[0] = 1
    for index in range(ROUNDS + 1):
        writer.append_target(*target_frame(index))
        writer.append_draft(*draft_frame(index))
        writer.flush()
        progress[0] += 1
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
        if not np.array_equal(slot.rows.raw(0, rows), expected(slot.name)[:rows]):
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


def main(folder: Path, library: str) -> None:
    crash = ctypes.CDLL(library)
    progress = mmap.mmap(-1, 1)
    problems: list[str] = []
    seen: set[int] = set()
    count = 0
    while True:
        path = folder / f"{count}.h5"
        progress[0] = 0
        child = os.fork()
        if child == 0:
            crash.die_before_write(ctypes.c_long(count))
            write(path, progress)
            crash.die_before_write(ctypes.c_long(-1))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, KILLED):
            problems.append(f"write {count}: the child ended with {code}")
        seen.add(progress[0])
        problem = check(path, progress[0]) if path.exists() else None
        if problem:
            problems.append(f"write {count}, progress {progress[0]}: {problem}")
        path.unlink(missing_ok=True)
        if code != KILLED:
            break
        count += 1
    print(json.dumps({"writes": count, "stages": sorted(seen), "problems": problems}))


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads of numpy
    main(Path(sys.argv[1]), sys.argv[2])
