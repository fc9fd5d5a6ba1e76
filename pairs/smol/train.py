"""Train the head on the stored answers: `python -m pairs.smol.train --wiring B0,B16,B28`.

Model, optimiser and schedule are those of the tiny pairs. What is added here is what a real model needs: states
read from a memory map, soft targets over a pruned vocabulary, bf16 products, and an fc input scaled per channel,
because the embedding's norm is 3 where a middle boundary's is 150. The scale is folded into fc when the head is saved.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.errors import DrafttraceError
from pairs.eagle3 import DraftShape, Eagle3
from pairs.optim import MuonAdam, schedule
from pairs.smol.answers import END_ID, HIDDEN, KEPT, LAYERS, Talk, held_out_answers, training_answers, work_dir
from pairs.smol.dump import TRAINER_IDS, WIRING
from pairs.smol.fetch import target_dir
from pairs.smol.lessons import Lesson, Samples
from pairs.smol.options import above_zero, boundaries, whole
from pairs.smol.options import parser as options_of
from pairs.smol.prompts import MOST
from pairs.train_draft import STEP_DECAY, shifted

BOS_ID = 1
POSITIONS = 8192  # the target's: SGLang refuses a draft that claims fewer
UPDATES = 1600


@dataclass(frozen=True)
class Plan:
    """How the head trains. ``updates`` end it, or ``minutes`` on a machine that is too busy for them."""

    wiring: tuple[int, ...]
    updates: int
    minutes: float = 60.0
    ttt_steps: int = 3
    rows: int = 16
    matrix_rate: float = 0.004
    other_rate: float = 0.001
    seed: int = 41


SHAPE = DraftShape(hidden=HIDDEN, heads=9, kv_heads=3, head_dim=64, inter=768, vocab=2048)


@torch.no_grad()
def start_from_target(draft: Eagle3, scale: Tensor, target: Samples) -> None:
    """Begin as a reader of the last slot: fc hands it on, the halves of the layer add little, and the norm and the
    head are the target's own (as speculators begins; EAGLE-1 kept the target's head for good)."""
    weights, hidden = draft.weights, draft.shape.hidden
    weights["lm_head"].copy_(target.embed[draft.draft_ids])
    weights["norm"].copy_(target.norm)
    last = scale[-hidden:]
    weights["fc"].mul_(0.1)[0, :, -hidden:].add_(torch.diag(last / last.square().mean().sqrt()))
    weights["o"].mul_(0.3)
    weights["down"].mul_(0.3)


def lesson_loss(draft: Eagle3, embed: Tensor, lesson: Lesson, scale: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Weighted soft cross-entropy over all steps, and per step [hits, rows with a covered target, rows]."""
    next_ids = F.pad(lesson.ids[:, 1:], (0, steps))
    wanted = F.linear(lesson.last, embed[draft.draft_ids]).float().softmax(-1)
    covered = torch.zeros(len(embed)).index_fill(0, draft.draft_ids, 1.0)[lesson.best]
    to_draft = torch.full((len(embed),), -1).index_copy(0, draft.draft_ids, torch.arange(len(draft.draft_ids)))
    label_ids = to_draft[lesson.best]
    total, tally = torch.zeros(()), torch.zeros(steps, 3)
    for step, logits in enumerate(draft((lesson.slots.float() / scale).bfloat16(), next_ids, embed, steps)):
        spoken = shifted(lesson.mask, 1 + step)
        weight = shifted(lesson.mask * covered, 1 + step)
        # cross-entropy against the whole distribution, -sum p log q = logsumexp(z) - sum p z
        z = logits.float()
        losses = z.logsumexp(-1) - (shifted(wanted, 1 + step) * z).sum(-1)
        total = total + STEP_DECAY**step * (losses * weight).sum() / weight.sum()
        hits = (z.argmax(-1) == shifted(label_ids, 1 + step)).float() * weight
        tally[step] = torch.stack((hits.sum(), weight.sum(), spoken.sum())).detach()
    return total, tally


