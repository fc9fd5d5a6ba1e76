"""Make a tiny pair from nothing: tokenizer, target, draft, training dump, training log.

    python -m pairs.make_pair tiny-llama --out pairs/tiny-llama

The random numbers are seeded, but sums in another order (another CPU, other thread counts) give other weights
of the same quality. `--only dump` writes the dump and the log again for the weights that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pairs import dumps, offline
from pairs.corpus import WITHOUT_ECHO, conversations, held_out_talks
from pairs.eagle3 import DraftShape, Eagle3, load_draft
from pairs.shapes import DeepseekShape, LlamaShape, describe
from pairs.targets import DeepseekTarget, Target, build_target, grow, load_target
from pairs.tokenizer import ChatTokenizer, Encoded, train_tokenizer
from pairs.train_draft import DraftPlan, train_draft
from pairs.train_target import Lookahead, TargetPlan, train_target

DUMP_SEED = 23  # the draft's own training stream
LONGEST_SAMPLE = 200


@dataclass(frozen=True)
class PairPlan:
    """Everything that makes a pair what it is."""

    name: str
    shape: LlamaShape | DeepseekShape
    draft_shape: DraftShape
    target: TargetPlan
    draft: DraftPlan
    layer_ids: list[int]  # what the draft's configuration says
    dumped: list[int]  # the boundaries in the dump, the last one in the place of the last state
    dumped_ids: list[int] | None = None  # what data_config.json says (v1 layout only)
    other_wirings: tuple[tuple[int, ...], ...] = ()
    dump_samples: int = 8
    shallow: tuple[DeepseekShape, TargetPlan] | None = None  # trained first, then grown to `shape`


PLANS = {
    "tiny-llama": PairPlan(
        name="tiny-llama",
        shape=LlamaShape(),
        draft_shape=DraftShape(hidden=128),
        target=TargetPlan(steps=600, middle=13, least_change=0.15, families=WITHOUT_ECHO),
        draft=DraftPlan(wiring=(2, 8, 13), steps=320, seed=DUMP_SEED, families=WITHOUT_ECHO),
        layer_ids=[1, 7, 12],
        dumped=[2, 8, 13, 16],
        other_wirings=((1, 7, 12), (3, 9, 14), (0, 2, 8), (8, 2, 13)),
    ),
    # The incident: trained on [B0, B3, B31], with B59 stored as the "last" state; the configuration holds the
    # ids that the trainer had counted from the layer outputs.
    "tiny-kimi": PairPlan(
        name="tiny-kimi",
        shape=DeepseekShape(),
        draft_shape=DraftShape(hidden=96, head_dim=32, inter=160),
        shallow=(
            DeepseekShape(layers=11),
            TargetPlan(steps=620, middle=6, flat=0.5, echo_steps=220),
        ),
        target=TargetPlan(steps=170, middle=31, least_change=0.14, matrix_rate=0.006, other_rate=0.003, seed=12),
        draft=DraftPlan(wiring=(0, 3, 31), steps=500, seed=DUMP_SEED),
        layer_ids=[2, 30, 58],
        dumped=[0, 3, 31, 59],
        dumped_ids=[-1, 2, 30, 58],
        other_wirings=((2, 30, 58), (3, 31, 59), (0, 3, 30)),
    ),
}


def trained_target(plan: PairPlan, tokenizer: ChatTokenizer) -> tuple[Target, dict[str, Any]]:
    """Train the target, where the plan says so by growing it from a shallow one."""
    torch.manual_seed(0)
    ahead = Lookahead(plan.shape.hidden)
    figures = {}
    if plan.shallow is None:
        target = build_target(plan.shape)
    else:
        shape, first = plan.shallow
        small = DeepseekTarget(shape)
        figures["shallow"] = train_target(small, ahead, tokenizer, first)
        assert isinstance(plan.shape, DeepseekShape)
        target = grow(small, plan.shape)
    figures["full"] = train_target(target, ahead, tokenizer, plan.target)
    return target, figures


def training_samples(plan: PairPlan, tokenizer: ChatTokenizer, longest: int = LONGEST_SAMPLE) -> list[Encoded]:
    """The first texts of the draft's training stream that are neither very short nor longer than `longest`."""
    found: list[Encoded] = []
    for talk in conversations(DUMP_SEED, plan.draft.families):
        sample = tokenizer.encode(talk)
        if 60 <= len(sample.ids) <= longest:
            found.append(sample)
        if len(found) == plan.dump_samples:
            break
    return found


