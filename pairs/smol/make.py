"""Make the real pair from nothing: `python -m pairs.smol.make`.

Fetch and convert the target, let it answer the prompts, train the head, write the dump, measure the accept length
on a real server. Every stage takes up what an interrupted run left in the cache. About 15 minutes of two free cores
for the answers, `--minutes` for the training, 5 for the rest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from drafttrace.tracer.errors import DrafttraceError
from pairs.smol.answers import TALKS, held_out_answers, training_answers
from pairs.smol.fetch import target_dir
from pairs.smol.options import above_zero, whole
from pairs.smol.options import parser as options_of
from pairs.smol.prompts import HELD_OUT, MOST

HERE = Path(__file__).parent


def together(*calls: list[str], threads: int) -> None:
    """Run `python -m ...` calls at the same time; raises CalledProcessError for the first that failed."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
    running = [subprocess.Popen([sys.executable, "-m", *call], env=env) for call in calls]
    for process, call in zip(running, calls, strict=True):
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, call)


def stages(minutes: float, talks: int, only: str | None) -> None:
    """All stages, or the one named."""
    threads = min(2, os.cpu_count() or 1)
    if only in (None, "answers") and len(training_answers()) < talks:
        parts = [["pairs.smol.answers", "--count", str(talks), "--part", f"{i}/{threads}"] for i in range(threads)]
        together(*parts, threads=1)
    if only in (None, "answers") and len(held_out_answers()) < HELD_OUT:
        together(["pairs.smol.answers", "--held-out"], threads=threads)
    if only in (None, "train"):
        together(["pairs.smol.train", "--minutes", str(minutes)], threads=threads)
    if only in (None, "dump"):
        with tempfile.TemporaryDirectory(prefix="dump-", dir=HERE) as scratch:
            made = Path(scratch) / "dump"
            together(["pairs.smol.dump", "--out", str(made), "--answer", "64"], threads=threads)
            shutil.rmtree(HERE / "dump", ignore_errors=True)  # the old one goes when the new one is there
            made.rename(HERE / "dump")
    if only in (None, "accept"):
        together(["pairs.smol.accept"], threads=threads)


def main() -> int:
    """Run the stages; 2 and one sentence where the model cannot be had, 1 where a stage failed."""
    parser = options_of(__doc__)
    parser.add_argument("--minutes", type=above_zero, default=45.0, help="longest training")
    parser.add_argument("--talks", type=whole(1, MOST), default=TALKS)
    parser.add_argument("--only", choices=["answers", "train", "dump", "accept"])
    options = parser.parse_args()
    try:
        target_dir()
        stages(options.minutes, options.talks, options.only)
    except DrafttraceError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(error.cmd)} ended with status {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