@torch.no_grad()
def evaluate(draft: Eagle3, samples: Samples, scale: Tensor, plan: Plan) -> dict[str, Any]:
    """Accuracy per step on whole conversations (a target outside the draft vocabulary counts as missed)."""
    tally = torch.zeros(plan.ttt_steps, 3)
    for lesson in samples.epoch(0, plan.rows, plan.wiring):
        with torch.autocast("cpu", torch.bfloat16):
            tally += lesson_loss(draft, samples.embed, lesson, scale, plan.ttt_steps)[1]
    accuracy = (tally[:, 0] / tally[:, 2]).tolist()
    return {
        "accuracy": [round(a, 4) for a in accuracy],
        "accuracy_covered": [round(a, 4) for a in (tally[:, 0] / tally[:, 1]).tolist()],
        "coverage": round(float(tally[0, 1] / tally[0, 2]), 4),
        "expected_accept_length_5_steps": round(expected_length(accuracy[:5]), 3),
        "rows": int(tally[0, 2]),
    }


def expected_length(accuracy: Sequence[float]) -> float:
    """1 + a1 + a1*a2 + ..., the tokens that a verify round yields if the steps were independent."""
    total, product = 1.0, 1.0
    for a in accuracy:
        product *= a
        total += product
    return total


def train(plan: Plan, shape: DraftShape, train_set: Samples, held_out: Samples, log: IO[str]) -> Eagle3:
    """Train until the time is over; one JSON line per 25 updates and per evaluation goes to ``log``."""
    torch.manual_seed(plan.seed)
    draft_ids, share = train_set.vocabulary(shape.vocab)
    draft, scale = Eagle3(shape, draft_ids), train_set.channel_scale(plan.wiring)
    start_from_target(draft, scale, train_set)
    optimiser = MuonAdam(draft.parameters(), plan.matrix_rate, plan.other_rate)
    tokens = sum(t.rows for t in train_set.talks)

    def say(**entry: Any) -> None:
        log.write(json.dumps(entry) + "\n")
        log.flush()
        print(json.dumps(entry), file=sys.stderr, flush=True)

    say(
        plan=asdict(plan),
        shape=asdict(shape),
        talks=len(train_set),
        tokens=tokens,
        vocabulary_share=round(share, 4),
    )
    train_set.best, held_out.best  # noqa: B018  computed before the clock starts
    begun, update, epoch, gone = time.monotonic(), 0, 0, 0.0
    while gone < 1.0:
        for lesson in train_set.epoch(plan.seed + epoch, plan.rows, plan.wiring):
            gone = max(update / plan.updates, (time.monotonic() - begun) / (60 * plan.minutes))
            if gone >= 1.0:
                break
            with torch.autocast("cpu", torch.bfloat16):
                loss, tally = lesson_loss(draft, train_set.embed, lesson, scale, plan.ttt_steps)
            loss.backward()
            nn.utils.clip_grad_norm_(draft.parameters(), 1.0, foreach=True)
            optimiser.step(min(1.0, (update + 1) / 30) * schedule(int(1000 * gone), 1000, 0))
            if update % 25 == 0:
                right = [round(x, 3) for x in (tally[:, 0] / tally[:, 2]).tolist()]
                seconds = round(time.monotonic() - begun)
                say(
                    update=update, epoch=epoch, seconds=seconds, loss=round(float(loss.detach()), 3), accuracy=right
                )
            update += 1
        epoch += 1
        say(held_out=evaluate(draft, held_out, scale, plan), epoch=epoch, seconds=round(time.monotonic() - begun))
    with torch.no_grad():
        draft.weights["fc"].div_(scale)
    draft.round_to_bf16()
    one = torch.ones_like(scale)
    say(
        held_out_as_saved=evaluate(draft, held_out, one, plan),
        updates=update,
        seconds=round(time.monotonic() - begun),
    )
    return draft


