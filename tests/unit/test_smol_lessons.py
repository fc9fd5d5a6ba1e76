"""The lessons of the real pair pair every row with the right tokens, and a head learns from them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pairs.eagle3 import DraftShape
from pairs.smol import answers, train
from pairs.smol.lessons import Samples

SPOKEN = 96  # tokens that are in use: every twelfth one, so that ids exceed the tiny pairs' vocabulary
VOCABULARY = 12 * SPOKEN
STEP = 12 * 7  # the language of this test: the next token is always STEP further


def follower(token: int) -> int:
    return (token + STEP) % VOCABULARY


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Samples:
    monkeypatch.setenv("DRAFTTRACE_CACHE", str(tmp_path))
    torch.manual_seed(1)
    embed = torch.randn(VOCABULARY, answers.HIDDEN).bfloat16()
    target = tmp_path / "target"
    target.mkdir()
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": torch.ones(answers.HIDDEN)}
    save_file(tensors, target / "model.safetensors")
    answers.work_dir().mkdir(parents=True)
    talks, states, start = [], [], 0
    for i in range(24):
        ids = [12 * 5 * i % VOCABULARY]
        while len(ids) < 14 + i % 5:
            ids.append(follower(ids[-1]))
        rows = torch.randn(len(ids) - 1, len(answers.KEPT), answers.HIDDEN)
        rows[:, 1] += 3 * embed[torch.tensor(ids[:-1])].float()
        rows[:, 3] = embed[torch.tensor(ids[1:])].float() / 8
        talks.append(answers.Talk(str(i), ids, 4, "states.bin", start, len(rows)))
        states.append(rows.bfloat16().view(torch.uint16).numpy().tobytes())
        start += len(rows)
    (answers.work_dir() / "states.bin").write_bytes(b"".join(states) + b"cut")
    return Samples(talks, target)


def test_every_row_has_its_token_its_target_and_its_mask(samples: Samples) -> None:
    lesson = samples.lesson([3, 4], (0, 3, 16))
    for row, talk in zip(range(2), (samples.talks[3], samples.talks[4]), strict=True):
        length = len(talk.ids) - 1
        assert lesson.ids[row, :length].tolist() == talk.ids[:-1]
        assert lesson.best[row, :length].tolist() == talk.ids[1:]
        assert lesson.mask[row].tolist() == [0.0] * 4 + [1.0] * (length - 4) + [0.0] * (
            lesson.ids.shape[1] - length
        )
        embedding = samples.embed[torch.tensor(talk.ids[:-1])]
        assert torch.equal(lesson.slots[row, :length, : answers.HIDDEN], embedding)
        assert not lesson.slots[row, length:].any()
        stored = answers.open_states("states.bin")[talk.start : talk.start + talk.rows, 1]
        middle = lesson.slots[row, :length, 2 * answers.HIDDEN :]
        assert torch.equal(middle.contiguous().view(torch.uint16), torch.from_numpy(stored.copy()))


def test_an_epoch_holds_every_conversation_once(samples: Samples) -> None:
    first = sorted(row[:3] for lesson in samples.epoch(5, 7, (0, 3, 16)) for row in lesson.ids.tolist())
    assert first == sorted(talk.ids[:3] for talk in samples.talks)


def test_the_vocabulary_is_chosen_by_frequency(samples: Samples) -> None:
    ids, share = samples.vocabulary(10)
    spoken = [i for talk in samples.talks for i in talk.ids[talk.prompt_length :]]
    assert ids.tolist() == sorted(ids.tolist())
    assert share == pytest.approx(sum(i in set(ids.tolist()) for i in spoken) / len(spoken))
    assert min(spoken.count(i) for i in ids.tolist()) >= max(
        spoken.count(i) for i in set(spoken) - set(ids.tolist())
    )


def test_a_head_learns_and_is_saved_as_it_was_measured(samples: Samples, tmp_path: Path) -> None:
    shape = DraftShape(hidden=answers.HIDDEN, heads=2, kv_heads=1, head_dim=32, inter=32, vocab=SPOKEN)
    plan = train.Plan((0, 3, 16), updates=72, ttt_steps=3, rows=8, matrix_rate=0.012, other_rate=0.003)
    log = io.StringIO()
    draft = train.train(plan, shape, samples, samples, log)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    saved_as = lines[-1]["held_out_as_saved"]["accuracy"]
    assert min(saved_as) > 0.9, lines
    assert saved_as == pytest.approx(
        lines[-2]["held_out"]["accuracy"], abs=0.03
    )  # bf16, and the scale folded into fc
    train.save(draft, tmp_path / "draft", train.TRAINER_IDS, VOCABULARY)
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["vocab_size"] == VOCABULARY
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [15, 27, 28]
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    assert tensors["t2d"].shape == (VOCABULARY,)
    kept = tensors["t2d"].nonzero()[:, 0]
    assert torch.equal(tensors["d2t"] + torch.arange(len(kept)), kept)


def test_the_expected_length_of_the_incident() -> None:
    assert train.expected_length([0.747] * 3) == pytest.approx(2.72, abs=0.01)
