"""The committed pairs are what the README says: small, consistent, working, and broken in the one intended way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pairs.eagle3 import load_draft
from pairs.make_pair import PLANS, training_samples
from pairs.offline import boundaries_of, neighbour_distances, step_scores
from pairs.targets import load_target
from pairs.tokenizer import VOCAB_SIZE, ChatTokenizer, Encoded

PAIRS = Path(__file__).resolve().parents[2] / "pairs"
NAMES = sorted(PLANS)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def log(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PAIRS / name / "training_log.json").read_text())
    return found


def _config(name: str, side: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PAIRS / name / side / "config.json").read_text())
    return found


def _dump(name: str) -> list[tuple[Encoded, Sequence[Tensor]]]:
    folder = PAIRS / name / "dump"
    found: list[tuple[Encoded, Sequence[Tensor]]] = []
    if name == "tiny-kimi":
        for i in range(8):
            sample = torch.load(folder / f"data_{i}.pt", weights_only=True)
            text = Encoded(sample["input_ids"].tolist(), sample["loss_mask"].tolist())
            found.append((text, sample["hidden_states"]))
        return found
    from datasets import load_from_disk

    for i, row in enumerate(load_from_disk(str(folder))):
        stored = load_file(folder / "hidden_states" / f"hs_{i}.safetensors")
        assert stored["token_ids"].tolist() == row["input_ids"]
        assert row["seq_len"] == len(row["input_ids"])
        found.append((Encoded(row["input_ids"], row["loss_mask"]), stored["hidden_states"].unbind(1)))
    return found


def test_a_pair_is_small(name: str) -> None:
    size = sum(f.stat().st_size for side in ("target", "draft") for f in (PAIRS / name / side).iterdir())
    assert size <= 8_000_000


def test_draft_and_target_agree(name: str) -> None:
    target, draft = _config(name, "target"), _config(name, "draft")
    for field in (
        "vocab_size",
        "hidden_size",
        "max_position_embeddings",
        "rope_theta",
        "bos_token_id",
        "eos_token_id",
    ):
        assert draft[field] == target[field], field
    assert draft["draft_vocab_size"] < target["vocab_size"]
    weights = load_file(PAIRS / name / "draft" / "model.safetensors")
    assert weights["fc.weight"].shape == (draft["hidden_size"], 3 * draft["hidden_size"])
    assert int(weights["t2d"].sum()) == draft["draft_vocab_size"] == weights["lm_head.weight"].shape[0]
    assert int((weights["d2t"] + torch.arange(draft["draft_vocab_size"])).max()) < VOCAB_SIZE


def test_dump_holds_what_the_trainer_stored(name: str) -> None:
    plan, target = PLANS[name], load_target(PAIRS / name / "target")
    samples = _dump(name)
    assert [text for text, _ in samples] == training_samples(plan, ChatTokenizer(PAIRS / name / "target"))
    for text, states in samples[:2]:
        assert len(states) == len(plan.dumped)
        boundaries = boundaries_of(target, text.ids)
        for k, state in zip(plan.dumped, states, strict=True):
            assert state.dtype == torch.bfloat16
            # bf16 against float32: far nearer to its own boundary than that is to its neighbours
            distance = (state.float() - boundaries[k]).norm(dim=-1) / boundaries[k].norm(dim=-1)
            assert float(distance.median()) < 0.03
    if plan.dumped_ids is not None:
        config = json.loads((PAIRS / name / "dump" / "data_config.json").read_text())
        assert config["hidden_states"]["layer_ids"] == [k - 1 for k in plan.dumped]


def test_replaying_the_dump_gives_the_logged_accuracy(name: str, log: Mapping[str, Any]) -> None:
    draft, target = load_draft(PAIRS / name / "draft"), load_target(PAIRS / name / "target")
    lessons = [(text, torch.cat(list(states[:3]), dim=-1), None) for text, states in _dump(name)]
    scores = step_scores(draft, target.embed, lessons, PLANS[name].draft.ttt_steps)
    for score, logged in zip(scores, log["steps_on_dump"], strict=True):
        assert score.rows == logged["rows"]
        assert score.token == pytest.approx(logged["token"], abs=0.005)


def test_every_layer_moves_the_stream(name: str) -> None:
    target = load_target(PAIRS / name / "target")
    texts = [text.ids for text, _ in _dump(name)[:4]]
    rows = [torch.cat(parts) for parts in zip(*(boundaries_of(target, ids) for ids in texts), strict=True)]
    assert min(neighbour_distances(rows)) >= 0.08


def test_the_draft_is_good_where_it_was_trained_and_bad_where_it_was_not(name: str, log: Mapping[str, Any]) -> None:
    lengths = log["simulated_accept_length"]
    right = lengths["[" + ", ".join(f"B{k}" for k in PLANS[name].draft.wiring) + "]"]
    assert right >= 2.2
    if name == "tiny-kimi":
        assert right >= 1.5 * lengths["[B2, B30, B58]"]
        assert right >= 1.5 * lengths["[B3, B31, B59]"]


def test_the_configuration_of_tiny_kimi_is_the_trainers_mistake() -> None:
    assert _config("tiny-kimi", "draft")["eagle_config"] == {
        "eagle_aux_hidden_state_layer_ids": [2, 30, 58],
        "use_aux_hidden_state": True,
    }
    assert _config("tiny-llama", "draft")["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 7, 12]
