"""The target answers the prompts itself, greedily, and its states are kept: `python -m pairs.smol.answers --count 2400`.

One JSON line per conversation (see `Talk`) beside one file of raw bf16 states; both lie in the cache and are taken
up again where they ended. On a busy machine two processes of one thread (`--part 0/2`, `--part 1/2`) are faster than
one of two threads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import DrafttraceError
from pairs.smol.fetch import cache_root, target_dir
from pairs.smol.options import parser as options_of
from pairs.smol.options import part as part_of
from pairs.smol.options import whole
from pairs.smol.prompts import MOST, held_out_prompts, messages, training_prompts

MAX_ANSWER = 128
END_ID = 2
TALKS = 2400
BATCH = 64
LAYERS = 30
HIDDEN = 576
KEPT = (3, 16, 28, LAYERS)  # B3, B16, B28 and last/post; B0 is a row of the embedding matrix


@dataclass(frozen=True)
class Talk:
    """A prompt and its answer as token ids, and where their states are.

    ``ids[:prompt_length]`` is the templated prompt; the end mark is included if the model said it. The states
    ``[rows, len(KEPT), HIDDEN]`` of the first ``rows`` tokens start at row ``start`` of the file ``states``.
    """

    prompt: str
    ids: list[int]
    prompt_length: int
    states: str
    start: int
    rows: int


def work_dir() -> Path:
    """Where what can be made again is kept: answers and hidden states of the training run."""
    return cache_root() / "smol-training"


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """The prompt through the model's own chat template, up to where the assistant speaks."""
    return list(tokenizer.apply_chat_template(messages(prompt), add_generation_prompt=True)["input_ids"])


def read_answers(path: Path) -> list[Talk]:
    """All whole lines of a file of answers; a line that was cut off by an interruption is passed over."""
    talks = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            talks.append(Talk(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            continue
    return talks


def training_answers() -> list[Talk]:
    """Every answer that any part has written, each prompt once, in the order of the training prompts."""
    found = {t.prompt: t for path in sorted(work_dir().glob("answers-*-of-*.jsonl")) for t in read_answers(path)}
    order = {prompt: i for i, prompt in enumerate(training_prompts(min(2 * len(found) + 1, MOST)))}
    return sorted(found.values(), key=lambda talk: (order.get(talk.prompt, len(order)), talk.prompt))


def held_out_answers() -> list[Talk]:
    """The answers to the held-out prompts."""
    return read_answers(work_dir() / "answers-held-out.jsonl")


def open_states(name: str) -> npt.NDArray[np.uint16]:
    """The file of states ``name`` as a memory map ``[rows, len(KEPT), HIDDEN]`` of bf16 bits."""
    path = work_dir() / name
    rows = path.stat().st_size // (len(KEPT) * HIDDEN * 2)  # the last one may be cut off by an interruption
    return np.memmap(path, np.uint16, "c", shape=(rows, len(KEPT), HIDDEN))


def load_model(target: Path, dtype: str = "bfloat16", attention: str = "sdpa") -> Any:
    """The target as transformers runs it."""
    import torch
    from transformers import AutoModelForCausalLM

    import pairs.smol.decode  # noqa: F401  registers the "grouped" attention

    return AutoModelForCausalLM.from_pretrained(
        target, dtype=getattr(torch, dtype), attn_implementation=attention
    ).eval()


def _batches(tokenizer: Any, prompts: Sequence[str], batch: int) -> Iterator[list[tuple[str, list[int]]]]:
    """Prompts with their ids, the prompts of one batch being about equally long."""
    for start in range(0, len(prompts), 4 * batch):
        some = [(prompt, prompt_ids(tokenizer, prompt)) for prompt in prompts[start : start + 4 * batch]]
        some.sort(key=lambda one: len(one[1]))
        yield from (some[i : i + batch] for i in range(0, len(some), batch))


def answer_all(
    model: Any, batches: Iterator[list[tuple[str, list[int]]]], states: IO[bytes], name: str
) -> Iterator[list[Talk]]:
    """Answer batch by batch; the states go to ``states`` before the answers are handed out."""
    import torch

    from pairs.smol.decode import answer

    row_bytes = len(KEPT) * HIDDEN * 2
    for part in batches:
        talks = []
        for (prompt, ids), said in zip(
            part, answer(model, [i for _, i in part], END_ID, MAX_ANSWER, KEPT), strict=True
        ):
            start = states.tell() // row_bytes
            states.write(said.states.contiguous().view(torch.uint16).numpy().tobytes())
            talks.append(Talk(prompt, ids + said.tokens, len(ids), name, start, len(said.states)))
        states.flush()
        yield talks


def make_answers(prompts: Sequence[str], batch: int, name: str) -> Path:
    """Answer these prompts, as far as that is not done yet, into the files of this ``name``."""
    from transformers import AutoTokenizer

    target = target_dir()
    path, states = work_dir() / f"answers-{name}.jsonl", work_dir() / f"states-{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = read_answers(path)
    with states.open("ab") as file:  # states whose answers were never written are dropped
        file.truncate(max((t.start + t.rows for t in mine), default=0) * len(KEPT) * HIDDEN * 2)
    done = {talk.prompt for talk in [*mine, *training_answers()]}
    missing = [prompt for prompt in prompts if prompt not in done]
    model = load_model(target, attention="grouped")
    batches = _batches(AutoTokenizer.from_pretrained(target), missing, batch)
    began, tokens, finished = time.monotonic(), 0, 0
    with path.open("a") as file, states.open("r+b") as raw:
        raw.seek(0, os.SEEK_END)
        for talks in answer_all(model, batches, raw, states.name):
            file.writelines(json.dumps(asdict(talk)) + "\n" for talk in talks)
            file.flush()
            finished += len(talks)
            tokens += sum(len(talk.ids) - talk.prompt_length for talk in talks)
            rate = f"{tokens / (time.monotonic() - began):.0f} tok/s"
            print(f"{finished}/{len(missing)} answers, {tokens} tokens, {rate}", file=sys.stderr, flush=True)
    return path


def main() -> int:
    """Answer the training prompts; 2 and one sentence where the model cannot be had."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    parser = options_of(__doc__)
    parser.add_argument("--count", type=whole(1, MOST), default=TALKS, help=f"prompts, at most {MOST}")
    parser.add_argument("--batch", type=whole(1, 4096), default=BATCH)
    parser.add_argument(
        "--part", type=part_of, default=(0, 1), metavar="I/N", help="answer every N-th prompt, from the I-th on"
    )
    parser.add_argument("--held-out", action="store_true", help="answer the held-out prompts instead")
    options = parser.parse_args()
    part, parts = options.part
    prompts, name = training_prompts(options.count)[part::parts], f"{part}-of-{parts}"
    if options.held_out:
        prompts, name = held_out_prompts(), "held-out"
    try:
        print(make_answers(prompts, options.batch, name))
    except DrafttraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
