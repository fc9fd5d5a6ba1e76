"""Writers that die, disks that fill up, readers that look while a writer writes: what was flushed is there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from trace_samples import LAYOUT, PROMPT, ROUNDS, TOKENS, WIDE, H, bits, expected, open_writer, target_frame
from trace_samples import write_sample as write

from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.reader import read_trace
from drafttrace.tracer.trace.summary import trace_summary

HERE = Path(__file__).parent

# Preloaded. Mode 0: the process dies before the n-th call that changes a file. Mode 1: the disk has n bytes, so writes
# behind what was reserved before fail. Mode 2: every write takes n milliseconds. Files in memory (another device) are
# left alone.
FAULTY_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static long left = -1, capacity = -1, slow = -1, refusals = 0;
static dev_t disk = 0;

void fault_at(long count, int mode) {
    left = mode == 0 ? count : -1;
    capacity = mode == 1 ? count : -1;
    slow = mode == 2 ? count : -1;
    disk = 0;
    refusals = 0;
}

long refused_writes(void) { return refusals; }

static int on_disk(int fd) {
    struct stat about;
    if (fstat(fd, &about)) return 0;
    if (!disk) disk = about.st_dev;
    return about.st_dev == disk;
}

static int fits(int fd, off64_t end) {
    if (left < 0 && capacity < 0) return 1;
    if (!on_disk(fd)) return 1;
    if (left >= 0 && left-- == 0) _exit(77);
    return capacity < 0 || end <= capacity;
}

int fallocate(int fd, int mode, off64_t at, off64_t size) {
    static int (*real)(int, int, off64_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "fallocate64");
    if (!fits(fd, at + size)) { errno = ENOSPC; return -1; }
    return real(fd, mode, at, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    if (!fits(fd, at + size)) { refusals++; errno = ENOSPC; return -1; }
    if (slow > 0) usleep(1000 * slow);
    return real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

int ftruncate64(int fd, off64_t size) {
    static int (*real)(int, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "ftruncate64");
    fits(fd, 0);
    return real(fd, size);
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
"""

