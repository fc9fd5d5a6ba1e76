"""The target answers the prompts itself, greedily, in batches: `python -m pairs.smol.answers --count 2400`.

One JSON line per conversation: {"prompt", "ids", "prompt_length"}; ids are the templated prompt and the answer, the
end mark included if the model said it. The files lie in the cache and are taken up again where they ended. On a busy
machine two processes of one thread (`--part 0/2`, `--part 1/2`) are faster than one of two threads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafttrace.tracer.errors import DrafttraceError
from pairs.smol.fetch import cache_root, target_dir
from pairs.smol.prompts import messages, training_prompts

MAX_ANSWER = 160
END_ID = 2


@dataclass(frozen=True)
class Talk:
    """A prompt and its answer as token ids: ``ids[:prompt_length]`` is the templated prompt."""

    prompt: str
    ids: list[int]
    prompt_length: int


def work_dir() -> Path:
    """Where what can be made again is kept: answers and hidden states of the training run."""
    return cache_root() / "smol-training"


def answers_path(part: int, parts: int) -> Path:
    """The file that one of ``parts`` processes writes."""
    return work_dir() / f"answers-{part}-of-{parts}.jsonl"


def all_answers() -> list[Talk]:
    """Every answer that any run has written, each prompt once, in the order of the training prompts."""
    found = {t.prompt: t for path in sorted(work_dir().glob("answers-*.jsonl")) for t in read_answers(path)}
    order = {prompt: i for i, prompt in enumerate(training_prompts(max(1, len(found))))}
    return sorted(found.values(), key=lambda talk: (order.get(talk.prompt, len(order)), talk.prompt))


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


def answer(model: Any, prompts: Sequence[Sequence[int]], limit: int = MAX_ANSWER) -> list[list[int]]:
    """Greedy answers, up to ``limit`` tokens each, to prompts of about one length (they are padded on the left)."""
    import torch
    from transformers import DynamicCache

    width = max(map(len, prompts))
    ids = torch.tensor([[END_ID] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    said: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # which answer each row of the batch belongs to
    cache = DynamicCache()
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.inference_mode():
        for _ in range(limit):
            out = model(ids, attention_mask=mask, position_ids=position, past_key_values=cache, logits_to_keep=1)
            token = out.logits[:, -1].argmax(-1)
            for row, value in zip(rows, token.tolist(), strict=True):
                said[row].append(value)
            going = token != END_ID
            if not bool(going.any()):
                break
            if int(going.sum()) <= 0.75 * len(rows):  # rows that have ended cost as much as the others
                kept = going.nonzero()[:, 0]
                cache.batch_select_indices(kept)
                mask, position, token = mask[kept], position[kept], token[kept]
                rows = [rows[i] for i in kept.tolist()]
            ids, position = token[:, None], position[:, -1:] + 1
            mask = torch.cat((mask, mask.new_ones(len(rows), 1)), -1)
    return [_until_end(tokens) for tokens in said]


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END_ID) + 1] if END_ID in tokens else tokens


def answer_all(model: Any, tokenizer: Any, prompts: Sequence[str], batch: int) -> Iterator[list[Talk]]:
    """Answers to all prompts, batch by batch, the prompts of one batch being about equally long."""
    for start in range(0, len(prompts), 8 * batch):
        some = [(prompt, prompt_ids(tokenizer, prompt)) for prompt in prompts[start : start + 8 * batch]]
        some.sort(key=lambda one: len(one[1]))
        for i in range(0, len(some), batch):
            part = some[i : i + batch]
            said = answer(model, [ids for _, ids in part])
            yield [Talk(p, ids + reply, len(ids)) for (p, ids), reply in zip(part, said, strict=True)]


def load_model(target: Path, dtype: str = "bfloat16") -> Any:
    """The target as transformers runs it."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, dtype)).eval()


def make_answers(count: int, batch: int, part: int = 0, parts: int = 1) -> Path:
    """Answer every ``parts``-th of the first ``count`` training prompts, as far as that is not done yet."""
    from transformers import AutoTokenizer

    target, path = target_dir(), answers_path(part, parts)
    done = {talk.prompt for talk in all_answers()}
    missing = [prompt for prompt in training_prompts(count)[part::parts] if prompt not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_model(target), AutoTokenizer.from_pretrained(target)
    began, tokens, finished = time.monotonic(), 0, 0
    with path.open("a") as file:
        for talks in answer_all(model, tokenizer, missing, batch):
            for talk in talks:
                file.write(json.dumps(talk.__dict__) + "\n")
            file.flush()
            finished += len(talks)
            tokens += sum(len(talk.ids) - talk.prompt_length for talk in talks)
            rate = tokens / (time.monotonic() - began)
            print(
                f"{finished}/{len(missing)} answers, {tokens} tokens, {rate:.0f} tok/s", file=sys.stderr, flush=True
            )
    return path


def main() -> int:
    """Answer the training prompts; 2 and one sentence where the model cannot be had."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--part", default="0/1", metavar="I/N", help="answer every N-th prompt, from the I-th on")
    options = parser.parse_args()
    try:
        print(make_answers(options.count, options.batch, *map(int, options.part.split("/"))))
    except DrafttraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
