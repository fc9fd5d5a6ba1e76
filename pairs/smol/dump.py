"""Training dumps of the real pair, as three trainers lay them out: `python -m pairs.smol.dump --out FOLDER`.

* `specforge`  SpecForge: `.ckpt` with the three slots side by side and last/post
* `v1`         speculators v1: a list of states. As in the incident, the last of them is B29, one of the boundaries that
               the trainer's ids name, and not the stream behind the last layer. `pairs/smol/dump` is of this kind
* `arrow`      speculators now: safetensors beside an Arrow folder, B30 (before the final norm) as the last state

The texts are answers of the target that the head was trained on, read again by transformers in bf16.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafttrace.tracer.errors import DrafttraceError
from pairs import dumps
from pairs.smol.answers import END_ID, LAYERS, MAX_ANSWER, load_model, prompt_ids
from pairs.smol.fetch import target_dir
from pairs.smol.options import check_new_folder, whole
from pairs.smol.options import parser as options_of
from pairs.smol.prompts import MOST, training_prompts
from pairs.tokenizer import Encoded

WIRING = (0, 16, 28)  # what the head was trained on
SERVED = (16, 28, 29)  # what SGLang makes of TRAINER_IDS for a Llama: B(id + 1)
TRAINER_IDS = [15, 27, 28]  # what the trainer wrote into the draft's configuration
RIGHT_IDS = [-1, 15, 27]  # what it has to be for a Llama in SGLang 0.5.23
V1_IDS = [-1, *TRAINER_IDS]  # layer OUTPUTS; -1 is the embedding
LONGEST = 2048  # tokens of an answer; the model reads 8192, but was taught on no more
LAYOUTS = ("specforge", "v1", "arrow")
NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Read:
    """A text and all its states ``[length, H]`` in bf16: B(0) .. B(n), and last/post."""

    text: Encoded
    boundaries: list[Tensor]
    last: Tensor


def answer_text(model: Any, prompt: Sequence[int], limit: int = MAX_ANSWER) -> Encoded:
    """The prompt and the target's greedy answer; the mask is 1 on the answer."""
    from pairs.smol.decode import answer

    said = answer(model, [prompt], END_ID, limit, (LAYERS,))[0].tokens
    return Encoded([*prompt, *said], [0] * len(prompt) + [1] * len(said))


@torch.inference_mode()
def read_text(model: Any, text: Encoded) -> Read:
    """One forward pass that keeps what enters every layer and the final norm."""
    found: list[Tensor] = []
    layers = [*model.model.layers, model.model.norm]
    hooks = [part.register_forward_pre_hook(lambda _, args: found.append(args[0][0].clone())) for part in layers]
    try:
        last = model.model(torch.tensor([text.ids])).last_hidden_state[0].clone()
    finally:
        for hook in hooks:
            hook.remove()
    return Read(text, found, last)


def write_specforge(folder: Path, texts: Sequence[Read]) -> None:
    """SpecForge's offline layout: `rows_0-2000/data_{i}.ckpt`, batch dimension 1 on the states, everything unshifted."""
    rows = folder / "rows_0-2000"
    rows.mkdir(parents=True, exist_ok=True)
    for i, read in enumerate(texts):
        aux = torch.cat([read.boundaries[k] for k in WIRING], dim=-1)
        stored = {
            "input_ids": torch.tensor(read.text.ids),
            "loss_mask": torch.tensor(read.text.mask),
            "aux_hidden_state": aux[None].contiguous(),
            "hidden_state": read.last[None].contiguous(),
        }
        torch.save(stored, rows / f"data_{i}.ckpt")


def write_dump(folder: Path, texts: Sequence[Read], layout: str) -> None:
    """Write the texts in one of LAYOUTS."""
    if layout == "specforge":
        write_specforge(folder, texts)
    elif layout == "v1":
        states = [*WIRING, SERVED[-1]]
        stored = [dumps.DumpSample(t.text, [t.boundaries[k] for k in states]) for t in texts]
        dumps.write_v1(folder, stored, V1_IDS, NAME)
    else:
        stored = [dumps.DumpSample(t.text, [t.boundaries[k] for k in (*WIRING, LAYERS)]) for t in texts]
        dumps.write_arrow(folder, stored)


def make_texts(count: int, limit: int, dtype: str = "bfloat16") -> list[Read]:
    """The first training prompts, answered in up to ``limit`` tokens and read again."""
    from transformers import AutoTokenizer

    target = target_dir()
    model, tokenizer = load_model(target, dtype), AutoTokenizer.from_pretrained(target)
    texts = [answer_text(model, prompt_ids(tokenizer, p), limit) for p in training_prompts(count)]
    return [read_text(model, text) for text in texts]


def main() -> int:
    """Write the dump; 2 and one sentence where the model cannot be had."""
    parser = options_of(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a new or empty folder")
    parser.add_argument("--samples", type=whole(1, MOST), default=2)
    parser.add_argument("--answer", type=whole(1, LONGEST), default=MAX_ANSWER, help="longest answer, in tokens")
    parser.add_argument("--layout", choices=LAYOUTS, default="v1")
    options = parser.parse_args()
    try:
        check_new_folder(options.out, "--out")
        write_dump(options.out, make_texts(options.samples, options.answer), options.layout)
    except DrafttraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