ENDLESS_WRITER = """
import sys
import numpy as np
from pathlib import Path
from trace_samples import *
writer = open_writer(Path(sys.argv[1]), prompt=TOKENS[:PROMPT])
tokens = np.random.default_rng(0).integers(0, 1000, 100_000)
index = 0
while True:
    position = np.arange(2 * index, 2 * index + WIDE)
    rows = schema.records(
        schema.TARGET_ROW, WIDE, position=position, token_id=position % 1000, round=index, frame=index,
        phase=Phase.VERIFY, accepted=np.where(np.arange(WIDE) < 2, Accepted.ACCEPTED, Accepted.REJECTED),
    )
    values = np.full((WIDE, H), index % 60000, np.uint16)
    writer.append_target(rows, {spec.name: values for spec in LAYOUT.target})
    writer.flush()
    index += 1
    print(index, flush=True)
"""


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A trace and the process that writes frame after frame into it: frame f holds the number f everywhere."""
    path = tmp_path / "live.h5"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS_WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield path, process
    finally:
        process.kill()
        process.wait()


def last_frame(process: subprocess.Popen[str], least: int) -> int:
    """Reads what the writer printed until it is at frame ``least``."""
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= least:
            return int(line)
    raise AssertionError("the writer ended")


def check_frames(path: Path) -> int:
    """Every row that is there holds its frame's number in every tensor; gives the number of frames."""
    capture = read_trace(path)
    frames = capture.table.frame
    assert len(frames) % WIDE == 0 and np.array_equal(frames, np.arange(len(frames)) // WIDE)
    for slot in capture.slots:
        assert np.array_equal(slot.rows.raw(0, len(frames)), np.repeat(frames % 60000, H).reshape(-1, H))
    return len(frames) // WIDE


def test_sigkill_in_the_middle_keeps_every_flushed_frame(endless: tuple[Path, subprocess.Popen[str]]) -> None:
    path, process = endless
    last_frame(process, 300)
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    flushed = max(int(line) for line in process.stdout.read().split() or ["300"])
    process.wait()
    size = path.stat().st_size
    assert check_frames(path) >= flushed >= 300
    assert path.stat().st_size == size  # reading repairs nothing in the file
    capture = read_trace(path)
    assert not capture.complete and "killed" in capture.notes[0]
    # The prompt was given; the rest comes out of the accepted rows.
    rows = capture.table.position[capture.table.accepted == 1]
    assert len(capture.tokens) == rows.max() + 1
    assert capture.tokens[:PROMPT].tolist() == TOKENS[:PROMPT].tolist()
    assert capture.tokens[PROMPT:].tolist() == [p % 1000 for p in range(PROMPT, len(capture.tokens))]
    assert not trace_summary(path).finished


def test_reading_while_another_process_writes(endless: tuple[Path, subprocess.Popen[str]]) -> None:
    path, process = endless
    held = read_trace(path)
    first = len(held.table)
    seen = []
    for step in range(1, 31):
        at = last_frame(process, 20 * step)
        seen.append(check_frames(path))
        assert seen[-1] >= at
    assert seen == sorted(seen) and seen[-1] > seen[0]
    assert len(held.table) == first  # a capture is a snapshot
    assert np.array_equal(held.slots[0].rows.raw(0, first), np.repeat(held.table.frame, H).reshape(-1, H))
    with h5py.File(path, "r", swmr=True, locking=False) as file:  # any other SWMR reader sees the same
        before = len(file["target/rows"])
        last_frame(process, seen[-1] + 300)
        file["target/rows"].refresh()
        file["target/aux/1"].refresh()
        after = len(file["target/rows"])
        assert after > before
        assert len(file["target/aux/1"]) >= after


def test_the_same_process_reads_what_it_is_writing(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    with open_writer(path) as writer:
        writer.append_target(*target_frame(0))
        assert len(read_trace(path).table) == 0  # not flushed yet
        writer.flush()
        held = read_trace(path)
        writer.append_target(*target_frame(1))
        writer.flush()
        assert len(held.table) == PROMPT and len(read_trace(path).table) == PROMPT + WIDE
        writer.finish(complete=True, tokens=TOKENS)
        assert np.array_equal(held.slots[2].rows.raw(0, PROMPT), expected("aux/2")[:PROMPT])
    assert read_trace(path).complete


def test_a_file_that_is_open_elsewhere_in_the_process_is_read(tmp_path: Path) -> None:
    """HDF5 shares what one process opens twice, and refuses where the ways of opening differ."""
    path = write(tmp_path / "t.h5")
    for options in ({}, {"locking": False}, {"swmr": True, "locking": False}, {"libver": "latest"}):
        held = read_trace(path)
        del held
        with h5py.File(path, "r", **options) as file:
            assert len(read_trace(path).table) == len(file["target/rows"])
    held = read_trace(path)
    with h5py.File(path, "r") as file:  # and a capture does not stand in the way of others
        assert len(file["target/rows"]) == len(held.table)


@pytest.fixture
def faulty_disk(tmp_path: Path) -> Path:
    """The library that stands between a process and the disk."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the library that makes the faulty disk cannot be built")
    source, library = tmp_path / "faulty.c", tmp_path / "faulty.so"
    source.write_text(FAULTY_DISK)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def run_with(library: Path, *arguments: str | Path) -> str:
    """Standard output of a Python process on the faulty disk, which must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env={
            **os.environ,
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(HERE),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


SLOW_DISK = """
import ctypes, sys, threading, time
from pathlib import Path
from trace_samples import *
disk = ctypes.CDLL(sys.argv[2])
layout = TraceLayout(target=tuple(TensorSpec(f"aux/{k}", 4096, DType.BF16) for k in range(3)))
rows, values = schema.records(schema.TARGET_ROW, 640), bits((640, 4096), 0)
writer = open_writer(Path(sys.argv[1]), layout)

def work():
    for _ in range(2):
        writer.append_target(rows, {spec.name: values for spec in layout.target})
        writer.flush()

disk.fault_at(ctypes.c_long(100), 2)
thread = threading.Thread(target=work)
started = last = time.perf_counter()
longest = 0.0
thread.start()
while thread.is_alive():
    time.sleep(0.001)
    now = time.perf_counter()
    longest, last = max(longest, now - last), now
total = time.perf_counter() - started
disk.fault_at(ctypes.c_long(-1), 2)
writer.finish(complete=True)
print(longest, total)
"""


def test_a_slow_disk_stops_no_other_thread(tmp_path: Path, faulty_disk: Path) -> None:
    """Every write takes 100 ms, as on a disk that the kernel throttles. One prefill is 15 of them, 5 in one call.

    The thread beside it, in production SGLang's scheduler, must not wait for the disk.
    """
    printed = run_with(faulty_disk, "-c", SLOW_DISK, tmp_path / "t.h5", faulty_disk)
    longest, total = map(float, printed.split())
    assert total > 3.0  # the disk was slow
    assert longest < 0.4, f"a thread beside the writer stood still for {longest:.2f} s of {total:.2f} s"
    assert len(read_trace(tmp_path / "t.h5").table) == 1280


@pytest.mark.parametrize("fault", ["killed", "killed in small chunks", "full"])
def test_a_fault_at_any_point_loses_nothing_flushed(tmp_path: Path, faulty_disk: Path, fault: str) -> None:
    """killed: the writer dies before the first, second, ... last call that changes the file.

    full: the disk has 0, 512 KiB, 1 MiB, 1 MiB + 8 KiB, ... bytes. HDF5 must never meet its end, because it crashes
    the process then; the writer says one sentence, and the trace can still be closed.

    in small chunks: of eight rows, so that frames end, begin and cross them.
    """
    printed = run_with(faulty_disk, HERE / "trace_crash_loop.py", tmp_path, faulty_disk, fault)
    result = json.loads(printed)
    assert result["problems"] == []
    assert result["turns"] > (15 if fault == "full" else 60)  # the library really stood in the way
    # And the fault came in every stage. Room for the end is kept: a full disk is met before it.
    assert result["stages"] == ([0, 1, 2, 9] if fault == "full" else [0, 1, 2, 3, 9])


def test_small_frames_do_not_rewrite_chunks(tmp_path: Path) -> None:
    """A decode round of six rows costs about its own bytes; with a chunk cache it cost a chunk per tensor.

    And a chunk that is begun is not filled with zeros first: that wrote everything twice.
    """
    layout = TraceLayout(target=tuple(TensorSpec(f"aux/{k}", 4096, DType.BF16) for k in range(3)))
    rows = schema.records(schema.TARGET_ROW, 6)
    values = bits((6, 4096), 0)
    with open_writer(tmp_path / "t.h5", layout) as writer:

        def round_trip() -> int:
            before = written_bytes()
            for _ in range(40):
                writer.append_target(rows, {spec.name: values for spec in layout.target})
                writer.flush()
            return written_bytes() - before

        round_trip()
        assert round_trip() < 1.1 * 40 * 3 * values.nbytes


def written_bytes() -> int:
    """Bytes that this process handed to write calls so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise AssertionError("no wchar in /proc/self/io")


def test_an_unfinished_writer_leaves_an_incomplete_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5", finish=False)
    capture = read_trace(path)
    assert not capture.complete and "without finishing" in capture.notes[0]
    assert len(capture.table) == PROMPT + ROUNDS * WIDE
    # Without a prompt given at the start, prompt and accepted rows still tell the tokens.
    assert capture.tokens.tolist() == TOKENS[: PROMPT + 2 * ROUNDS].tolist()
    assert f"{len(capture.tokens)} of {len(capture.tokens)} tokens were taken from the row table" in capture.notes


def test_an_exception_inside_the_context_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    with pytest.raises(ZeroDivisionError), open_writer(path) as writer:
        writer.append_target(*target_frame(0))
        raise ZeroDivisionError
    assert len(read_trace(path).table) == PROMPT
    with pytest.raises(ValueError, match="is closed"):
        writer.append_target(*target_frame(0))
    writer.close()  # harmless


def test_bad_rows_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    rows, tensors = target_frame(0)
    with open_writer(path) as writer:
        bad: list[tuple[schema.Records, dict[str, np.ndarray], str]] = [
            (rows, {"aux/9": tensors["aux/0"]}, "not declared"),
            (rows, {"aux/0": tensors["aux/0"][:3]}, "has 3 rows"),
            (rows, {"aux/0": tensors["aux/0"].astype(np.float32)}, "of uint16"),
            (rows, {"aux/0": tensors["aux/0"][:, :4]}, "expected"),
            (rows[["position"]], tensors, "expected rows"),
        ]
        for records, arrays, words in bad:
            with pytest.raises(ValueError, match=words):
                writer.append_target(records, tensors | arrays)
        assert writer.target_rows == 0
        writer.append_target(rows, tensors)
    assert np.array_equal(read_trace(path).slots[0].rows.raw(0, PROMPT), tensors["aux/0"])


def test_writing_counts_its_bytes(tmp_path: Path) -> None:
    rows, tensors = target_frame(0)
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append_target(rows, tensors)
        assert writer.bytes_written == rows.nbytes + sum(array.nbytes for array in tensors.values())
    assert LAYOUT.target[0].row_bytes == 2 * H


def test_a_prefill_is_written_at_the_speed_of_the_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: the machine is shared. 1281 tokens, five tensors of 7168, as Kimi-K2.5 has them."""
    names = ("aux/0", "aux/1", "aux/2", "embed", "last")
    layout = TraceLayout(target=tuple(TensorSpec(name, 7168, DType.BF16) for name in names))
    values = bits((1281, 7168), 0)
    rows = schema.records(schema.TARGET_ROW, 1281, position=np.arange(1281))
    with open_writer(tmp_path / "t.h5", layout) as writer:
        started = time.perf_counter()
        writer.append_target(rows, dict.fromkeys(names, values))
        writer.flush()
        ours = time.perf_counter() - started
        started = time.perf_counter()
        writer.finish(complete=True)
        end = time.perf_counter() - started
    started = time.perf_counter()
    with open(tmp_path / "raw", "wb", buffering=0) as file:
        for _ in names:
            file.write(values.data)
    raw = time.perf_counter() - started
    total = 5 * values.nbytes
    assert (tmp_path / "t.h5").stat().st_size < 1.06 * total
    with capsys.disabled():
        print(
            f" [{total / 1e6:.0f} MB: {total / ours / 1e9:.1f} GB/s, plain write() {total / raw / 1e9:.1f} GB/s, "
            f"end {1e3 * end:.0f} ms]"
        )
