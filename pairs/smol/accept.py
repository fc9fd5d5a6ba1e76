"""The accept length of the real pair on a real SGLang server: `python -m pairs.smol.accept`.

Well wired, as the trainer left it (the incident: the embedding dropped, the slots moved), and two smaller
faults, each on the same held-out prompts, greedy, five drafted tokens a round; as trained on a few ordinary questions,
which come from no template of the training prompts; and on texts unlike any of them (German, a hex dump, emoji, ...).
Needs the CPU server of the tests.
An accept length is the tokens after the first one over the verify rounds that made them, of all prompts together.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.errors import DrafttraceError
from pairs.accept_length import accept_length_of, rewired
from pairs.smol.answers import prompt_ids
from pairs.smol.dump import RIGHT_IDS, TRAINER_IDS
from pairs.smol.fetch import target_dir
from pairs.smol.options import check_file, whole
from pairs.smol.options import parser as options_of
from pairs.smol.prompts import HELD_OUT, held_out_prompts, ordinary_questions, texts_unlike_the_training

if TYPE_CHECKING:
    from sglang_cpu.server import CpuServer

STEPS = 5
ORDINARY, UNLIKE = "ordinary questions", "unlike the training"
DRAFT = Path(__file__).parent / "draft"
WIRINGS: Mapping[str, Sequence[int]] = {
    "as trained": RIGHT_IDS,
    "as the trainer left it": TRAINER_IDS,
    "one slot one boundary late": [-1, 15, 28],
    "every slot one boundary late": [0, 16, 28],
}
KINDS = (*WIRINGS, ORDINARY, UNLIKE)


def served_boundaries(layer_ids: Sequence[int]) -> list[int]:
    """What SGLang 0.5.23 makes of explicit ids for a Llama."""
    return [i + 1 for i in layer_ids]


def measure(
    draft: Path, layer_ids: Sequence[int], asked: Mapping[str, Sequence[str]], new_tokens: int, log: Path
) -> dict[str, dict[str, Any]]:
    """Serve the pair with these ids and answer the prompts of every kind, one after the other; figures by kind."""
    from sglang_cpu.arguments import cpu_args
    from sglang_cpu.server import CpuServer
    from transformers import AutoTokenizer

    target = target_dir()
    tokenizer = AutoTokenizer.from_pretrained(target)
    wiring = {"layer_ids": list(layer_ids), "boundaries": wiring_name(served_boundaries(layer_ids))}
    with tempfile.TemporaryDirectory() as scratch:
        served = rewired(draft, layer_ids, Path(scratch) / "draft")
        said = _sayable(served)
        args = cpu_args(target, served, steps=STEPS, topk=1, num_draft_tokens=STEPS + 1)
        with CpuServer(args, log, start_timeout=900.0) as server:
            server.generate(
                input_ids=[1, 2], max_new_tokens=8
            )  # the first request pays for what is made on first use
            return {
                kind: wiring
                | _answered(server, [prompt_ids(tokenizer, prompt) for prompt in prompts], new_tokens, said)
                for kind, prompts in asked.items()
            }


def _answered(server: CpuServer, prompts: Sequence[list[int]], new_tokens: int, said: set[int]) -> dict[str, Any]:
    """What one server did with the prompts of one kind. said: the ids that the draft can say."""
    tokens, rounds, unsaid, began = 0, 0, 0, time.monotonic()
    for prompt in prompts:
        answer = server.generate(input_ids=prompt, max_new_tokens=new_tokens)
        made, verified = accept_length_of(answer)
        tokens, rounds = tokens + made, rounds + verified
        unsaid += sum(token not in said for token in answer["output_ids"][1:])
    seconds = time.monotonic() - began
    return {
        "accept_length": round(tokens / rounds, 3),
        "tokens": tokens,
        "rounds": rounds,
        "outside_draft_vocabulary": round(unsaid / tokens, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "prompts": len(prompts),
    }


def _sayable(draft: Path) -> set[int]:
    """The target ids that the draft can draft: draft id + d2t."""
    offsets = open_checkpoint(draft).array("d2t").astype("int64")
    return set((offsets + range(len(offsets))).tolist())


def _check(draft: Path, json_file: Path | None, log: Path) -> None:
    """Raise DrafttraceError for what would only be noticed after minutes of work."""
    if not (draft / "config.json").is_file():
        raise DrafttraceError(f"--draft {draft} holds no config.json; give the folder of a draft.")
    check_file(log, "--log")
    if json_file is not None:
        check_file(json_file, "--json")


def main() -> int:
    """Measure; `accept_length.json` is written where all were measured, another file with what there is."""
    parser = options_of(__doc__)
    parser.add_argument("--draft", type=Path, default=DRAFT)
    parser.add_argument("--prompts", type=whole(1, HELD_OUT), default=24)
    parser.add_argument("--new-tokens", type=whole(2, 2048), default=96)
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "drafttrace-smol-server.log")
    parser.add_argument("--json", type=Path, help="default: accept_length.json beside this file, for a whole run")
    options = parser.parse_args()
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    code = 0
    try:
        _check(options.draft, options.json, options.log)
        for name in options.only or KINDS:
            ids = WIRINGS.get(name, RIGHT_IDS)
            figures[name] = measure(
                options.draft, ids, _asked(name, options.prompts), options.new_tokens, options.log
            )
            for kind, found in figures[name].items():
                print(
                    f"{kind} {found['boundaries']}: accept length {found['accept_length']} of {STEPS + 1}",
                    flush=True,
                )
    except (DrafttraceError, RuntimeError, OSError) as error:  # a server that died is a RuntimeError
        print(error, file=sys.stderr)
        code = 2
    whole_run = len(figures) == len(KINDS) and options.draft == DRAFT
    out = options.json or (Path(__file__).parent / "accept_length.json" if whole_run else None)
    if out is not None and figures:  # what was measured before something failed is kept
        about = {"prompts": options.prompts, "new_tokens": options.new_tokens, "steps": STEPS}
        out.write_text(json.dumps(about | _by_part(figures), indent=2) + "\n")
    return code


def _asked(name: str, count: int) -> Mapping[str, Sequence[str]]:
    """The prompts of one run, by kind."""
    if name == UNLIKE:
        return texts_unlike_the_training()
    return {name: ordinary_questions() if name == ORDINARY else held_out_prompts(count)}


def _by_part(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The parts of ``accept_length.json``: wirings, ordinary, unlike_training; only those that were measured."""
    parts: dict[str, Any] = {"wirings": {name: one[name] for name, one in figures.items() if name in WIRINGS}}
    if ORDINARY in figures:
        parts["ordinary"] = figures[ORDINARY][ORDINARY]
    if UNLIKE in figures:
        parts["unlike_training"] = dict(figures[UNLIKE])
    return parts


if __name__ == "__main__":
    sys.exit(main())
