"""How much faster is the batched replay than a token-by-token loop? Prints both times and their ratio.

    python bench/replay.py pairs/tiny-kimi

Both compute the same proposals (they are compared) for every sample of the pair's dump. The loop keeps keys and values of
earlier tokens (a KV cache), as a server does: without one it would be slower by the length of the text. What is batched is
the whole scoring of one wiring, as the command does it. Times are medians of paired rounds, without loading, by the clock
and by the processor: on a busy machine only the second says something. ``--threads`` sets torch's threads for both; more
than one slows the loop, whose operations take microseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from replay_loop import run_loop

from drafttrace.compare.audit.gathering import gather
from drafttrace.compare.replay.loading import Replayer, load_replayer
from drafttrace.compare.replay.score import run_wirings
from drafttrace.compare.replay.switches import Switches, switches_of
from drafttrace.compare.replay.texts import Text, text_of
from drafttrace.compare.target_parts import target_parts
from drafttrace.tracer.open import open_capture

FAST_RUNS = 8
"""Fast runs beside one slow one."""


def load(pair: Path, samples: int, steps: int) -> tuple[Replayer, list[Text], Switches]:
    """The pair's draft and the first samples of its dump."""
    subject, _, _ = gather(pair / "target", pair / "draft")
    assert subject.target_weights is not None
    target = subject.target
    parts = target_parts(
        subject.target_weights, eps=target.eps, model_type=target.model_type, embed_scale=target.embed_scale
    )
    texts = [text_of(open_capture(f"{pair / 'dump'}#{i}"), parts) for i in range(samples)]
    longest = max(len(text.tokens) for text in texts) + steps
    replayer = load_replayer(subject.draft, subject.draft_weights, parts, longest)
    return replayer, texts, switches_of(subject.draft, subject.draft_weights)


def loop(replayer: Replayer, texts: list[Text], steps: int) -> list[torch.Tensor]:
    """Draft ids of every text, token by token."""
    table = torch.from_numpy(replayer.parts.checkpoint.floats(replayer.parts.embedding))
    found = []
    for text in texts:
        slots = torch.cat(
            [torch.from_numpy(text.state(key)) for key in text.file_wiring[: replayer.model.slots]], dim=-1
        )
        tokens = torch.from_numpy(text.tokens)
        found.append(run_loop(replayer.model.weights, replayer.config, slots, table, tokens, steps))
    return found


def batched(replayer: Replayer, texts: list[Text], steps: int, switches: Switches) -> list[torch.Tensor]:
    """The same as ``drafttrace replay`` does it, as target ids: with its three best of every row and its losses."""
    (guesses,) = run_wirings(replayer, texts, [texts[0].file_wiring[: replayer.model.slots]], switches, steps)
    return [torch.from_numpy(guess.top[:, :, 0].T) for guess in guesses]


def paired(
    slow: Callable[[], Any], fast: Callable[[], Any], rounds: int
) -> list[tuple[float, float, float, float]]:
    """Seconds of both by the clock and of processor time, round by round: one slow run, then as many fast ones.

    (slow by the clock, fast by the clock, slow of processor time, fast of processor time); the fast ones are means.
    """
    found = []
    for _ in range(rounds):
        measured = []
        for run, times in ((slow, 1), (fast, FAST_RUNS)):
            began, used = time.perf_counter(), time.process_time()
            for _ in range(times):
                run()
            measured.append(((time.perf_counter() - began) / times, (time.process_time() - used) / times))
        (clock, processor), (fast_clock, fast_processor) = measured
        found.append((clock, fast_clock, processor, fast_processor))
    return found


def measure(pair: Path, samples: int, steps: int, threads: int, rounds: int) -> dict[str, Any]:
    """All figures; times and ratios are medians over the rounds."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        replayer, texts, switches = load(pair, samples, steps)
        slow, fast = loop(replayer, texts, steps), batched(replayer, texts, steps, switches)
        rows = sum(len(part) for part in slow)
        said = torch.from_numpy(replayer.targets(switches))
        equal = sum(int((said[a] == b).sum()) for a, b in zip(slow, fast, strict=True)) / (rows * steps)
        times = paired(
            lambda: loop(replayer, texts, steps), lambda: batched(replayer, texts, steps, switches), rounds
        )
    clock, fast_clock, processor, fast_processor = (median(column) for column in zip(*times, strict=True))
    return {
        "pair": pair.name,
        "rows": rows,
        "steps": steps,
        "threads": threads,
        "equal_proposals": equal,
        "loop_seconds": clock,
        "batched_seconds": fast_clock,
        "ratio": median(time[0] / time[1] for time in times),
        "loop_processor_seconds": processor,
        "batched_processor_seconds": fast_processor,
        "processor_ratio": median(time[2] / time[3] for time in times),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", type=Path)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(options.pair, options.samples, options.steps, options.threads, options.rounds)
    one, many = figures["loop_seconds"], figures["batched_seconds"] * 1000
    print(
        f"{figures['pair']}: {figures['rows']} rows, {options.steps} steps, {options.threads} threads: loop "
        f"{one:.2f} s, batched {many:.1f} ms, {figures['ratio']:.1f} times "
        f"faster ({figures['processor_ratio']:.1f} by processor time); equal proposals {figures['equal_proposals']:.2%}"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
