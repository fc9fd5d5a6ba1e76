"""The accept length of a pair on a real SGLang server.

    python -m pairs.accept_length tiny-kimi --ids 0 3 31 --ids 2 30 58

needs the CPU server of the tests (tests/sglang_cpu). Each `--ids` is served by a copy of the draft whose
configuration names those layer ids; without any, the draft is served as it is.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairs.corpus import held_out_prompts

STEPS = 5


@dataclass(frozen=True)
class Measured:
    """What one server did with the prompts."""

    layer_ids: list[int]
    accept_length: float
    tokens: int
    rounds: int
    texts: list[str]


def rewired(draft: Path, layer_ids: Sequence[int], folder: Path) -> Path:
    """A copy of the draft whose configuration names other layer ids."""
    shutil.copytree(draft, folder)
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(layer_ids)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def accept_length_of(answer: dict[str, Any]) -> tuple[int, int]:
    """Tokens after the first one, and the verify rounds that made them."""
    meta = answer["meta_info"]
    return int(meta["completion_tokens"]) - 1, int(meta["spec_verify_ct"])


def measure(
    target: Path,
    draft: Path,
    *,
    layer_ids: Sequence[int] | None = None,
    prompts: int = 24,
    new_tokens: int = 96,
    steps: int = STEPS,
    log: Path | None = None,
) -> Measured:
    """Serve the pair and generate greedily from held-out prompts."""
    from sglang_cpu.arguments import cpu_args
    from sglang_cpu.server import CpuServer

    with tempfile.TemporaryDirectory() as scratch:
        served = draft if layer_ids is None else rewired(draft, layer_ids, Path(scratch) / "draft")
        named = json.loads((served / "config.json").read_text())["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        args = cpu_args(target, served, steps=steps, topk=1, num_draft_tokens=steps + 1)
        tokens, rounds, texts = 0, 0, []
        with CpuServer(args, log or Path(scratch) / "server.log") as server:
            for prompt in held_out_prompts(prompts):
                answer = server.generate(prompt, max_new_tokens=new_tokens)
                made, verified = accept_length_of(answer)
                tokens, rounds = tokens + made, rounds + verified
                texts.append(answer["text"])
    return Measured(named, tokens / rounds, tokens, rounds, texts)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", help="name of a pair beside this file, or a folder with target/ and draft/")
    parser.add_argument(
        "--ids", nargs="+", type=int, action="append", help="layer ids to serve with; may be repeated"
    )
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    known = Path(__file__).parent / options.pair
    folder = known if known.is_dir() else Path(options.pair)
    figures = []
    for ids in options.ids or [None]:
        found = measure(
            folder / "target",
            folder / "draft",
            layer_ids=ids,
            prompts=options.prompts,
            new_tokens=options.new_tokens,
        )
        print(
            f"layer ids {found.layer_ids}: accept length {found.accept_length:.2f} of {STEPS + 1}"
            f" ({found.tokens} tokens in {found.rounds} rounds)",
            flush=True,
        )
        figures.append({k: v for k, v in vars(found).items() if k != "texts"})
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