def served_boundaries(folder: Path, samples: list[Encoded]) -> list[list[Tensor]]:
    """B(0)..B(n) of every sample as the saved bf16 model computes them in transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    entering: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args: entering.append(args[0])) for layer in model.model.layers
    ]
    hooks.append(model.model.norm.register_forward_pre_hook(lambda _, args: entering.append(args[0])))
    found = []
    with torch.no_grad():
        for sample in samples:
            entering.clear()
            model(torch.tensor([sample.ids]))
            found.append([state[0].clone() for state in entering])
    for hook in hooks:
        hook.remove()
    return found


def write_dump(plan: PairPlan, folder: Path, samples: list[Encoded], states: list[list[Tensor]]) -> None:
    """The pair's training dump, in its trainer's layout."""
    stored = [dumps.DumpSample(s, [b[k] for k in plan.dumped]) for s, b in zip(samples, states, strict=True)]
    if plan.dumped_ids is None:
        dumps.write_arrow(folder, stored)
    else:
        dumps.write_v1(folder, stored, plan.dumped_ids, plan.name)


def measured_steps(
    plan: PairPlan, target: Target, draft: Eagle3, samples: list[Encoded], states: list[list[Tensor]]
) -> list[dict[str, Any]]:
    """Accuracy of every training-time-test step, from the bf16 states and the target's logits on them."""
    lessons = []
    for sample, boundaries in zip(samples, states, strict=True):
        slots = offline.slots_of(boundaries, plan.draft.wiring).float()
        lessons.append((sample, slots, target.logits(boundaries[-1].float()).argmax(-1)))
    scores = offline.step_scores(draft, target.embed, lessons, plan.draft.ttt_steps)
    return [{k: v if k == "rows" else round(v, 5) for k, v in asdict(s).items()} for s in scores]


@torch.no_grad()
def simulated_accept_lengths(
    plan: PairPlan, target: Target, draft: Eagle3, tokenizer: ChatTokenizer, prompts: int = 24
) -> dict[str, float]:
    """Accept length over held-out prompts, 5 drafted tokens a round, for the right wiring and the wrong ones."""
    asked = [tokenizer.encode_prompt(talk[:-1]) for talk in held_out_talks(prompts)]
    replies = offline.greedy(target, asked, 96)
    found = {}
    for wiring in (plan.draft.wiring, *plan.other_wirings):
        lengths: list[int] = []
        for prompt, reply in zip(asked, replies, strict=True):
            ids = prompt + reply
            slots = offline.slots_of(offline.boundaries_of(target, ids), wiring)
            lengths += offline.accept_lengths(
                offline.proposals(draft, target.embed, slots, ids, 5), ids, len(prompt)
            )
        found["[" + ", ".join(f"B{k}" for k in wiring) + "]"] = round(sum(lengths) / len(lengths), 3)
    return found


def write_log(plan: PairPlan, out: Path, extra: dict[str, Any], begun: float | None) -> None:
    """Dump the training samples and write training_log.json beside them. begun: when the first stage began, if all ran."""
    tokenizer, target, draft = (
        ChatTokenizer(out / "target"),
        load_target(out / "target"),
        load_draft(out / "draft"),
    )
    samples = training_samples(plan, tokenizer)
    held_out = [tokenizer.encode(talk) for talk in held_out_talks(40)]
    states, unseen = served_boundaries(out / "target", samples), served_boundaries(out / "target", held_out)
    joined = [torch.cat(rows).float() for rows in zip(*states, strict=True)]
    write_dump(plan, out / "dump", samples, states)
    log = {
        "pair": plan.name,
        "wiring": list(plan.draft.wiring),
        "convention": (
            "Step s of row t reads the embedding of x[t+1+s] and names x[t+2+s]. Rows: loss_mask[t+1+s] is 1 and x[t+2+s] "
            "exists. 'target' compares with the target's argmax at t+1+s, 'token' with x[t+2+s]; ids outside the draft "
            "vocabulary count as wrong, '_covered' leaves them out. States: bf16 from transformers. Draft: saved bf16 "
            "weights, float32 arithmetic."
        ),
        "steps_on_dump": measured_steps(plan, target, draft, samples, states),
        "steps_on_held_out": measured_steps(plan, target, draft, held_out, unseen),
        "simulated_accept_length": simulated_accept_lengths(plan, target, draft, tokenizer),
        "neighbour_distance": [round(d, 4) for d in offline.neighbour_distances(joined)],
        **extra,
    }
    if begun is not None:
        log["minutes_from_nothing"] = round((time.time() - begun) / 60, 1)
    (out / "training_log.json").write_text(json.dumps(log, indent=1) + "\n")
    print(json.dumps({k: log[k] for k in ("steps_on_held_out", "simulated_accept_length", "neighbour_distance")}))


def make(plan: PairPlan, out: Path, only: str | None) -> None:
    """Run the stages; `only` repeats one of them on what the earlier ones left."""
    log = out / "training_log.json"
    extra: dict[str, Any] = {}
    if log.exists():
        old = json.loads(log.read_text())
        kept = ("target_training", "draft_training", *(("minutes_from_nothing",) if only == "dump" else ()))
        extra = {k: old[k] for k in kept if k in old}
    begun = time.time()
    if only in (None, "target"):
        print(describe(plan.shape), flush=True)
        train_tokenizer(out / "target", plan.target.families)
        target, extra["target_training"] = trained_target(plan, ChatTokenizer(out / "target"))
        target.save(out / "target")
    if only in (None, "draft"):
        target, draft_begun = load_target(out / "target"), time.time()
        draft = train_draft(target, ChatTokenizer(out / "target"), plan.draft_shape, plan.draft)
        draft.save(out / "draft", plan.layer_ids)
        extra["draft_training"] = {"steps": plan.draft.steps, "seconds": round(time.time() - draft_begun)}
    if only in (None, "draft", "dump"):
        write_log(plan, out, extra, begun if only is None else None)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", choices=sorted(PLANS))
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for target/, draft/, dump/ and training_log.json"
    )
    parser.add_argument(
        "--only", choices=["target", "draft", "dump"], help="one stage (draft: and the dump that follows)"
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    make(PLANS[options.pair], options.out, options.only)


if __name__ == "__main__":
    main()
