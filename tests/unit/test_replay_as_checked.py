"""Replay and check say the same of one folder: what a server refuses, drops or builds otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_folders import HIDDEN, VOCAB, draft_tensors, specforge, write_draft
from replay_world import World, make_world
from safetensors.torch import load_file
from test_audit_one_cause import first_eagle

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.gathering import gather
from drafttrace.compare.replay.loading import step_tokens
from drafttrace.compare.replay.prepare import Bench, open_bench
from drafttrace.compare.replay.result import ReplayResult
from drafttrace.compare.replay.run import replay
from drafttrace.compare.replay.switches import SERVED, TRAINED, Switches
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture

TRUTH = (2, 16, 29)
IDS = [k - 1 for k in TRUTH]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), TRUTH)


def draft(world: World, folder: Path, config: dict[str, Any], **changed: torch.Tensor) -> Path:
    """The world's draft with another config, and with other tensors (dots as double underscores)."""
    held = load_file(world.draft / "model.safetensors")
    return write_draft(folder, config, held, **changed)


def replayed(world: World, folder: Path) -> ReplayResult:
    return replay(world.capture(TRUTH), folder, world.target, switches=True)


def bench_of(world: World, folder: Path) -> Bench:
    subject, _, _ = gather(world.target, folder)
    with torch.inference_mode():
        return open_bench(subject, [world.capture(TRUTH)], 1, (), False)


def norms(folder: Path, world: World) -> Path:
    """Norms of queries and keys, which SGLang's class does not have."""
    ones = {f"midlayer__self_attn__{k}_norm__weight": torch.full((4,), 1.5) for k in "qk"}
    return draft(world, folder, specforge(IDS), **ones)


def biased(folder: Path, world: World) -> Path:
    rows = {"q": HIDDEN, "k": HIDDEN // 2, "v": HIDDEN // 2, "o": HIDDEN}
    biases = {f"midlayer__self_attn__{k}_proj__bias": torch.ones(n) for k, n in rows.items()}
    return draft(world, folder, specforge(IDS, attention_bias=True), **biases)


def tied(folder: Path, world: World) -> Path:
    return draft(world, folder, specforge(IDS, tie_word_embeddings=True))


def quantized_in_words(folder: Path, world: World) -> Path:
    said = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    return draft(world, folder, specforge(IDS, quantization_config=said))


def another_activation(folder: Path, world: World) -> Path:
    return draft(world, folder, specforge(IDS, hidden_act="gelu"))


def without_a_size(folder: Path, world: World) -> Path:
    config = {key: value for key, value in specforge(IDS).items() if key != "draft_vocab_size"}
    return draft(world, folder, config)


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (norms, "norm-missing", "q_norm"),
        (biased, "weights-unused", "q_proj.bias"),
        (tied, "weights-replaced", "tie_word_embeddings"),
        (quantized_in_words, "weights-missing", "quantization_config"),
        (another_activation, "fc-not-called", "hidden_act"),
        (without_a_size, "fc-not-called", "AttributeError"),
    ],
)
def test_what_check_calls_a_fault_is_one_in_the_replay(
    make: Any, name: str, words: str, world: World, tmp_path: Path
) -> None:
    """Each was a match, or a hint at most, in the replay."""
    folder = make(tmp_path / "draft", world)
    checked, made = check(world.target, folder, sglang_version="0.5.23"), replayed(world, folder)
    for result in (checked, made):
        assert result.exit_code == 1
        assert any(found.id == name and words in found.summary for found in result.faults), result.findings


def without_head_dim(folder: Path, world: World) -> Path:
    return draft(world, folder, specforge(IDS, model_type="qwen3"))


def of_another_width(folder: Path, world: World) -> Path:
    return draft(world, folder, specforge(IDS, hidden_size=32))


def transposed(folder: Path, world: World) -> Path:
    held = load_file(world.draft / "model.safetensors")
    return draft(world, folder, specforge(IDS), fc__weight=held["fc.weight"].T)


def headless(folder: Path, world: World) -> Path:
    held = load_file(world.draft / "model.safetensors")
    return write_draft(folder, specforge(IDS, draft_vocab_size=VOCAB), held, drop=("lm_head.weight", "d2t", "t2d"))


def of_two_layers(folder: Path, world: World) -> Path:
    return draft(world, folder, specforge(IDS, num_hidden_layers=2))


def of_two_wrong_sizes(folder: Path, world: World) -> Path:
    return draft(world, folder, specforge(IDS, hidden_size=32, intermediate_size=48))


def of_the_first_eagle(folder: Path, world: World) -> Path:
    return write_draft(folder, specforge(IDS), first_eagle())


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (without_head_dim, '"head_dim": 4'),
        (of_another_width, '"hidden_size": 16'),
        (transposed, "transposed, as [16, 48]"),
        (headless, "lm_head.weight"),
        (of_two_layers, '"num_hidden_layers": 1'),
        (of_two_wrong_sizes, '"hidden_size": 16'),
        (of_the_first_eagle, "--speculative-algorithm EAGLE"),
    ],
)
def test_what_a_server_cannot_load_is_refused_with_the_remedy_of_check(
    make: Any, line: str, world: World, tmp_path: Path
) -> None:
    """A Qwen3 draft without head_dim was replayed with another width of the heads than a server builds."""
    folder = make(tmp_path / "draft", world)
    faults = check(world.target, folder, sglang_version="0.5.23").faults
    assert any(line in found.remedy for found in faults)
    with pytest.raises(DrafttraceError) as refused:
        replayed(world, folder)
    assert line.lower() in str(refused.value).lower()