def save(draft: Eagle3, folder: Path, layer_ids: list[int], vocabulary: int) -> None:
    """The head as SpecForge exports it, for a target with another vocabulary than the tiny ones."""
    folder.mkdir(parents=True, exist_ok=True)
    marks = {"bos_token_id": BOS_ID, "eos_token_id": END_ID, "pad_token_id": END_ID, "vocab_size": vocabulary}
    marks["max_position_embeddings"] = POSITIONS
    (folder / "config.json").write_text(json.dumps(draft.shape.config(layer_ids) | marks, indent=2) + "\n")
    tensors = {
        f"{full}.weight": draft._matrix(name).detach().bfloat16().contiguous().clone()
        for name, full in draft._NAMES.items()
    }
    tensors["d2t"] = draft.draft_ids - torch.arange(len(draft.draft_ids))
    tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, draft.draft_ids, True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def layer_ids_of(wiring: Sequence[int]) -> list[int]:
    """What a head's config names. SGLang takes B(id + 1); the pair's own head keeps the incident's ids, which its trainer
    wrote (see ``pairs.smol.dump``) and which the demo corrects."""
    return list(TRAINER_IDS) if tuple(wiring) == WIRING else [k - 1 for k in wiring]


def check_plan(plan: Plan) -> None:
    """Raise DrafttraceError where the head has other slots, or the stored answers no such boundary."""
    if len(plan.wiring) != SHAPE.slots:
        raise DrafttraceError(
            f"The wiring {wiring_name(plan.wiring)} has {len(plan.wiring)} boundaries, and the head reads {SHAPE.slots}; "
            "name as many, like B0,B16,B28."
        )
    kept = {0, *KEPT} - {LAYERS}
    missing = [k for k in plan.wiring if k not in kept]
    if missing:
        raise DrafttraceError(
            f"The wiring {wiring_name(plan.wiring)} asks for {wiring_name(missing)}, and the answers keep "
            f"{wiring_name(sorted(kept))} only; choose among them."
        )


def answers(talks: int | None) -> tuple[list[Talk], list[Talk]]:
    """What to train on and what to measure on. Raises DrafttraceError with the command that makes what is missing."""
    train_on, held_out = training_answers()[:talks], held_out_answers()
    for found, command in ((train_on, ""), (held_out, " --held-out")):
        if not found:
            raise DrafttraceError(
                f"There are no{' held-out' if command else ''} answers in {work_dir()} to train on; make them with "
                f"python -m pairs.smol.answers{command}."
            )
    return train_on, held_out


def run(plan: Plan, talks: int | None, out: Path) -> None:
    """Train and save. What stands in the folder is replaced when the new head is there, not before."""
    check_plan(plan)
    train_on, held_on = answers(talks)
    target = target_dir()
    train_set, held_out = Samples(train_on, target), Samples(held_on, target)
    print(f"training on {wiring_name(plan.wiring)}, {len(train_set)} talks", file=sys.stderr)
    try:
        out.mkdir(parents=True, exist_ok=True)
        log = (out / "training.jsonl.part").open("w")
    except OSError as error:
        raise DrafttraceError(f"--out {out} cannot be written ({error.strerror}); give another folder.") from error
    with log:
        draft = train(plan, SHAPE, train_set, held_out, log)
    save(draft, out, layer_ids_of(plan.wiring), len(train_set.embed))
    (out / "training.jsonl.part").replace(out / "training.jsonl")


def main() -> int:
    """Train and save the head and its log; 2 and one sentence where that cannot be."""
    parser = options_of(__doc__)
    parser.add_argument("--wiring", type=boundaries, default=WIRING)
    parser.add_argument("--updates", type=whole(1, 10**9), default=UPDATES)
    parser.add_argument(
        "--minutes", type=above_zero, default=Plan.minutes, help="stop after this time at the latest"
    )
    parser.add_argument("--talks", type=whole(1, MOST), default=None, help="use only the first talks")
    parser.add_argument("--rate", type=above_zero, default=Plan.matrix_rate)
    parser.add_argument("--rows", type=whole(1, 4096), default=Plan.rows)
    parser.add_argument("--ttt-steps", type=whole(1, 16), default=Plan.ttt_steps)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "draft")
    options = parser.parse_args()
    try:
        plan = Plan(
            options.wiring,
            options.updates,
            options.minutes,
            rows=options.rows,
            matrix_rate=options.rate,
            ttt_steps=options.ttt_steps,
        )
        run(plan, options.talks, options.out)
    except DrafttraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
