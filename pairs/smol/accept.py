"""The accept length of the real pair on a real SGLang server: `python -m pairs.smol.accept`.

Well wired, as the trainer left it (the incident: the embedding dropped, the slots moved), and two smaller
faults, each on the same held-out prompts, greedy, five drafted tokens a round; and as trained on a few ordinary questions,
which come from no template of the training prompts. Needs the CPU server of the tests.
An accept length is the tokens after the first one over the verify rounds that made them, of all prompts together.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.errors import DrafttraceError
from pairs.accept_length import accept_length_of, rewired
from pairs.smol.answers import prompt_ids
from pairs.smol.dump import RIGHT_IDS, TRAINER_IDS
from pairs.smol.fetch import target_dir
from pairs.smol.options import check_file, whole
from pairs.smol.options import parser as options_of
from pairs.smol.prompts import HELD_OUT, held_out_prompts, ordinary_questions

STEPS = 5
ORDINARY = "ordinary questions"
DRAFT = Path(__file__).parent / "draft"
WIRINGS: Mapping[str, Sequence[int]] = {
    "as trained": RIGHT_IDS,
    "as the trainer left it": TRAINER_IDS,
    "one slot one boundary late": [-1, 15, 28],
    "every slot one boundary late": [0, 16, 28],
}


def served_boundaries(layer_ids: Sequence[int]) -> list[int]:
    """What SGLang 0.5.23 makes of explicit ids for a Llama."""
    return [i + 1 for i in layer_ids]


def measure(
    draft: Path, layer_ids: Sequence[int], prompts: Sequence[str], new_tokens: int, log: Path
) -> dict[str, Any]:
    """Serve the pair with these ids and answer the prompts one after the other."""
    from sglang_cpu.arguments import cpu_args
    from sglang_cpu.server import CpuServer
    from transformers import AutoTokenizer

    target = target_dir()
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokens, rounds = 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        served = rewired(draft, layer_ids, Path(scratch) / "draft")
        args = cpu_args(target, served, steps=STEPS, topk=1, num_draft_tokens=STEPS + 1)
        with CpuServer(args, log, start_timeout=900.0) as server:
            server.generate(
                input_ids=[1, 2], max_new_tokens=8
            )  # the first request pays for what is made on first use
            began = time.monotonic()
            for prompt in prompts:
                answer = server.generate(input_ids=prompt_ids(tokenizer, prompt), max_new_tokens=new_tokens)
                made, verified = accept_length_of(answer)
                tokens, rounds = tokens + made, rounds + verified
            seconds = time.monotonic() - began
    return {
        "layer_ids": list(layer_ids),
        "boundaries": wiring_name(served_boundaries(layer_ids)),
        "accept_length": round(tokens / rounds, 3),
        "tokens": tokens,
        "rounds": rounds,
        "tokens_per_second": round(tokens / seconds, 1),
    }


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
    parser.add_argument("--only", choices=[*WIRINGS, ORDINARY], action="append")
    parser.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "drafttrace-smol-server.log")
    parser.add_argument("--json", type=Path, help="default: accept_length.json beside this file, for a whole run")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    code = 0
    try:
        _check(options.draft, options.json, options.log)
        for name in options.only or (*WIRINGS, ORDINARY):
            asked = ordinary_questions() if name == ORDINARY else held_out_prompts(options.prompts)
            ids = WIRINGS.get(name, RIGHT_IDS)
            found = measure(options.draft, ids, asked, options.new_tokens, options.log)
            figures[name] = found | ({"prompts": len(asked)} if name == ORDINARY else {})
            print(
                f"{name} {found['boundaries']}: accept length {found['accept_length']} of {STEPS + 1}", flush=True
            )
    except (DrafttraceError, RuntimeError, OSError) as error:  # a server that died is a RuntimeError
        print(error, file=sys.stderr)
        code = 2
    whole_run = len(figures) == len(WIRINGS) + 1 and options.draft == DRAFT
    out = options.json or (Path(__file__).parent / "accept_length.json" if whole_run else None)
    about = {"prompts": options.prompts, "new_tokens": options.new_tokens, "steps": STEPS}
    about |= {"wirings": {name: one for name, one in figures.items() if name != ORDINARY}}
    about |= {"ordinary": figures[ORDINARY]} if ORDINARY in figures else {}
    if out is not None and figures:  # what was measured before something failed is kept
        out.write_text(json.dumps(about, indent=2) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