def test_quantized_tensors_are_refused_and_not_read_unscaled(world: World, tmp_path: Path) -> None:
    scales = {"midlayer__mlp__up_proj__weight_scale": torch.ones(1)}
    folder = draft(world, tmp_path / "draft", specforge(IDS), **scales)
    with pytest.raises(DrafttraceError, match="weight_scale"):
        replayed(world, folder)


def test_the_sizes_of_the_config_class_are_those_of_the_replay(tmp_path: Path) -> None:
    """An MLP of a Llama 4 is as wide as intermediate_size_mlp says: the replay asked for intermediate_size."""
    sizes = {"model_type": "llama4_text", "head_dim": 4, "intermediate_size": 7, "intermediate_size_mlp": 24}
    world = make_world(tmp_path, TRUTH, **sizes)
    assert replayed(world, world.draft).exit_code == 0


def test_the_replay_as_served_leaves_out_the_biases_that_a_server_has_not(world: World, tmp_path: Path) -> None:
    """It added them in every run, and told what served states would be by another model."""
    rows = {"q": HIDDEN, "k": HIDDEN // 2, "v": HIDDEN // 2, "o": HIDDEN}
    biases = {f"midlayer__self_attn__{k}_proj__bias": torch.rand(n) * (k != "o") for k, n in rows.items()}
    folder = write_draft(tmp_path / "biased", specforge(IDS, attention_bias=True), draft_tensors(), **biases)
    bench = bench_of(world, folder)
    assert (bench.trained.biases, bench.served.biases) == (TRAINED, SERVED)
    slots = [torch.from_numpy(world.states[k])[None] for k in TRUTH]

    def normed(bench: Bench, switches: Switches) -> torch.Tensor:
        model = bench.replayer.model
        reading = bench.replayer.reading(step_tokens(world.tokens, 0, len(world.tokens))[None], switches)
        return model.steps(model.fc(model.fc_in(slots, switches)), reading, switches)[0].normed

    plain = bench_of(world, write_draft(tmp_path / "plain", specforge(IDS), draft_tensors()))
    assert torch.equal(normed(bench, bench.served), normed(plain, plain.served))
    assert not torch.allclose(normed(bench, bench.trained), normed(plain, plain.trained))


def test_a_tied_draft_is_replayed_with_the_embedding_for_its_head(tmp_path: Path) -> None:
    """The target's own head was taken, which is another table."""
    world = make_world(tmp_path, TRUTH)
    config = specforge(IDS, tie_word_embeddings=True, draft_vocab_size=VOCAB)
    folder = write_draft(tmp_path / "tied", config, draft_tensors(), drop=("lm_head.weight", "d2t", "t2d"))
    bench = bench_of(world, folder)
    table = load_file(world.target / "model.safetensors")["model.embed_tokens.weight"].float()
    assert np.array_equal(bench.replayer.model.weights["lm_head.weight"].numpy(), table.numpy())


def test_a_search_tells_the_accept_length_of_the_whole_text() -> None:
    """ "accept length 3.32 was observed, the replay of the same text gives 6.00": over the 17 rows of the layer sweep."""
    root = Path(__file__).resolve().parents[2]
    pair, capture = root / "pairs/tiny-llama", open_capture(str(root / "traces/tiny-llama/healthy.h5"))
    told = []
    for search in (False, True):
        result = replay(capture, pair / "draft", pair / "target", search_wirings=search, switches=False)
        told += [found.evidence["expected"] for found in result.findings if found.id == "none"]
    assert len(told) == 2 and told[0] == told[1]


def test_a_vocab_size_that_is_not_the_targets_is_told_by_the_replay_too(world: World, tmp_path: Path) -> None:
    """Only check had a word for it."""
    folder = draft(world, tmp_path / "draft", specforge(IDS, vocab_size=2 * VOCAB))
    (told,) = [f for f in replayed(world, folder).findings if "vocab_size" in f.summary]
    assert told.summary in {f.summary for f in check(world.target, folder).findings} and told.severity == "fault"


def test_a_head_of_other_tokens_is_told_by_the_replay_too(world: World, tmp_path: Path) -> None:
    """Both were silent."""
    theirs = load_file(world.target / "model.safetensors")["lm_head.weight"]
    held = load_file(world.draft / "model.safetensors")
    rows = held["lm_head.weight"].shape[0]
    ids = (held["d2t"] + torch.arange(rows)) if "d2t" in held else torch.arange(rows)
    head = theirs[(ids + 1) % len(theirs)].float()
    folder = draft(world, tmp_path / "draft", specforge(IDS), lm_head__weight=head)
    told = [f.summary for f in replayed(world, folder).findings if "belong to other tokens" in f.summary]
    assert told and told[0] in {f.summary for f in check(world.target, folder).findings}
