"""How much faster is the batched replay than a token-by-token loop? Prints both times and their ratio.

    python bench/replay.py pairs/tiny-kimi

Both compute the same proposals (they are compared) for every sample of the pair's dump. The loop keeps keys and values of
earlier tokens (a KV cache), as a server does: without one it would be slower by the length of the text. Times are the best
of several runs, without loading, by the clock and by the processor: on a busy machine only the second says something.
``--threads`` sets torch's threads for both; more than one slows the loop, whose operations take microseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from replay_loop import run_loop

from drafttrace.compare.audit.check import gather
from drafttrace.compare.replay.loading import Replayer, load_replayer
from drafttrace.compare.replay.switches import Switches, switches_of
from drafttrace.compare.replay.texts import Text, text_of
from drafttrace.compare.target_parts import target_parts
from drafttrace.tracer.open import open_capture


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
    """The same by whole causal passes."""
    model, found = replayer.model, []
    for text in texts:
        slots = [torch.from_numpy(text.state(key)) for key in text.file_wiring[: model.slots]]
        state = model.fc(model.fc_in(slots, switches))[None]
        done = model.steps(state, replayer.embedded(text, steps, switches), switches)
        found.append(torch.stack([model.logits(step.normed)[0].argmax(-1) for step in done], dim=1))
    return found


def best_time(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Seconds of the fastest of ``repeats`` runs: by the clock, and of processor time."""
    clock, processor = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        run()
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    return min(clock), min(processor)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", type=Path)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        replayer, texts, switches = load(options.pair, options.samples, options.steps)
        slow = loop(replayer, texts, options.steps)
        fast = batched(replayer, texts, options.steps, switches)
        rows = sum(len(part) for part in slow)
        equal = sum(int((a == b).sum()) for a, b in zip(slow, fast, strict=True)) / (rows * options.steps)
        slow_time = best_time(lambda: loop(replayer, texts, options.steps), 2)
        fast_time = best_time(lambda: batched(replayer, texts, options.steps, switches), 20)
    figures = {
        "pair": options.pair.name,
        "rows": rows,
        "steps": options.steps,
        "threads": options.threads,
        "equal_proposals": equal,
        "loop_seconds": slow_time[0],
        "batched_seconds": fast_time[0],
        "ratio": slow_time[0] / fast_time[0],
        "loop_processor_seconds": slow_time[1],
        "batched_processor_seconds": fast_time[1],
        "processor_ratio": slow_time[1] / fast_time[1],
    }
    print(
        f"{figures['pair']}: {rows} rows, {options.steps} steps, {options.threads} threads: loop {slow_time[0]:.2f} s, "
        f"batched {fast_time[0] * 1000:.1f} ms, {figures['ratio']:.0f} times faster ({figures['processor_ratio']:.0f} by "
        f"processor time); equal proposals {equal:.2%}"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
